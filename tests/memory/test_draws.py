"""Draws by q are unbiased; what the cap and the balance do to the gradient is measured and bounded."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fcco
from fcco.memory._draws import GROWTH, Chances, Stratum, Sweep, balanced, capped
from tests.memory.cases import CASES, solver_for, whole


def test_draws_follow_q() -> None:
    chances = Chances(Stratum(torch.arange(5, 10), draws=40_000), torch.device("cpu"))
    chances.update(torch.tensor([0.0, 1.0, 0.0, 3.0, 4.0]), 1.0)
    drawn = chances.draw(0.5, torch.Generator().manual_seed(0))
    wanted = 0.1 + 0.5 * torch.tensor([0.0, 1, 0, 3, 4], dtype=torch.float64) / 8
    torch.testing.assert_close(drawn.probability, wanted)
    torch.testing.assert_close(drawn.weight, wanted, rtol=0.0, atol=0.01)
    assert drawn.id.tolist() == [5, 6, 7, 8, 9]


def test_nobody_waits_longer_than_two_rounds() -> None:
    """The draws that are not by importance sweep over everyone; those by importance come on top."""
    chances, generator = Chances(Stratum(torch.arange(30), draws=7), torch.device("cpu")), torch.Generator()
    times = torch.zeros(30, dtype=torch.float64)
    for drawn in (chances.draw(1.0, generator) for _ in range(30)):  # no |c| known yet: all from the sweep
        times.index_add_(0, drawn.id, 7 * drawn.weight)
    torch.testing.assert_close(times, torch.full_like(times, 7))
    chances.update(torch.eye(30)[3], 1.0)
    last = torch.zeros(30)
    for step in range(300):
        last[chances.draw(0.5, generator).id] = step
        if step > 60:
            assert step - last.min() < 60  # two rounds of 30 take 120 uniform draws, 3.5 a step: 34 on average
    assert last[3] >= 295


def test_chances_are_a_running_mean_of_shares() -> None:
    chances = Chances(Stratum(torch.arange(3), draws=1), torch.device("cpu"))
    chances.update(torch.tensor([1.0, 1.0, 2.0]), 0.2)  # the first is taken as it is
    torch.testing.assert_close(chances.share, torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64))
    chances.update(torch.tensor([0.0, 300.0, 0.0]), 0.2)
    torch.testing.assert_close(chances.share, torch.tensor([0.2, 0.4, 0.4], dtype=torch.float64))
    for nothing in (torch.zeros(3), torch.tensor([0.0, torch.inf, 0.0])):
        chances.update(nothing, 0.2)
        torch.testing.assert_close(chances.share, torch.tensor([0.2, 0.4, 0.4], dtype=torch.float64))
    place = torch.arange(3)
    torch.testing.assert_close(chances.probability(place, 0.5), 0.5 / 3 + 0.5 * chances.share)
    chances.update(torch.tensor([0.0, 1.0, 0.0]), 1.0)
    assert chances.share.tolist() == [0.0, 1.0, 0.0]


def test_after_a_scoring_pass_the_chances_are_those_of_the_table() -> None:
    solver, loader = solver_for(CASES["pauc"](), fcco.output_memory(refresh=1, renewal=0.1), lr=0.3)
    for _, (index, batch) in zip(range(8), loader, strict=False):
        solver.step(index, batch)
    memory = loader.memory
    assert memory.phi is not None
    for fresh in (False, True):
        if fresh:
            loader.score()
        c = memory.phi.everything().c.abs()
        for chances in memory.chances:
            wanted = c[chances.members] / c[chances.members].sum()
            assert torch.allclose(chances.share, wanted.double()) == fresh


def test_a_sweep_ends_whatever_it_is_asked() -> None:
    sweep = Sweep(3)
    sweep.go_to(5, 7)  # beyond its end
    assert sorted(sweep.take(3, torch.Generator()).tolist()) == [0, 1, 2]
    with pytest.raises(ValueError, match="members"):
        Sweep(0)


def test_every_rank_gets_an_example_even_where_all_chances_lie_on_one() -> None:
    _, loader = solver_for(CASES["pauc"](), fcco.output_memory(importance=1.0))
    for chances in loader.memory.chances:
        chances.update(torch.eye(len(chances.members))[0], 1.0)
    assert len(loader._plan().drawn.id) == 2  # one of each class
    object.__setattr__(loader.loader._share, "world", 4)
    drawn = loader._plan().drawn
    assert len(drawn.id) >= 4
    torch.testing.assert_close(drawn.probability[0], torch.tensor(1.0 / len(loader.memory.chances[0].members)).double())


def test_sweep_goes_on_from_its_seed_and_place() -> None:
    generator, sweep, other = torch.Generator().manual_seed(0), Sweep(10), Sweep(10)
    assert sorted(sweep.take(4, generator).tolist() + sweep.take(6, generator).tolist()) == list(range(10))
    assert sorted(sweep.take(23, generator).tolist()[:10]) == list(range(10))
    other.go_to(sweep.seed, sweep.at)
    assert other.take(7, generator).tolist() == sweep.take(7, generator).tolist()
    assert sweep.take(0, generator).tolist() == []


@pytest.mark.parametrize("name", ["pauc", "ap", "push", "pauc-tasks", "cox", "tasks", "contrastive"])
def test_unbiased_without_cap_and_balance(name: str) -> None:
    mean, error, c = _mean_push(name, fcco.output_memory(importance=0.5, cap=None, balance=False))
    assert bool(((mean - c).abs() < 5 * error + 1e-9).all())


@pytest.mark.parametrize("name", ["pauc", "ap"])
def test_bias_of_cap_and_balance_is_small(name: str) -> None:
    mean, _, c = _mean_push(name, fcco.output_memory(importance=0.5, cap=3.0))
    assert torch.cosine_similarity(mean, c, dim=0) > 0.95
    assert (mean - c).norm() / c.norm() < 0.35


def _mean_push(name: str, method: fcco.Method, draws: int = 1500) -> tuple[Tensor, Tensor, Tensor]:
    """Mean over draws of the pushes v on every output at a fresh table, its standard error, and c itself."""
    case = CASES[name]()
    solver, loader = solver_for(case, method, lr=0.0)
    solver.step(None, whole(loader.memory))  # lr = 0: the table is fresh and stays so
    memory = loader.memory
    memory.refresh(1, due=True)
    assert memory.phi is not None
    c = memory.phi.everything().c
    found = []
    for _ in range(draws):
        id, probability, weight = loader._plan().drawn
        found.append(torch.zeros_like(c).index_add(0, id, memory.weigh(id, probability, weight, c[id])[0]).flatten())
    pushes = torch.stack(found)
    return pushes.mean(0), pushes.std(0) / draws**0.5, c.flatten()


@pytest.mark.parametrize("name", ["pauc", "two-way", "auc", "push"])
def test_anchors_seen_before_anyone_to_compare_them_with(name: str) -> None:
    case = CASES[name]()
    _, loader = solver_for(case, fcco.output_memory(), draws=2)
    memory, base = loader.memory, case.loader
    table, scores = memory.begin(()), torch.randn(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert isinstance(base, fcco.PointLoader)
    anchors, others = base.block_example[:3], base._other[:3]
    for step, id in enumerate((anchors, others)):
        table.write(id, scores[id], step)
        c = memory.coefficients(id).c
    assert memory.phi is not None
    torch.testing.assert_close(c, memory.phi.everything().c[others], rtol=1e-10, atol=1e-12)


def test_first_steps_push_no_more_than_later_ones() -> None:
    """With few seen, c is large (a mean over few) and must be brought to the scale of q."""
    sizes = []
    for seen in (12, 40):
        case = CASES["pauc"]()
        solver, loader = solver_for(case, fcco.output_memory(importance=0.0, cap=None, balance=False), lr=0.0)
        everyone = whole(loader.memory)
        some = torch.arange(0, 40, 40 // seen)[:seen]
        batch = fcco.Batch(everyone.x[some], everyone.id[some], weight=everyone.weight[some] * 40 / seen,
                           probability=everyone.probability[some])  # fmt: skip
        solver.step(None, batch)
        found = loader.memory.coefficients(batch.id).c
        v, _ = loader.memory.weigh(batch.id, batch.probability, batch.weight, found)
        sizes.append(float(v.abs().sum()))
    assert sizes[0] < 2.5 * sizes[1]


def test_cap_cuts_at_so_many_times_the_mean_of_a_draw() -> None:
    v, weight = torch.tensor([1.0, -1.0, 10.0, 2.0]), torch.tensor([0.2, 0.2, 0.2, 0.4])  # the last was drawn twice
    cut, share = capped(v, weight / 0.2, 2.0)
    most = 2.0 * 14.0 / 5
    torch.testing.assert_close(cut, torch.tensor([1.0, -1.0, most, 2.0]))
    assert float(share) == 0.25


def test_balance_makes_every_column_add_up_to_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(30, 2, generator=generator, dtype=torch.float64)
    for result in (balanced(v), balanced(v, torch.tensor([4.0, 5.0]))):
        assert result.sum(0).abs().max() < 1e-12
        assert bool((result * v >= 0).all())
    assert balanced(v, torch.tensor([4.0, 5.0])).clamp(min=0).sum(0).tolist() == pytest.approx([4.0, 5.0])
    assert balanced(torch.ones(3)).abs().sum() == 0.0  # nothing to set against: no push


def test_balance_makes_no_push_much_larger() -> None:
    """A side that was drawn with next to nothing on it does not get the whole table's push."""
    for tiny in (1e-3, 1e-30, 3e-309, 0.0):
        v = torch.tensor([-1.0, tiny, -2.0], dtype=torch.float64)
        result = balanced(v, torch.tensor(3.0))
        assert bool((result.abs() <= GROWTH * v.abs() + 1e-300).all())
        assert result.sum().abs() < 1e-12


def test_cap_by_sign_spares_the_rare_class() -> None:
    v = torch.cat([torch.full((97,), 1.0), torch.full((3,), -30.0)])
    assert torch.equal(capped(v, torch.ones(100), 3.0, by_sign=True)[0], v)
    assert not torch.equal(capped(v, torch.ones(100), 3.0)[0], v)

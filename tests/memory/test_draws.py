"""Draws by q are unbiased; what the cap and the balance do to the gradient is measured and bounded."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fcco
from fcco.data import PointBlocks
from fcco.memory._output_gradients import GROWTH, balanced, capped
from fcco.memory._sampler import ImportanceSampler, Sweep, probability, renewed
from tests.memory.cases import BLOCKS, CASES, SAMPLES, WEIGHTED, engine_of, solver_for, state_of, weights, whole

NOTHING = torch.empty(0, dtype=torch.float64)


def test_draws_follow_q() -> None:
    sampler = ImportanceSampler(torch.arange(5, 10), draws=40_000)
    share = renewed(NOTHING, torch.tensor([0.0, 1.0, 0.0, 3.0, 4.0]), 1.0)
    drawn = sampler.draw(share, 0.5, torch.Generator().manual_seed(0))
    wanted = 0.1 + 0.5 * torch.tensor([0.0, 1, 0, 3, 4], dtype=torch.float64) / 8
    torch.testing.assert_close(drawn.probability, wanted[drawn.id - 5])
    frequency = (drawn.id - 5).bincount(minlength=5) / 40_000
    torch.testing.assert_close(frequency.double(), wanted, rtol=0.0, atol=0.01)


def test_nobody_waits_longer_than_two_rounds() -> None:
    """The draws that are not by importance sweep over everyone; those by importance come on top."""
    sampler = ImportanceSampler(torch.arange(30), draws=7)
    generator = torch.Generator()
    times = torch.zeros(30, dtype=torch.int64)
    for _ in range(30):  # no |c| known yet: all from the sweep
        times += sampler.draw(NOTHING, 1.0, generator).id.bincount(minlength=30)
    assert times.tolist() == [7] * 30
    share = renewed(NOTHING, torch.eye(30)[3], 1.0)
    last = torch.zeros(30)
    for step in range(300):
        last[sampler.draw(share, 0.5, generator).id] = step
        if step > 60:
            assert step - last.min() < 60  # two rounds of 30 take 120 uniform draws, 3.5 per step: 34 on average
    assert last[3] >= 295


def test_probabilities_are_a_running_mean_of_shares() -> None:
    share = renewed(NOTHING, torch.tensor([1.0, 1.0, 2.0]), 0.2)  # the first is taken as it is
    torch.testing.assert_close(share, torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64))
    share = renewed(share, torch.tensor([0.0, 300.0, 0.0]), 0.2)
    torch.testing.assert_close(share, torch.tensor([0.2, 0.4, 0.4], dtype=torch.float64))
    for nothing in (torch.zeros(3), torch.tensor([0.0, torch.inf, 0.0])):
        assert renewed(share, nothing, 0.2) is share
    torch.testing.assert_close(probability(share, share.sum(), 3, 0.5), 0.5 / 3 + 0.5 * share)
    assert renewed(share, torch.tensor([0.0, 1.0, 0.0]), 1.0).tolist() == [0.0, 1.0, 0.0]


def test_after_a_scoring_pass_the_probabilities_are_those_of_the_table() -> None:
    solver, loader = solver_for(CASES["pauc"](), fcco.output_memory(refresh=1, renewal=0.1), lr=0.3)
    for _, batch in zip(range(8), loader, strict=False):
        solver.step(batch)
    for fresh in (False, True):
        if fresh:
            loader.score()
        state = state_of(solver)
        assert state.form is not None
        c = state.form.evaluate_all(state.rows).c.abs()
        for members, share in zip(engine_of(solver).strata.members, state.shares, strict=True):
            wanted = c[members] / c[members].sum()
            assert torch.allclose(share, wanted.double()) == fresh


def test_a_sweep_ends_whatever_it_is_asked() -> None:
    sweep = Sweep(3)
    sweep.go_to(5, 7)  # beyond its end
    assert sorted(sweep.take(3, torch.Generator()).tolist()) == [0, 1, 2]
    with pytest.raises(ValueError, match="members"):
        Sweep(0)


def test_sweep_goes_on_from_its_seed_and_place() -> None:
    generator = torch.Generator().manual_seed(0)
    sweep = Sweep(10)
    other = Sweep(10)
    assert sorted(sweep.take(4, generator).tolist() + sweep.take(6, generator).tolist()) == list(range(10))
    assert sorted(sweep.take(23, generator).tolist()[:10]) == list(range(10))
    other.go_to(sweep.seed, sweep.at)
    assert other.take(7, generator).tolist() == sweep.take(7, generator).tolist()
    assert sweep.take(0, generator).tolist() == []


@pytest.mark.parametrize("name", CASES)
def test_every_batch_has_the_same_shape(name: str) -> None:
    """Even where all probability lies on one example, which is then there many times."""
    case = CASES[name]()
    solver, loader = solver_for(case, fcco.output_memory(importance=1.0, refresh=1), lr=0.0)
    state = state_of(solver)
    state.shares = [torch.eye(len(members)).double()[0] for members in engine_of(solver).strata.members]
    two_classes = isinstance(case.blocks, PointBlocks) and case.num_tasks == 1
    for batch in loader:
        assert len(batch) == loader.batch_size == case.blocks.batch_size(min(BLOCKS, case.num_blocks), SAMPLES)
        assert batch.id.unique().numel() == (2 if two_classes else 1)
        assert batch.weight is not None
        assert float(batch.weight.sum()) == pytest.approx(2.0 if two_classes else 1.0)
        if two_classes:
            assert batch.y is not None
            assert batch.y[:BLOCKS].unique().numel() == 1
        report = solver.step(batch)
        assert not report.skipped


def test_the_table_keeps_the_last_output_of_an_example_drawn_twice() -> None:
    case = CASES["pauc"]()
    case.model = torch.nn.Sequential(torch.nn.Dropout(0.5), case.model)
    solver, _ = solver_for(case, fcco.output_memory())
    ids = torch.tensor([3, 7, 3, 3, 7])
    seen: list[Tensor] = []
    outputs = case.outputs
    case.outputs = lambda x: seen.append(outputs(x)) or seen[-1]  # type: ignore[method-assign, func-returns-value]
    share = torch.full((5,), 0.2, dtype=torch.float64)
    solver.step(fcco.data.Batch(case.data.source.take(ids), ids, weight=share, probability=share))
    values = state_of(solver).values
    assert values is not None
    assert seen[0][0].item() != seen[0][3].item()
    assert values[[3, 7]].tolist() == seen[0].squeeze(1)[[3, 4]].tolist()


@pytest.mark.parametrize("name", ["pauc", "ap", "push", "pauc-tasks", "cox", "tasks", "contrastive"])
def test_unbiased_without_cap_and_balance(name: str) -> None:
    mean, error, c = _mean_gradient(name, fcco.output_memory(importance=0.5, cap=None, balance=False))
    assert bool(((mean - c).abs() < 5 * error + 1e-9).all())


def test_unbiased_with_weights() -> None:
    method = fcco.output_memory(importance=0.5, cap=None, balance=False)
    mean, error, c = _mean_gradient("pauc", method, weight=weights())
    assert bool(((mean - c).abs() < 5 * error + 1e-9).all())


@pytest.mark.parametrize("name", ["pauc", "ap"])
def test_bias_of_cap_and_balance_is_small(name: str) -> None:
    mean, _, c = _mean_gradient(name, fcco.output_memory(importance=0.5, cap=3.0))
    assert torch.cosine_similarity(mean, c, dim=0) > 0.95
    assert (mean - c).norm() / c.norm() < 0.35


def _mean_gradient(
    name: str, method: fcco.Method, draws: int = 1500, weight: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean over draws of the output gradients at a fresh table, its standard error, and c itself."""
    case = WEIGHTED[name](weight).double()
    solver, loader = solver_for(case, method, lr=0.0, steps_per_epoch=draws)
    loader.score()  # the table is fresh and stays so
    state = state_of(solver)
    assert state.form is not None
    assert state.table is not None
    c = state.form.evaluate_all(state.rows).c
    weigher = engine_of(solver)._weigher
    found = []
    for batch in loader:
        assert batch.probability is not None
        assert batch.weight is not None
        v = weigher.weigh(state.table, batch.id, batch.probability, batch.weight, c[batch.id], state.total).v
        found.append(torch.zeros_like(c).index_add(0, batch.id, v).flatten())
    gradients = torch.stack(found)
    return gradients.mean(0), gradients.std(0) / draws**0.5, c.flatten()


@pytest.mark.parametrize("name", ["pauc", "two-way", "auc", "push"])
def test_anchors_seen_before_anyone_to_compare_them_with(name: str) -> None:
    case = CASES[name]()
    solver, _ = solver_for(case, fcco.output_memory(refresh=100), lr=0.0)
    own, other = (members[:3] for members in engine_of(solver).strata.members)
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    for id in (own, other):
        solver.step(fcco.data.Batch(case.data.source.take(id), id, weight=third, probability=third))
    state = state_of(solver)
    assert state.form is not None
    assert bool(state.rows[0][:3].isfinite().all())  # the first three blocks are the first three of their class
    torch.testing.assert_close(state.rows, state.form.evaluate_all(state.rows).rows, rtol=1e-10, atol=1e-12)


def test_first_steps_are_no_larger_than_later_ones() -> None:
    """With few seen, c is large (a mean over few) and must be brought to the scale of q."""
    sizes = []
    for seen in (12, 40):
        case = CASES["pauc"]()
        solver, _ = solver_for(case, fcco.output_memory(importance=0.0, cap=None, balance=False), lr=0.0)
        everyone = whole(case)
        some = torch.arange(0, 40, 40 // seen)[:seen]
        weight = everyone.weight[some] * 40 / seen
        batch = fcco.data.Batch(everyone.x[some], everyone.id[some], weight=weight,
                                probability=everyone.probability[some])  # fmt: skip
        solver.step(batch)
        assert solver.z is not None
        sizes.append(float(torch.cat([z.flatten() for z in solver.z]).norm()))
    assert sizes[0] < 2.5 * sizes[1]


def test_batches_of_ones_own_loader_are_taken_for_uniform_draws() -> None:
    """data.batch(ids, x): everyone once gives the exact gradient, as a batch of all would."""
    case = CASES["pauc"]()
    found = []
    for own in (False, True):
        solver, _ = solver_for(case, fcco.output_memory(importance=0.0, cap=None, balance=False), lr=0.0)
        batch = whole(case)
        if own:
            batch = case.data.batch(batch.id, batch.x)
        solver.step(batch)
        assert solver.z is not None
        found.append([z.clone() for z in solver.z])
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)


def test_cap_cuts_at_so_many_times_the_mean_of_a_draw() -> None:
    v = torch.tensor([1.0, -1.0, 10.0, 2.0])
    weight = torch.tensor([0.2, 0.2, 0.2, 0.4])  # the last was drawn twice
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
    assert balanced(torch.ones(3)).abs().sum() == 0.0  # nothing to set against: no gradient


def test_balance_makes_no_gradient_much_larger() -> None:
    """A side that was drawn with next to nothing on it does not get the whole table's gradient."""
    for tiny in (1e-3, 1e-30, 3e-309, 0.0):
        v = torch.tensor([-1.0, tiny, -2.0], dtype=torch.float64)
        result = balanced(v, torch.tensor(3.0))
        assert bool((result.abs() <= GROWTH * v.abs() + 1e-300).all())
        assert result.sum().abs() < 1e-12


def test_cap_by_sign_spares_the_rare_class() -> None:
    v = torch.cat([torch.full((97,), 1.0), torch.full((3,), -30.0)])
    assert torch.equal(capped(v, torch.ones(100), 3.0, by_sign=True)[0], v)
    assert not torch.equal(capped(v, torch.ones(100), 3.0)[0], v)

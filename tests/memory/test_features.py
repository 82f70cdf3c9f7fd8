"""A table of features: parts of any size give the same, rows stay bounded, pushes are capped by their length."""

from __future__ import annotations

import pytest
import torch

import fcco
from fcco.memory import _features as features
from fcco.memory._features import ContrastivePhi, Features, contrastive_phi
from fcco.memory._generic import GenericPhi
from fcco.memory._table import OutputTable
from fcco.objectives import GlobalContrastive
from tests.memory.cases import CASES, N, solver_for, whole

NAMES = ["contrastive", "contrastive-modal", "contrastive-learned", "contrastive-each"]


def tables(name: str) -> tuple[OutputTable, ContrastivePhi, GenericPhi]:
    case, table = CASES[name](), OutputTable(N, (2, 4), like=torch.zeros(0, dtype=torch.float64))
    fast = contrastive_phi(case.objective, case.loader, table)
    assert fast is not None
    return table, fast, GenericPhi(case.objective, case.loader, table)


def draw(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, 2, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", NAMES)
def test_parts_of_any_size_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(anchors: Features, others: int) -> list[slice]:
        return [slice(at, at + 7) for at in range(0, anchors.id.shape[0], 7)]

    monkeypatch.setattr(features, "_pieces", small)
    table, fast, slow = tables(name)
    table.write(torch.arange(N), draw(N, 0), 0)
    wanted = slow.everything()
    for found in (fast.everything(), fast.at(torch.arange(N))):
        torch.testing.assert_close(found.c, wanted.c, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found.f, wanted.f, rtol=1e-10, atol=1e-10)
        for mine, theirs in zip(found.own, wanted.own, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_a_table_that_fills_up(name: str) -> None:
    """Nobody, one alone, a few, all: what has nobody to be compared with takes no part."""
    table, fast, slow = tables(name)
    assert not fast.everything().f.numel()
    for step, id in enumerate(torch.arange(N).split([1, 1, 3, N - 5])):
        table.write(id, draw(len(id), step), step)
        found = fast.at(id)
        assert bool(torch.isfinite(found.c).all())
        assert found.f.shape[0] == (0 if step == 0 else int(table.seen.sum()))
    torch.testing.assert_close(fast.everything().c, slow.everything().c, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("temperature", [0.1, 0.001])
def test_half_and_single_precision_around_it_change_little(temperature: float) -> None:
    """Features of a network in single precision, within autocast, against double precision."""
    h = draw(N, 0).float()
    found = []
    for dtype, half in ((torch.float64, False), (torch.float32, False), (torch.float32, True)):
        objective = GlobalContrastive(torch.nn.Identity(), N, temperature=temperature)
        table = OutputTable(N, (2, 4), like=torch.zeros(0, dtype=dtype))
        table.write(torch.arange(N), h.to(dtype), 0)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=half):
            found.append(ContrastivePhi(objective, table).at(torch.arange(N)).c.double())
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-5, atol=1e-6 * float(found[0].abs().max()))


def test_undo_puts_the_rows_back() -> None:
    table, fast, _ = tables("contrastive-learned")
    table.write(torch.arange(N), draw(N, 0), 0)
    fast.everything()
    before, id = fast.rows[0].clone(), torch.arange(3, 9)
    table.write(id, draw(6, 1), 1)
    fast.at(id)
    assert not torch.equal(fast.rows[0], before)
    fast.undo()
    assert torch.equal(fast.rows[0], before)


def test_a_row_that_is_too_small_makes_no_push_explode() -> None:
    """A fresh feature beside a stale anchor: g of the anchor is at least what the fresh one adds."""
    objective = GlobalContrastive(torch.nn.Identity(), 4, temperature=0.001)
    table = OutputTable(4, (2, 3), like=torch.zeros(0, dtype=torch.float64))
    corners = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 2]].unsqueeze(1).expand(4, 2, 3)
    table.write(torch.arange(4), corners, 0)
    phi = ContrastivePhi(objective, table)
    phi.everything()
    id = torch.tensor([1, 2])
    table.write(id, torch.eye(3, dtype=torch.float64)[[0, 1]].unsqueeze(1).expand(2, 2, 3), 1)  # 1 falls upon 0
    c = phi.at(id).c
    assert bool(torch.isfinite(c).all())
    assert float(c.norm(dim=2).max()) < 10.0  # exp(1/0.001) without the bound


def test_features_are_capped_by_their_length() -> None:
    case = CASES["contrastive"]()
    _, loader = solver_for(case, fcco.output_memory(cap=2.0, importance=0.0))
    memory, id = loader.memory, torch.arange(8)
    memory.begin((2, 4)).write(torch.arange(N), draw(N, 0), 0)
    c = draw(8, 1)
    c[3] *= 100.0
    share = torch.full((8,), 1 / 8, dtype=torch.float64)
    v, cut = memory.weigh(id, share, share, c)
    assert float(cut) == pytest.approx(1 / 8)
    torch.testing.assert_close(v[[0, 1, 2, 4, 5, 6, 7]], c[[0, 1, 2, 4, 5, 6, 7]])
    assert float(torch.cosine_similarity(v[3].flatten(), c[3].flatten(), dim=0)) == pytest.approx(1.0)
    lengths = c.flatten(1).norm(dim=1)
    assert float(v[3].norm()) == pytest.approx(float(2.0 * lengths.mean()))


def test_the_loader_says_that_features_do_not_pay() -> None:
    case = CASES["contrastive"]()
    solver = fcco.Solver(case.objective, torch.optim.SGD(case.objective.parameters(), lr=0.1), fcco.output_memory())
    with pytest.warns(UserWarning, match="does not pay for features"):
        loader = fcco.memory.MemoryLoader(solver, case.loader)
    solver.step(None, whole(loader.memory))

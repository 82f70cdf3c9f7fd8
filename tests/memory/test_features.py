"""A table of features: parts of any size give the same, rows stay bounded, gradients are capped by their length."""

from __future__ import annotations

import pytest
import torch

import fcco
from fcco.data import Examples
from fcco.memory import OutputTable
from fcco.memory.forms import ContrastiveForm, GenericForm, _features, form_of
from fcco.memory.forms._features import Features
from fcco.objectives import GlobalContrastive
from tests.memory.cases import CASES, N, engine_of, solver_for, whole

NAMES = ["contrastive", "contrastive-modal", "contrastive-learned", "contrastive-each"]


def tables(name: str) -> tuple[OutputTable, ContrastiveForm, GenericForm]:
    case = CASES[name]()
    table = OutputTable.empty(N, (2, 4), like=torch.zeros(0, dtype=torch.float64))
    fast = form_of(case, table)
    assert isinstance(fast, ContrastiveForm)
    return table, fast, GenericForm(case, table)


def contrastive(count: int, temperature: float, table: OutputTable) -> ContrastiveForm:
    data = Examples((torch.zeros(count, 3), torch.zeros(count, 3)))
    form = form_of(GlobalContrastive(torch.nn.Identity(), data, temperature=temperature), table)
    assert isinstance(form, ContrastiveForm)
    return form


def draw(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, 2, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", NAMES)
def test_parts_of_any_size_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(anchors: Features, others: int) -> list[slice]:
        return [slice(at, at + 7) for at in range(0, len(anchors), 7)]

    monkeypatch.setattr(_features, "_pieces", small)
    table, fast, slow = tables(name)
    table.write(torch.arange(N), draw(N, 0), 0)
    wanted = slow.evaluate_all([])
    for found in (fast.evaluate_all(fast.start_rows()), fast.evaluate(torch.arange(N), fast.start_rows())):
        torch.testing.assert_close(found.c, wanted.c, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found.f, wanted.f, rtol=1e-10, atol=1e-10)
        for mine, theirs in zip(found.param_gradients, wanted.param_gradients, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_a_table_that_fills_up(name: str) -> None:
    """Nobody, one alone, a few, all: what has nobody to be compared with takes no part."""
    table, fast, slow = tables(name)
    rows = fast.start_rows()
    assert not fast.evaluate_all(rows).f.numel()
    for step, id in enumerate(torch.arange(N).split([1, 1, 3, N - 5])):
        table.write(id, draw(len(id), step), step)
        found = fast.evaluate(id, rows)
        rows = found.rows
        assert bool(torch.isfinite(found.c).all())
        assert found.f.shape[0] == (0 if step == 0 else int(table.seen.sum()))
    torch.testing.assert_close(fast.evaluate_all(rows).c, slow.evaluate_all([]).c, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("temperature", [0.1, 0.001])
def test_half_and_single_precision_around_it_change_little(temperature: float) -> None:
    """Features of a network in single precision, within autocast, against double precision."""
    h = draw(N, 0).float()
    found = []
    for dtype, half in ((torch.float64, False), (torch.float32, False), (torch.float32, True)):
        table = OutputTable.empty(N, (2, 4), like=torch.zeros(0, dtype=dtype))
        table.write(torch.arange(N), h.to(dtype), 0)
        form = contrastive(N, temperature, table)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=half):
            found.append(form.evaluate(torch.arange(N), form.start_rows()).c.double())
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-5, atol=1e-6 * float(found[0].abs().max()))


def test_an_evaluation_leaves_the_given_rows_alone() -> None:
    table, fast, _ = tables("contrastive-learned")
    table.write(torch.arange(N), draw(N, 0), 0)
    rows = fast.evaluate_all(fast.start_rows()).rows
    before = rows[0].clone()
    id = torch.arange(3, 9)
    table.write(id, draw(6, 1), 1)
    found = fast.evaluate(id, rows)
    assert not torch.equal(found.rows[0], before)
    assert torch.equal(rows[0], before)


def test_a_row_that_is_too_small_makes_no_gradient_explode() -> None:
    """A fresh feature beside a stale anchor: g of the anchor is at least what the fresh one adds."""
    table = OutputTable.empty(4, (2, 3), like=torch.zeros(0, dtype=torch.float64))
    corners = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 2]].unsqueeze(1).expand(4, 2, 3)
    table.write(torch.arange(4), corners, 0)
    form = contrastive(4, 0.001, table)
    rows = form.evaluate_all(form.start_rows()).rows
    id = torch.tensor([1, 2])
    table.write(id, torch.eye(3, dtype=torch.float64)[[0, 1]].unsqueeze(1).expand(2, 2, 3), 1)  # 1 falls upon 0
    c = form.evaluate(id, rows).c
    assert bool(torch.isfinite(c).all())
    assert float(c.norm(dim=2).max()) < 10.0  # exp(1/0.001) without the bound


def test_features_are_capped_by_their_length() -> None:
    case = CASES["contrastive"]()
    solver, _ = solver_for(case, fcco.output_memory(cap=2.0, importance=0.0))
    id = torch.arange(8)
    table = OutputTable.empty(N, (2, 4), like=torch.zeros(0, dtype=torch.float64))
    table.write(torch.arange(N), draw(N, 0), 0)
    c = draw(8, 1)
    c[3] *= 100.0
    share = torch.full((8,), 1 / 8, dtype=torch.float64)
    v, cut = engine_of(solver)._weigher.weigh(table, id, share, share, c, None)
    assert float(cut) == pytest.approx(1 / 8)
    torch.testing.assert_close(v[[0, 1, 2, 4, 5, 6, 7]], c[[0, 1, 2, 4, 5, 6, 7]])
    assert float(torch.cosine_similarity(v[3].flatten(), c[3].flatten(), dim=0)) == pytest.approx(1.0)
    lengths = c.flatten(1).norm(dim=1)
    assert float(v[3].norm()) == pytest.approx(float(2.0 * lengths.mean()))


def test_the_loader_says_that_features_do_not_pay() -> None:
    case = CASES["contrastive"]()
    solver = fcco.Solver(case, torch.optim.SGD(case.parameters(), lr=0.1), fcco.output_memory())
    with pytest.warns(UserWarning, match="does not pay for features") as caught:
        solver.loader(blocks=2, samples=4)
    assert caught[0].filename == __file__
    solver.step(whole(case))

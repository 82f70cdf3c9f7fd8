"""The memory's gradient is the exact one where the table is fresh and everyone is drawn; fast forms equal pairs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fcco
from fcco.memory._generic import GenericPhi
from fcco.memory._kernels import Exponential, Polynomial, exponential_of, extremes
from fcco.memory._memory import phi_of
from fcco.memory._table import OutputTable
from fcco.objectives._surrogates import Square, SquaredHinge
from tests.memory.cases import CASES, FAST, TASKS, N, exact_gradient, solver_for, whole


def filled(shape: tuple[int, ...], missing: int = 0) -> OutputTable:
    generator = torch.Generator().manual_seed(7)
    table = OutputTable(N, shape, like=torch.zeros(0, dtype=torch.float64))
    seen = torch.randperm(N, generator=generator)[missing:]
    table.write(seen, 1.5 * torch.randn(N - missing, *shape, generator=generator, dtype=torch.float64), 1)
    return table


def shape_of(name: str) -> tuple[int, ...]:
    """Of one output."""
    if name.startswith("contrastive"):
        return (2, 4)
    return (4,) if name == "nca" else (TASKS,) if "tasks" in name and name != "tasks-one" else ()


@pytest.mark.parametrize("name", CASES)
def test_gradient_is_exact_when_everyone_is_drawn(name: str) -> None:
    case = CASES[name]()
    solver, loader = solver_for(case, fcco.output_memory(importance=0.0, cap=None, balance=False), draws=None)
    wanted = exact_gradient(case)
    solver.step(None, whole(loader.memory))
    for p, gradient in zip(solver.parameters, wanted, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad, gradient, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_balancing_changes_nothing_then(name: str) -> None:
    case = CASES[name]()
    solver, loader = solver_for(case, fcco.output_memory(importance=0.0, cap=None, balance=True))
    wanted = exact_gradient(case)
    solver.step(None, whole(loader.memory))
    for p, gradient in zip(solver.parameters, wanted, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad, gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("missing", [0, 15])
@pytest.mark.parametrize("name", FAST)
def test_fast_form_equals_the_generic_one(name: str, missing: int) -> None:
    case = FAST[name]()
    table = filled(shape_of(name), missing)
    fast, slow = phi_of(case.objective, case.loader, table), GenericPhi(case.objective, case.loader, table, chunk=16)
    assert not isinstance(fast, GenericPhi)
    mine, theirs = fast.everything(), slow.everything()
    torch.testing.assert_close(mine.c, theirs.c, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(mine.f.sort().values, theirs.f.sort().values, rtol=1e-10, atol=1e-10)
    for a, b in zip(mine.own, theirs.own, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    some = torch.arange(N)[table.seen][::3]
    torch.testing.assert_close(fast.at(some).c, theirs.c[some], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("hinge", [True, False])
def test_sorted_sums_equal_pairs(hinge: bool) -> None:
    generator = torch.Generator().manual_seed(8)
    q, p = (10 * torch.randn(n, generator=generator, dtype=torch.float64) for n in (300, 500))
    w = torch.rand(500, 2, generator=generator, dtype=torch.float64)
    p[100:110] = p[0]  # ties
    kernel = Polynomial(1.0, 0.5, hinge)
    for mine, theirs in zip(kernel.by_sorting(q, p, w), kernel.one_by_one(q, p, w), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("loss", [SquaredHinge(), Square()])
def test_exponentials_in_chunks_equal_pairs(loss: SquaredHinge | Square) -> None:
    generator = torch.Generator().manual_seed(9)
    a = 2 * torch.randn(900, generator=generator, dtype=torch.float64)
    s = 2 * torch.randn(1100, generator=generator, dtype=torch.float64)  # enough for several chunks
    w = torch.rand(1100, 1, generator=generator, dtype=torch.float64)
    kernel = exponential_of(loss, 0.2)
    log_g, slope = kernel.rows(a, s, w)
    e = loss(s - a.unsqueeze(1)) / 0.2 + w.log().T
    torch.testing.assert_close(log_g.squeeze(1), e.logsumexp(1), rtol=1e-10, atol=1e-10)
    mean = (e.softmax(1) * _exponent(kernel, s - a.unsqueeze(1))[1]).sum(1)
    torch.testing.assert_close(slope.squeeze(1), mean, rtol=1e-10, atol=1e-10)
    b = torch.rand(900, 1, generator=generator, dtype=torch.float64)
    pushes = _columns(kernel, s, a, log_g, b)
    torch.testing.assert_close(kernel.columns(s, a, log_g, b).squeeze(1), pushes, rtol=1e-10, atol=1e-10)


def _exponent(kernel: Exponential, x: Tensor) -> tuple[Tensor, Tensor]:
    """e(x) and e'(x)."""
    x = (x + kernel.margin).clamp(min=0) if kernel.hinge else x + kernel.margin
    return kernel.scale * x.square(), 2.0 * kernel.scale * x


def _columns(kernel: Exponential, s: Tensor, a: Tensor, log_g: Tensor, b: Tensor) -> Tensor:
    e, d = _exponent(kernel, s.unsqueeze(1) - a)
    return ((e - log_g.squeeze(1)).exp() * d) @ b.squeeze(1)


@pytest.mark.parametrize("hinge", [True, False])
@pytest.mark.parametrize("classes", [(5, 7), (0, 7), (5, 0)])
def test_the_most_that_one_adds_is_found_at_the_ends(hinge: bool, classes: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    own = torch.arange(sum(classes)) < classes[0]
    s, a = (3 * torch.randn(n, generator=generator, dtype=torch.float64) for n in (sum(classes), 20))
    w = torch.where(own.unsqueeze(1), torch.tensor([0.1, 0.2]), torch.tensor([0.0, 0.05])).double()
    x = s - a.unsqueeze(1)
    margin = (x + 1.0).clamp(min=0.0) if hinge else x + 1.0
    for kernel, k in ((Polynomial(1.0, 0.5, hinge), 0.5 * margin.square()),
                      (Exponential(1.0, 0.5, hinge), (0.5 * margin.square()).exp())):  # fmt: skip
        wanted = (k.unsqueeze(2) * w).amax(1)
        found = kernel.alone(extremes(s, w, own), a)
        torch.testing.assert_close(found.exp(), wanted, rtol=1e-12, atol=1e-300)
        if not classes[0]:
            torch.testing.assert_close(kernel.alone(extremes(s, w, None), a), found, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("name", CASES)
def test_shift_of_all_outputs_changes_nothing(name: str) -> None:
    case = CASES[name]()
    table = filled(shape_of(name))
    phi = phi_of(case.objective, case.loader, table)
    before = phi.everything()
    if not case.objective.shift_invariant:
        assert name.startswith(("tasks", "contrastive", "nca"))
        return
    groups = getattr(case.objective, "item_query", torch.zeros(N, dtype=torch.int64))
    for group in groups.unique():
        assert before.c[groups == group].sum(0).abs().max() < 1e-10
        table.values[groups == group] += 3.0 * float(group) + 1.0
    after = phi.everything()
    torch.testing.assert_close(after.c, before.c, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(after.f, before.f, rtol=1e-9, atol=1e-10)

"""The memory's gradient is the exact one where the table is fresh and everyone is drawn; fast forms equal pairs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fcco
from fcco.memory import OutputTable
from fcco.memory._strata import Strata
from fcco.memory.forms import Evaluation, GenericForm, form_of
from fcco.memory.forms._exponential import Exponential
from fcco.memory.forms._kernels import Kernel, extremes
from fcco.memory.forms._polynomial import Polynomial
from fcco.objectives import Square, SquaredHinge
from tests.memory.cases import (
    CASES,
    FAST,
    TASKS,
    WEIGHTED,
    WEIGHTED_FAST,
    Case,
    N,
    exact_gradient,
    solver_for,
    weights,
    whole,
)


def filled(case: Case, shape: tuple[int, ...], missing: int = 0) -> OutputTable:
    generator = torch.Generator().manual_seed(7)
    counted = Strata(case.blocks, torch.device("cpu")).counted
    table = OutputTable.empty(N, shape, like=torch.zeros(0, dtype=torch.float64), counted=counted)
    seen = torch.randperm(N, generator=generator)[missing:]
    table.write(seen, 1.5 * torch.randn(N - missing, *shape, generator=generator, dtype=torch.float64), 1)
    table.recount()
    return table


def shape_of(name: str) -> tuple[int, ...]:
    """Of one output."""
    if name.startswith("contrastive"):
        return (2, 4)
    if name == "nca":
        return (4,)
    if "tasks" in name and name != "tasks-one":
        return (TASKS,)
    return ()


def weighted(name: str) -> Case:
    return WEIGHTED[name](weights()).double()


MAKERS: dict[str, Callable[[str], Case]] = {"plain": lambda name: CASES[name](), "weighted": weighted}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("name", CASES)
def test_gradient_is_exact_when_everyone_is_drawn(name: str, kind: str) -> None:
    case = MAKERS[kind](name)
    solver, _ = solver_for(case, fcco.output_memory(importance=0.0, cap=None, balance=False))
    wanted = exact_gradient(case)
    solver.step(whole(case))
    for p, gradient in zip(solver.parameters, wanted, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad, gradient, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_balancing_changes_nothing_then(name: str) -> None:
    case = CASES[name]()
    solver, _ = solver_for(case, fcco.output_memory(importance=0.0, cap=None, balance=True))
    wanted = exact_gradient(case)
    solver.step(whole(case))
    for p, gradient in zip(solver.parameters, wanted, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad, gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["pauc", "ap", "ndcg", "tasks", "contrastive-learned"])
def test_an_example_drawn_twice_counts_twice_half_as_much(name: str) -> None:
    """Everyone, and some of them once more: the same gradient where each draw has half the weight."""
    case = CASES[name]()
    solver, _ = solver_for(case, fcco.output_memory(importance=0.0, cap=None, balance=False))
    wanted = exact_gradient(case)
    batch = whole(case)
    assert batch.weight is not None
    twice = torch.arange(len(batch)) < 9
    place = torch.cat([torch.arange(len(batch)), twice.nonzero()[:, 0]])
    weight = torch.where(twice, batch.weight / 2, batch.weight)[place]
    x = case.data.source.take(batch.id[place])
    solver.step(fcco.data.Batch(x, batch.id[place], weight=weight, probability=batch.probability[place]))
    for p, gradient in zip(solver.parameters, wanted, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("missing", [0, 15])
@pytest.mark.parametrize("name", FAST)
def test_fast_form_equals_the_generic_one(name: str, missing: int, kind: str) -> None:
    case = MAKERS[kind](name)
    table = filled(case, shape_of(name), missing)
    fast = form_of(case, table)
    slow = GenericForm(case, table, chunk=16)
    assert not isinstance(fast, GenericForm)
    mine = fast.evaluate_all(fast.start_rows())
    theirs = slow.evaluate_all([])
    torch.testing.assert_close(mine.c, theirs.c, rtol=1e-10, atol=1e-10)
    values = [of_those_that_took_part(found) for found in (mine, theirs)]
    longest = max(len(f) for f in values)  # blocks of weight 0 have f = 0, where they take part
    values = [torch.nn.functional.pad(f, (0, longest - len(f))).sort().values for f in values]
    torch.testing.assert_close(*values, rtol=1e-10, atol=1e-10)
    for a, b in zip(mine.param_gradients, theirs.param_gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    some = torch.arange(N)[table.seen & table.counted][::3]
    found = fast.evaluate(some, mine.rows)
    torch.testing.assert_close(found.c, theirs.c[some], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(slow.evaluate(some, []).c, theirs.c[some], rtol=1e-10, atol=1e-10)


def of_those_that_took_part(found: Evaluation) -> Tensor:
    """Their f."""
    if found.part is None:
        return found.f
    return found.f[found.part]


@pytest.mark.parametrize("name", [name for name in WEIGHTED_FAST if not name.startswith("contrastive")])
def test_weight_two_is_two_copies(name: str) -> None:
    """c of an example of weight 2 is the sum of those of its copies; examples are never compared with themselves."""
    weight = torch.ones(N, dtype=torch.float64)
    weight[::4] = 2.0
    double = WEIGHTED[name](weight).double()
    copies = torch.arange(N).repeat_interleave(weight.long())
    apart = copied(name, copies)
    values = torch.randn(N, *shape_of(name), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = []
    for case, outputs in ((double, values), (apart, values[copies])):
        table = OutputTable.empty(len(outputs), shape_of(name), like=outputs)
        table.write(torch.arange(len(outputs)), outputs, 0)
        form = form_of(case, table)
        found.append(form.evaluate_all(form.start_rows()).c)
    added = torch.zeros_like(found[0]).index_add(0, copies, found[1])
    torch.testing.assert_close(found[0], added, rtol=1e-9, atol=1e-10)


def copied(name: str, rows: Tensor) -> Case:
    """The problem over copies of its examples."""
    case = CASES[name]()
    data = case.data
    twin = object.__new__(type(data))
    twin.__dict__.update(data.__dict__)
    twin.source = data.source.subset(rows)
    twin.num_examples = len(rows)
    for field in data.per_example:
        value = getattr(data, field)
        if value is not None:
            setattr(twin, field, value[rows])
    return remade(case, twin)


def remade(case: Case, data: fcco.data.Structure) -> Case:
    """The same objective over other data."""
    import inspect

    options = {}
    for option in list(inspect.signature(type(case).__init__).parameters)[3:]:
        if hasattr(case, option):
            options[option] = getattr(case, option)
    if isinstance(case, fcco.objectives.MultiTaskAUC):
        options = {"loss": case.loss, "trained_centers": case.a is not None, "block_weight": case.task_weight}
    return type(case)(case.model, data, **options).double()


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
    kernel = loss.exponential_kernel(0.2)
    assert isinstance(kernel, Exponential)
    log_g, slope = kernel.rows(a, s, w)
    e = loss(s - a.unsqueeze(1)) / 0.2 + w.log().T
    torch.testing.assert_close(log_g.squeeze(1), e.logsumexp(1), rtol=1e-10, atol=1e-10)
    mean = (e.softmax(1) * _exponent(kernel, s - a.unsqueeze(1))[1]).sum(1)
    torch.testing.assert_close(slope.squeeze(1), mean, rtol=1e-10, atol=1e-10)
    b = torch.rand(900, 1, generator=generator, dtype=torch.float64)
    wanted = _columns(kernel, s, a, log_g, b)
    torch.testing.assert_close(kernel.columns(s, a, log_g, b).squeeze(1), wanted, rtol=1e-10, atol=1e-10)


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
    kernels: list[tuple[Kernel, Tensor]] = [
        (Polynomial(1.0, 0.5, hinge), 0.5 * margin.square()),
        (Exponential(1.0, 0.5, hinge), (0.5 * margin.square()).exp()),
    ]
    for kernel, k in kernels:
        wanted = (k.unsqueeze(2) * w).amax(1)
        found = kernel.largest(extremes(s, w, own), a)
        torch.testing.assert_close(found.exp(), wanted, rtol=1e-12, atol=1e-300)
        if not classes[0]:
            torch.testing.assert_close(kernel.largest(extremes(s, w, None), a), found, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("name", CASES)
def test_shift_of_all_outputs_changes_nothing(name: str) -> None:
    case = CASES[name]()
    table = filled(case, shape_of(name))
    form = form_of(case, table)
    before = form.evaluate_all(form.start_rows())
    if not case.shift_invariant:
        assert name.startswith(("tasks", "contrastive", "nca"))
        return
    groups = getattr(case, "item_query", torch.zeros(N, dtype=torch.int64))
    for group in groups.unique():
        assert before.c[groups == group].sum(0).abs().max() < 1e-10
        table.values[groups == group] += 3.0 * float(group) + 1.0
    after = form.evaluate_all(before.rows)
    torch.testing.assert_close(after.c, before.c, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(after.f, before.f, rtol=1e-9, atol=1e-10)

"""Many tasks at once give what each of them gives alone: sums over pairs, and forms against the generic one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fcco.data import Points
from fcco.memory import OutputTable
from fcco.memory.forms import GenericForm, _exponential, form_of
from fcco.memory.forms._exponential import Exponential
from fcco.memory.forms._form import OuterValues
from fcco.memory.forms._kernels import Anchors, Asked, Compared, Kernel, Ranked, between
from fcco.memory.forms._pairwise_tasks import PairwiseTasksForm
from fcco.memory.forms._polynomial import Polynomial
from fcco.objectives import AveragePrecision, OutputObjective, PartialAUC, PNormPush, Square, SquaredHinge

TASKS, N, DRAWS = 7, 60, 12
KERNELS: dict[str, Kernel] = {
    "polynomial, hinge": Polynomial(1.0, 0.5, True),
    "polynomial": Polynomial(1.0, 0.5, False),
    "polynomial, sorted": Polynomial(1.0, 0.5, True, pairs=1),
    "polynomial, no hinge, sorted": Polynomial(1.0, 0.5, False, pairs=1),
    "exponential, hinge": Exponential(1.0, 2.0, True),
    "exponential": Exponential(1.0, 0.3, False),
}


class Problem:
    """Scores of T tasks, who is compared in each, and the draws of a step."""

    def __init__(self, rate: float) -> None:
        generator = torch.Generator().manual_seed(3)
        draw = torch.rand(TASKS, N, generator=generator)
        self.own = draw < rate * torch.linspace(0.5, 1.5, TASKS).unsqueeze(1)
        self.own[:, 0] = True
        self.other = ~self.own & (draw < 0.95)
        self.s = 1.5 * torch.randn(TASKS, N, generator=generator, dtype=torch.float64)
        self.s[:, 20:23] = self.s[:, 20:21]  # ties
        self.w = torch.rand(TASKS, N, 1, generator=generator, dtype=torch.float64) * self.other.unsqueeze(2)
        self.task, self.example = self.own.nonzero().unbind(1)
        self.anchors = Anchors(self.s[self.task, self.example], self.task, self.example)
        self.compared = Compared.of(self.other, self.task)
        self.id = torch.randperm(N, generator=generator)[:DRAWS]
        self.log_g = torch.randn(len(self.task), 1, generator=generator, dtype=torch.float64)
        self.b = torch.rand(len(self.task), 1, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("rate", [0.1, 0.6])
@pytest.mark.parametrize("name", KERNELS)
def test_rows_of_drawn_anchors(name: str, rate: float) -> None:
    """With few anchors among the draws, and with many."""
    kernel = KERNELS[name]
    problem = Problem(rate)
    mask = problem.own[:, problem.id]
    asked = Asked(problem.s[:, problem.id], mask, int(mask.sum()) + 2)
    assert (2 * asked.most > mask.numel()) == (rate > 0.5)  # both ways are taken
    log_g, slope = kernel.task_rows(asked, Ranked(problem.s), problem.w, problem.compared)
    for task in range(TASKS):
        there = problem.other[task]
        mine = mask[task]
        if not bool(mine.any()):
            continue
        wanted = kernel.rows(asked.a[task, mine], problem.s[task, there], problem.w[task, there])
        torch.testing.assert_close(log_g[task, mine], wanted[0], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(slope[task, mine], wanted[1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("budget", [1, 100, 1 << 16])
@pytest.mark.parametrize("name", KERNELS)
def test_columns_of_drawn_others(name: str, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_exponential, "BUDGET", budget)
    kernel = KERNELS[name]
    problem = Problem(0.3)
    q = problem.s[:, problem.id]
    found = kernel.task_columns(q, problem.anchors, Ranked(problem.s), problem.log_g, problem.b)
    for task in range(TASKS):
        mine = problem.task == task
        wanted = kernel.columns(q[task], problem.anchors.a[mine], problem.log_g[mine], problem.b[mine])
        torch.testing.assert_close(found[task], wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("budget", [1, 100, 1000, 1 << 16])
@pytest.mark.parametrize("name", KERNELS)
def test_everything_at_once(name: str, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a task, a task alone, several whole ones."""
    monkeypatch.setattr(_exponential, "BUDGET", budget)
    kernel = KERNELS[name]
    problem = Problem(0.3)

    def weigh(some: slice, log_g: Tensor) -> OuterValues:
        return OuterValues(log_g.squeeze(1), problem.b[some], [log_g.sum()])

    found = kernel.task_all(problem.anchors, Ranked(problem.s), problem.w, problem.compared, weigh)
    for task in range(TASKS):
        mine = problem.task == task
        there = problem.other[task]
        a = problem.anchors.a[mine]
        s = problem.s[task, there]
        w = problem.w[task, there]
        log_g, slope = kernel.rows(a, s, w)
        torch.testing.assert_close(found.log_g[mine], log_g, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found.slope[mine], slope, rtol=1e-10, atol=1e-10)
        wanted = torch.zeros(N, dtype=torch.float64)
        wanted[there] = (kernel.columns(s, a, log_g, problem.b[mine]) * w).squeeze(1)
        torch.testing.assert_close(found.by_other[task], wanted, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.outer.f, found.log_g.squeeze(1))
    torch.testing.assert_close(found.outer.param_gradients[0], found.log_g.sum(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("budget", [1, 30, 200, 10**6])
def test_pieces_hold_every_anchor_once(budget: int) -> None:
    problem = Problem(0.3)
    at = 0
    for some, tasks, size in problem.compared.pieces(budget):
        assert some.start == at
        at = some.stop
        mine = problem.task[some]
        assert (int(mine.min()), int(mine.max())) == (tasks.start, tasks.stop - 1)
        assert size == max(problem.compared.count[tasks])
        assert (some.stop - some.start) * size <= budget or some.stop - some.start == 1
    assert at == len(problem.task)


def test_who_does_not_count_is_no_top() -> None:
    s = torch.tensor([[5.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    w = torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, 0.0]]).unsqueeze(2)
    assert between(s, w).tolist() == [[2.0, 1.0, 2.0], [0.0, 0.0, 0.0]]


ROWS, LABELS = 300, 12
OBJECTIVES: dict[str, Callable[[nn.Module, Points], OutputObjective]] = {
    "pauc": lambda model, data: PartialAUC(model, data, temperature=0.3),
    "two-way": lambda model, data: PartialAUC(model, data, temperature=0.3, positive_temperature=0.5),
    "pauc-square": lambda model, data: PartialAUC(model, data, temperature=2.0, loss=Square()),
    "ap": lambda model, data: AveragePrecision(model, data),
    "push": lambda model, data: PNormPush(model, data, p=2.0, loss=SquaredHinge()),
}


def labelled(rare: bool, weighted: bool) -> Points:
    generator = torch.Generator().manual_seed(5)
    rate = torch.linspace(0.02, 0.2 if rare else 0.95, LABELS)
    draw = torch.rand(ROWS, LABELS, generator=generator)
    y = torch.where(draw < rate, 1.0, torch.where(draw < 0.97, 0.0, torch.nan))
    y[0] = 1.0
    y[1] = 0.0
    weight = None
    if weighted:
        weight = torch.randint(0, 3, (ROWS,), generator=generator).double()
        weight[:2] = 1.0
    return Points(torch.zeros(ROWS, 2), y, weight=weight)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("missing", [0, 100])
@pytest.mark.parametrize("rare", [True, False])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_forms_of_many_labels_equal_the_generic_one(name: str, rare: bool, missing: int, weighted: bool) -> None:
    """Rare labels and frequent ones, enough examples for sorted sums and for lists of anchors alone."""
    case = OBJECTIVES[name](nn.Linear(2, LABELS).double(), labelled(rare, weighted)).double()
    generator = torch.Generator().manual_seed(6)
    table = OutputTable.empty(ROWS, (LABELS,), like=torch.zeros(0, dtype=torch.float64))
    seen = torch.randperm(ROWS, generator=generator)[missing:]
    table.write(seen, 1.5 * torch.randn(len(seen), LABELS, generator=generator, dtype=torch.float64), 1)
    table.recount()
    form = form_of(case, table)
    assert isinstance(form, PairwiseTasksForm)
    wanted = GenericForm(case, table).evaluate_all([])
    found = form.evaluate_all(form.start_rows())
    torch.testing.assert_close(found.c, wanted.c, rtol=1e-9, atol=1e-11)
    for some in (seen[:20], seen[:190]):
        again = form.evaluate(some, found.rows)
        torch.testing.assert_close(again.c, wanted.c[some], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(again.rows, found.rows, rtol=1e-9, atol=1e-11)
        for mine, theirs in zip(again.param_gradients, wanted.param_gradients, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)

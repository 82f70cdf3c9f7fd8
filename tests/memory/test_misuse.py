"""What does not fit together is refused as it is with every other method; what is not declared is not assumed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fcco
from fcco.data import Bags, Batch, Groups, Points, Tasks
from fcco.memory import OutputTable, diagnose
from fcco.memory.forms import Form, GenericForm, PairwiseForm, form_of
from fcco.objectives import (
    NDCG,
    AveragePrecision,
    GroupDRO,
    KLRisk,
    Logistic,
    MultiInstance,
    MultiTaskAUC,
    OutputObjective,
    PartialAUC,
)
from tests.memory.cases import (
    CASES,
    N,
    engine_of,
    inputs,
    labels,
    many_points,
    model,
    points,
    queries,
    solver_for,
    state_of,
    whole,
)


@pytest.mark.parametrize(
    "make",
    [
        lambda: PartialAUC(model(2), points(), temperature=0.3),
        lambda: PartialAUC(model(2), many_points(), temperature=0.3),
        lambda: NDCG(model(2), queries()),
    ],
    ids=["two scores", "two of three tasks", "two scores per item"],
)
def test_misuse_is_refused_as_with_bsgd(make: Callable[[], OutputObjective]) -> None:
    for method in (fcco.bsgd(), fcco.output_memory()):
        case = make().double()
        solver = fcco.Solver(case, torch.optim.SGD(case.parameters(), lr=0.1), method)
        batch = next(iter(solver.loader(blocks=4, samples=6)))
        with pytest.raises(ValueError, match="the model must return one score"):
            solver.step(batch)


class Doubled(PartialAUC):
    """Another g."""

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        return super().values(index, 2.0 * outputs, batch)


class Halved(PartialAUC):
    """Another f."""

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        return 0.5 * super().outer(index, u)


class Renamed(Doubled):
    """The same g, and a form that is right for it."""

    def table_form(self, table: OutputTable) -> Form | None:
        from fcco.memory.forms import pairwise_form
        from fcco.objectives import SquaredHinge

        kernel = SquaredHinge(0.5, 4.0).exponential_kernel(self.temperature)  # (1 + 2 x)^2 = 4 (0.5 + x)^2
        return pairwise_form(self, self.blocks, kernel, table)


class Warmer(PartialAUC):
    """Nothing of it is changed."""

    def __init__(self, net: nn.Module, data: Points) -> None:
        super().__init__(net, data, temperature=3.0)


def test_a_subclass_with_another_f_or_g_goes_the_slow_way() -> None:
    table = OutputTable.empty(N, (), like=torch.zeros(0, dtype=torch.float64))
    for kind, form in ((Doubled, GenericForm), (Halved, GenericForm), (Renamed, PairwiseForm), (Warmer, PairwiseForm)):
        assert isinstance(form_of(kind(model(), points()).double(), table), form)
    case = CASES["pauc"]()
    case.outer = lambda index, u: u.squeeze(1)  # type: ignore[method-assign]
    assert isinstance(form_of(case, table), GenericForm)


def test_a_subclass_that_names_its_form_gets_it() -> None:
    """And it is right: the slow form of its parent says the same."""
    table = OutputTable.empty(N, (), like=torch.zeros(0, dtype=torch.float64))
    table.write(torch.arange(N), torch.randn(N, dtype=torch.float64), 0)
    fast = form_of(Renamed(model(), points()).double(), table)
    slow = form_of(Doubled(model(), points()).double(), table)
    mine = fast.evaluate_all(fast.start_rows()).c
    torch.testing.assert_close(mine, slow.evaluate_all([]).c, rtol=1e-10, atol=1e-10)


def test_groups_and_bags_are_refused_by_name() -> None:
    groups = Groups(inputs(), labels(), torch.arange(N) % 4)
    bags = Bags(inputs(), torch.arange(N) // 4, torch.arange(10) % 2)
    for case in (GroupDRO(model(2), groups, KLRisk(0.5)).double(), MultiInstance(model(), bags).double()):
        with pytest.raises(ValueError, match=f"no form for groups and bags; {type(case).__name__}"):
            fcco.Solver(case, torch.optim.SGD(case.parameters(), lr=0.1), fcco.output_memory())


def test_one_task_with_a_column_of_its_own() -> None:
    """(K, 1) scores: balanced only where the objective declares it."""
    y = labels().double().unsqueeze(1)
    trained = MultiTaskAUC(model(), Tasks(inputs(), y)).double()
    logistic = AveragePrecision(model(), Points(inputs(), y), loss=Logistic()).double()
    for case, balances in ((trained, False), (logistic, True)):
        solver, _ = solver_for(case, fcco.output_memory(importance=0.0, cap=None))
        solver.step(whole(case))
        assert engine_of(solver)._weigher.balances is balances


def test_queries_are_not_balanced() -> None:
    solver, _ = solver_for(CASES["ndcg"](), fcco.output_memory())
    assert not engine_of(solver)._weigher.balances


def test_an_example_without_label_is_not_waited_for() -> None:
    y = labels().double()
    y[5] = torch.nan
    case = PartialAUC(model(), Points(inputs(), y), temperature=0.3).double()
    solver, _ = solver_for(case, fcco.output_memory())
    solver.step(whole(case))
    assert diagnose(solver).seen == 1.0


def test_a_warning_made_an_error_leaves_the_step_taken() -> None:
    case = CASES["pauc"]()
    solver, _ = solver_for(case, fcco.output_memory(refresh=1), lr=0.0)
    batch = whole(case)
    solver.step(batch)
    state_of(solver).staleness = torch.tensor(1e3, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="mean little"):
            solver.step(batch)
    assert (solver.t, state_of(solver).refreshed) == (2, 2)


def test_scoring_leaves_out_what_is_not_finite() -> None:
    x = inputs()
    x[3] = torch.nan
    case = PartialAUC(model(), Points(x, labels()), temperature=0.3).double()
    for policy in ("skip", "raise"):
        optimizer = torch.optim.SGD(case.parameters(), lr=0.1)
        solver = fcco.Solver(case, optimizer, fcco.output_memory(), nonfinite=policy)
        loader = solver.loader(blocks=4, samples=6)
        assert isinstance(loader, fcco.memory.MemoryLoader)
        if policy == "raise":
            with pytest.raises(fcco.NonFiniteError, match="example 3"):
                loader.score()
            continue
        loader.score()
        table = state_of(solver).table
        assert table is not None
        assert table.missing == 1


def test_a_state_of_other_data_changes_nothing_and_a_new_period_counts(tmp_path: Path) -> None:
    solver, loader = solver_for(CASES["pauc"](), fcco.output_memory(refresh=2))
    for batch in loader:
        solver.step(batch)
    fcco.save(tmp_path / "state", solver=solver, loader=loader)
    again, other = solver_for(CASES["pauc"](), fcco.output_memory(refresh=9))
    fcco.load(tmp_path / "state", solver=again, loader=other)
    assert state_of(again).period == 9
    assert diagnose(again).seen == diagnose(solver).seen
    state = solver.state_dict()
    state["state"]["engine"]["values"] = state["state"]["engine"]["values"][:-1]
    fresh, _ = solver_for(CASES["pauc"](), fcco.output_memory(refresh=2))
    weights = [p.detach().clone() for p in fresh.parameters]
    with pytest.raises(ValueError, match="39 examples"):
        fresh.load_state_dict(state)
    assert fresh.t == 0
    assert all(torch.equal(a, p) for a, p in zip(weights, fresh.parameters, strict=True))


def test_a_linear_network_with_a_large_step_stays_finite() -> None:
    """Balance used to blow up a side on which next to nothing was drawn."""
    for seed in range(3):
        torch.manual_seed(seed)
        case = PartialAUC(nn.Linear(5, 1).double(), points(), temperature=0.3)
        solver, loader = solver_for(case, fcco.output_memory(refresh=2), seed=seed, steps_per_epoch=300)
        for batch in loader:
            solver.step(batch)
        assert solver.skipped == 0

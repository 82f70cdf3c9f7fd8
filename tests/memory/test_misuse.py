"""What does not fit together is refused as it is with every other method; what is not declared is not assumed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fcco.memory._generic import GenericPhi
from fcco.memory._memory import phi_of
from fcco.sampling import Average, BlockLoader, GroupLoader, MultiLabelPointLoader, PointLoader, QueryItemLoader
from torch import nn

import fcco
from fcco.memory import MemoryLoader
from fcco.memory._table import OutputTable
from fcco.objectives import NDCG, AveragePrecision, GroupDRO, KLRisk, Logistic, MultiTaskAUC, PartialAUC
from tests.memory.cases import CASES, Case, N, inputs, labels, model, solver_for, whole


def _point(outputs: int = 1, average: Average = Average.OPPOSITE, block_label: int = 1) -> Case:
    loader = PointLoader(inputs(), labels(), 4, 6, average=average, block_label=block_label, seed=0)
    return Case(PartialAUC(model(outputs), loader.num_blocks, temperature=0.3).double(), loader)


def _shuffled() -> Case:
    query, relevance = torch.arange(N) // 8, torch.arange(N) % 3
    loader = QueryItemLoader(inputs(), query, relevance, 4, seed=0)
    return Case(NDCG(model(), query, relevance, block_item=loader.block_example.flip(0)).double(), loader)


@pytest.mark.parametrize(
    "make", [lambda: _point(2), lambda: _point(block_label=0), _shuffled], ids=["two scores", "label", "order"]
)
def test_misuse_is_refused_as_with_bsgd(make: Callable[[], Case]) -> None:
    case = make()
    solver = fcco.Solver(case.objective, torch.optim.SGD(case.objective.parameters(), lr=0.1), fcco.bsgd())
    index, batch = next(iter(case.loader))
    with pytest.raises(ValueError, match=r"must"):
        solver.step(index, batch)
    solver, loader = solver_for(make(), fcco.output_memory())
    with pytest.raises(ValueError, match=r"must"):
        solver.step(None, whole(loader.memory))


def test_another_average_and_another_values_go_the_slow_way() -> None:
    class Doubled(PartialAUC):
        def values(self, index: torch.Tensor, outputs: torch.Tensor, batch: fcco.Batch) -> torch.Tensor:
            return super().values(index, 2.0 * outputs, batch)

    table = OutputTable(N, (), like=torch.zeros(0, dtype=torch.float64))
    case = _point(average=Average.ALL)
    assert isinstance(phi_of(case.objective, case.loader, table), GenericPhi)
    case = _point()
    doubled = Doubled(case.objective.model, case.objective.num_blocks).double()
    assert isinstance(phi_of(doubled, case.loader, table), GenericPhi)


def test_groups_are_refused_by_name() -> None:
    loader = GroupLoader(inputs(), torch.arange(N) % 4, 2, 5, labels=labels(), seed=0)
    objective = GroupDRO(model(2), 4, KLRisk(0.5)).double()
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), fcco.output_memory())
    with pytest.raises(TypeError, match="GroupLoader"):
        MemoryLoader(solver, loader)


def test_one_task_with_a_column_of_its_own() -> None:
    """(K, 1) scores: balanced only where the objective declares it, and given back to it as the model gave them."""
    y = labels().double().unsqueeze(1)
    trained = Case(MultiTaskAUC(model(), 1).double(), BlockLoader(inputs(), y, 1, 6, seed=0))
    loader = MultiLabelPointLoader(inputs(), y, 4, 5, average=Average.ALL, seed=0)
    logistic = AveragePrecision(model(), loader.num_blocks, loss=Logistic(), block_task=loader.block_task).double()
    for case, balances in ((trained, False), (Case(logistic, loader), True)):
        solver, memory = solver_for(case, fcco.output_memory(importance=0.0, cap=None))
        solver.step(None, whole(memory.memory))
        assert memory.memory._balances is balances


def test_an_example_without_label_is_not_waited_for() -> None:
    y = labels().double()
    y[5] = torch.nan
    loader = PointLoader(inputs(), y, 4, 6, average=Average.OPPOSITE, seed=0)
    solver, memory = solver_for(
        Case(PartialAUC(model(), loader.num_blocks, temperature=0.3).double(), loader), fcco.output_memory()
    )
    solver.step(None, whole(memory.memory))
    assert memory.diagnose().seen == 1.0


def test_a_warning_made_an_error_leaves_the_step_taken() -> None:
    solver, loader = solver_for(CASES["pauc"](), fcco.output_memory(refresh=1), lr=0.0)
    batch = whole(loader.memory)
    solver.step(None, batch)
    loader.memory.lag.fill_(1e3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="mean little"):
            solver.step(None, batch)
    assert (solver.t, loader.memory.refreshed) == (2, 2)


def test_scoring_leaves_out_what_is_not_finite() -> None:
    x = inputs()
    x[3] = torch.nan
    base = PointLoader(x, labels(), 4, 6, average=Average.OPPOSITE, seed=0)
    objective = PartialAUC(model(), base.num_blocks, temperature=0.3).double()
    for policy in ("skip", "raise"):
        optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
        solver = fcco.Solver(objective, optimizer, fcco.output_memory(), nonfinite=policy)
        loader = MemoryLoader(solver, base)
        if policy == "raise":
            with pytest.raises(fcco.NonFiniteError, match="example 3"):
                loader.score()
            continue
        loader.score()
        assert loader.memory.table is not None
        assert loader.memory.table.missing == 1


def test_looking_at_the_value_changes_nothing() -> None:
    solver, loader = solver_for(CASES["pauc"](), fcco.output_memory(refresh=100))
    for index, batch in loader:
        solver.step(index, batch)
    before = [rows.clone() for rows in loader.memory.phi.rows]  # type: ignore[union-attr]
    assert loader.memory.value() > 0.0
    assert all(torch.equal(a, b) for a, b in zip(before, loader.memory.phi.rows, strict=True))  # type: ignore[union-attr]


def test_a_state_of_other_data_changes_nothing_and_a_new_period_counts(tmp_path: Path) -> None:
    solver, loader = solver_for(CASES["pauc"](), fcco.output_memory(refresh=2))
    for index, batch in loader:
        solver.step(index, batch)
    fcco.save(tmp_path / "state", solver, loader)
    again, other = solver_for(CASES["pauc"](), fcco.output_memory(refresh=9))
    fcco.load(tmp_path / "state", again, other)
    assert other.memory.period == 9
    assert other.diagnose().seen == loader.diagnose().seen
    state = solver.state_dict()
    state["memory"]["table"]["values"] = state["memory"]["table"]["values"][:-1]
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
        base = PointLoader(inputs(), labels(), 4, 6, average=Average.OPPOSITE, seed=seed, steps_per_epoch=300)
        objective = PartialAUC(nn.Linear(5, 1).double(), base.num_blocks, temperature=0.3)
        optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
        solver = fcco.Solver(objective, optimizer, fcco.output_memory(refresh=2))
        for index, batch in MemoryLoader(solver, base, seed=seed):
            solver.step(index, batch)
        assert solver.skipped == 0

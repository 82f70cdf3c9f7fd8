"""Hard inputs: large exponents in single precision, far clusters, outputs that start equal, data sorted by class."""

from __future__ import annotations

import warnings

import pytest
import torch
from fcco.memory._kernels import Polynomial
from fcco.sampling import Average, PointLoader
from torch import Tensor, nn

import fcco
from fcco.memory import MemoryLoader
from fcco.objectives import PartialAUC
from tests.memory.cases import CASES, Case, N, inputs, labels, model, solver_for, whole


class Scaled(nn.Module):
    def __init__(self, factor: float, shift: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.factor, self.shift = nn.Linear(5, 1), factor, shift

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * self.linear(x) + self.shift


@pytest.mark.parametrize("shift", [0.0, -1e3, 1e3])
@pytest.mark.parametrize(("factor", "temperature"), [(1.0, 0.1), (30.0, 0.01), (1e3, 0.1), (1e4, 0.1)])
def test_single_precision_keeps_its_digits_at_any_exponent(factor: float, temperature: float, shift: float) -> None:
    """Exponents up to 1e10, scores far from zero, against autograd in double precision on the same scores."""
    x, y, net = inputs().float(), labels(), Scaled(factor, shift)
    loader = PointLoader(x, y, 4, 6, average=Average.OPPOSITE, seed=0)
    case = Case(PartialAUC(net, loader.num_blocks, temperature=temperature), loader)
    solver, memory = solver_for(case, fcco.output_memory(importance=0.0, cap=None, balance=False), lr=0.0)
    h = net(x).squeeze(1).double()
    gap = (1.0 + h[y == 0] - h[y == 1].unsqueeze(1)).clamp(min=0.0)
    f = temperature * (gap.square() / temperature).logsumexp(1)
    wanted = torch.autograd.grad(f.mean(), list(net.parameters()))
    solver.step(None, whole(memory.memory))
    for p, gradient in zip(solver.parameters, wanted, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad, gradient, rtol=1e-5, atol=1e-6 * float(wanted[0].norm()))


@pytest.mark.parametrize("far", [-1e5, 1e5])
def test_sorted_sums_with_a_cluster_far_away(far: float) -> None:
    """In the second column; the first is of those near alone, as the own class is in average precision."""
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(400, generator=generator, dtype=torch.float64)
    p[200:] += far
    q, w = p[:50], torch.full((400, 2), 1 / 400, dtype=torch.float64)
    w[200:, 0] = 0.0
    kernel = Polynomial(1.0, 1.0, True)
    for mine, theirs in zip(kernel.by_sorting(q, p, w), kernel.one_by_one(q, p, w), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_outputs_that_start_out_equal_are_not_reported_as_stale() -> None:
    case = CASES["pauc"]()
    last = list(case.objective.model.modules())[-1]
    assert isinstance(last, nn.Linear)
    nn.init.zeros_(last.weight)
    solver, loader = solver_for(case, fcco.output_memory(refresh=1), lr=0.01)
    loader.score()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(10):
            for index, batch in loader:
                solver.step(index, batch)
    assert float(loader.memory.lag) < 2.0


def test_a_scoring_pass_does_not_depend_on_the_order_of_the_data() -> None:
    """Batch statistics of one class alone would give other outputs than those of the steps."""
    torch.manual_seed(0)
    y = (torch.arange(400) < 100).long()
    x = torch.randn(400, 5) + 2.0 * y.unsqueeze(1)  # sorted by class
    net = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    base = PointLoader(x, y, 4, 12, average=Average.OPPOSITE, seed=0)
    objective = PartialAUC(net, base.num_blocks)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), fcco.output_memory())
    loader = MemoryLoader(solver, base)
    loader.score(chunk=100)
    assert loader.memory.table is not None
    apart = loader.memory.table.values[:100].mean() - loader.memory.table.values[100:].mean()
    with torch.no_grad():
        s = net(x).squeeze(1)
    wanted = s[:100].mean() - s[100:].mean()
    assert float(apart / wanted) == pytest.approx(1.0, abs=0.2)  # about 0 with a batch of one class each


def test_a_variable_of_each_block_is_not_pushed_more_at_the_start() -> None:
    """Learned temperatures of the examples: with few seen, their gradients are of the size that they have later."""
    sizes = []
    for count in (5, N):
        case = CASES["contrastive-each"]()
        solver, loader = solver_for(case, fcco.output_memory(importance=0.0, cap=None), lr=0.0)
        everyone = whole(loader.memory)
        some = torch.arange(count)
        share = torch.full((count,), 1.0 / count, dtype=torch.float64)
        batch = fcco.Batch(tuple(x[some] for x in everyone.x), some, weight=share, probability=share)
        solver.step(None, batch)
        excess = case.objective.excess
        assert isinstance(excess, nn.Parameter)
        assert excess.grad is not None
        sizes.append(float(excess.grad[:5].norm()))
    assert sizes[0] < 3.0 * sizes[1]


def test_a_second_loader_takes_over_before_the_first_step_only() -> None:
    case = CASES["pauc"]()
    solver, first = solver_for(case, fcco.output_memory())
    second = MemoryLoader(solver, case.loader)
    with pytest.raises(RuntimeError, match="another MemoryLoader"):
        next(iter(first))
    index, batch = next(iter(second))
    solver.step(index, batch)
    with pytest.raises(RuntimeError, match="would be lost"):
        MemoryLoader(solver, case.loader)


@pytest.mark.parametrize(("id", "says"), [([0, 1, 1], "once"), ([0, -1, 2], "must be in"), ([0, 1, N], "must be in")])
def test_ids_of_another_loader_are_refused(id: list[int], says: str) -> None:
    solver, _ = solver_for(CASES["pauc"](), fcco.output_memory())
    share = torch.full((3,), 1 / 3, dtype=torch.float64)
    batch = fcco.Batch(inputs()[:3], torch.tensor(id), weight=share, probability=share)
    with pytest.raises(ValueError, match=says):
        solver.step(None, batch)


def test_a_state_of_another_objective_changes_nothing() -> None:
    """Rows of a fast form against none of the generic one."""
    states = {}
    for name in ("ap", "ap-logistic"):
        solver, loader = solver_for(CASES[name](), fcco.output_memory())
        solver.step(None, whole(loader.memory))
        states[name] = solver.state_dict()
        if name == "ap-logistic":
            before = [p.detach().clone() for p in solver.parameters]
            with pytest.raises(ValueError, match="another objective"):
                solver.load_state_dict(states["ap"])
            assert all(torch.equal(p, old) for p, old in zip(solver.parameters, before, strict=True))


def test_a_network_that_is_frozen_is_refused() -> None:
    loader = PointLoader(inputs(), labels(), 4, 6, average=Average.OPPOSITE, seed=0)
    objective = PartialAUC(model().requires_grad_(False), loader.num_blocks, positive_temperature=0.5).double()
    optimizer = torch.optim.SGD([p for p in objective.parameters() if p.requires_grad], lr=0.1)
    solver = fcco.Solver(objective, optimizer, fcco.output_memory())
    with pytest.raises(ValueError, match="trainable parameter"):
        solver.step(None, whole(MemoryLoader(solver, loader).memory))


def test_a_compiled_network_hears_of_no_hooks() -> None:
    case = CASES["pauc"]()
    case.objective.model = torch.compile(case.objective.model, backend="aot_eager")
    solver, loader = solver_for(case, fcco.output_memory())
    for index, batch in loader:
        solver.step(index, batch)  # a warning would be an error
    assert solver.t > 0


def test_a_first_step_that_fails_leaves_no_table() -> None:
    case = CASES["pauc"]()
    solver, loader = solver_for(case, fcco.output_memory())
    batch = whole(loader.memory)
    for hook in (case.objective.model.register_full_backward_pre_hook, solver.optimizer.register_step_pre_hook):

        def fails(*_: object) -> None:
            raise RuntimeError("no more")

        handle = hook(fails)
        with pytest.raises(RuntimeError, match="no more"):
            solver.step(None, batch)
        handle.remove()
        assert loader.memory.state_dict()["shape"] is None
        assert loader.memory.period == 0
        with pytest.raises(RuntimeError, match="the memory is empty"):
            loader.diagnose()
    solver.step(None, batch)
    assert loader.diagnose().seen == 1.0


def test_u0_has_no_meaning_and_is_refused() -> None:
    objective = CASES["pauc"]().objective
    with pytest.raises(ValueError, match="u0 must be None"):
        fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), fcco.output_memory(), u0=0.5)

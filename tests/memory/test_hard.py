"""Hard inputs: large exponents in single precision, far clusters, outputs that start equal, data sorted by class."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import fcco
from fcco.data import Points
from fcco.memory import diagnose
from fcco.memory.forms._polynomial import Polynomial
from fcco.objectives import PartialAUC
from tests.memory.cases import CASES, N, inputs, labels, model, points, solver_for, state_of, whole


class Scaled(nn.Module):
    def __init__(self, factor: float, shift: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(5, 1)
        self.factor = factor
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * self.linear(x) + self.shift


@pytest.mark.parametrize("shift", [0.0, -1e3, 1e3])
@pytest.mark.parametrize(("factor", "temperature"), [(1.0, 0.1), (30.0, 0.01), (1e3, 0.1), (1e4, 0.1)])
def test_single_precision_keeps_its_digits_at_any_exponent(factor: float, temperature: float, shift: float) -> None:
    """Exponents up to 1e10, scores far from zero, against autograd in double precision on the same scores."""
    x = inputs().float()
    y = labels()
    net = Scaled(factor, shift)
    case = PartialAUC(net, Points(x, y), temperature=temperature)
    solver, _ = solver_for(case, fcco.output_memory(importance=0.0, cap=None, balance=False), lr=0.0)
    h = net(x).squeeze(1).double()
    gap = (1.0 + h[y == 0] - h[y == 1].unsqueeze(1)).clamp(min=0.0)
    f = temperature * (gap.square() / temperature).logsumexp(1)
    wanted = torch.autograd.grad(f.mean(), list(net.parameters()))
    solver.step(whole(case))
    for p, gradient in zip(solver.parameters, wanted, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad, gradient, rtol=1e-5, atol=1e-6 * float(wanted[0].norm()))


@pytest.mark.parametrize("far", [-1e5, 1e5])
def test_sorted_sums_with_a_cluster_far_away(far: float) -> None:
    """In the second column; the first is of those near alone, as the own class is in average precision."""
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(400, generator=generator, dtype=torch.float64)
    p[200:] += far
    q = p[:50]
    w = torch.full((400, 2), 1 / 400, dtype=torch.float64)
    w[200:, 0] = 0.0
    kernel = Polynomial(1.0, 1.0, True)
    for mine, theirs in zip(kernel.by_sorting(q, p, w), kernel.one_by_one(q, p, w), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_outputs_that_start_out_equal_are_not_reported_as_stale() -> None:
    case = CASES["pauc"]()
    last = list(case.model.modules())[-1]
    assert isinstance(last, nn.Linear)
    nn.init.zeros_(last.weight)
    solver, loader = solver_for(case, fcco.output_memory(refresh=1), lr=0.01)
    loader.score()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(10):
            for batch in loader:
                solver.step(batch)
    assert float(state_of(solver).staleness) < 2.0


def test_a_scoring_pass_does_not_depend_on_the_order_of_the_data() -> None:
    """Batch statistics of one class alone would give other outputs than those of the steps."""
    torch.manual_seed(0)
    y = (torch.arange(400) < 100).long()
    x = torch.randn(400, 5) + 2.0 * y.unsqueeze(1)  # sorted by class
    net = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    solver, loader = solver_for(PartialAUC(net, Points(x, y)), fcco.output_memory())
    loader.score(chunk=100)
    values = state_of(solver).values
    assert values is not None
    apart = values[:100].mean() - values[100:].mean()
    with torch.no_grad():
        s = net(x).squeeze(1)
    wanted = s[:100].mean() - s[100:].mean()
    assert float(apart / wanted) == pytest.approx(1.0, abs=0.2)  # about 0 with a batch of one class each


def test_a_parameter_of_each_block_has_no_larger_gradient_at_the_start() -> None:
    """Learned temperatures of the examples: with few seen, their gradients are of the size that they have later."""
    sizes = []
    for count in (5, N):
        case = CASES["contrastive-each"]()
        solver, _ = solver_for(case, fcco.output_memory(importance=0.0, cap=None), lr=0.0)
        some = torch.arange(count)
        share = torch.full((count,), 1.0 / count, dtype=torch.float64)
        solver.step(fcco.data.Batch(case.data.source.take(some), some, weight=share, probability=share))
        excess = case.excess
        assert isinstance(excess, nn.Parameter)
        assert excess.grad is not None
        sizes.append(float(excess.grad[:5].norm()))
    assert sizes[0] < 3.0 * sizes[1]


def test_two_loaders_draw_for_one_table() -> None:
    solver, first = solver_for(CASES["pauc"](), fcco.output_memory(refresh=1))
    second = solver.loader(blocks=2, samples=3, seed=1)
    for loader in (first, second, first):
        solver.step(next(iter(loader)))
    assert solver.t == 3


@pytest.mark.parametrize("id", [[0, -1, 2], [0, 1, N]])
def test_ids_of_other_data_are_refused(id: list[int]) -> None:
    solver, _ = solver_for(CASES["pauc"](), fcco.output_memory())
    share = torch.full((3,), 1 / 3, dtype=torch.float64)
    batch = fcco.data.Batch(inputs()[:3], torch.tensor(id), weight=share, probability=share)
    with pytest.raises(ValueError, match="must be in"):
        solver.step(batch)


def test_a_state_of_another_objective_changes_nothing() -> None:
    """Another loss is refused by name; rows of another form by their shapes."""
    states = {}
    for name in ("ap", "ap-logistic"):
        case = CASES[name]()
        solver, _ = solver_for(case, fcco.output_memory())
        solver.step(whole(case))
        states[name] = solver.state_dict()
    before = [p.detach().clone() for p in solver.parameters]
    with pytest.raises(ValueError, match="loss 'SquaredHinge"):
        solver.load_state_dict(states["ap"])
    states["ap"]["of"] = states["ap-logistic"]["of"]
    with pytest.raises(ValueError, match="another objective"):
        solver.load_state_dict(states["ap"])
    assert all(torch.equal(p, old) for p, old in zip(solver.parameters, before, strict=True))


def test_a_network_that_is_frozen_is_refused() -> None:
    case = PartialAUC(model().requires_grad_(False), points(), positive_temperature=0.5).double()
    optimizer = torch.optim.SGD([p for p in case.parameters() if p.requires_grad], lr=0.1)
    solver = fcco.Solver(case, optimizer, fcco.output_memory())
    with pytest.raises(ValueError, match="trainable parameter"):
        solver.step(whole(case))


def test_a_compiled_network_hears_of_no_hooks() -> None:
    case = CASES["pauc"]()
    case.model = torch.compile(case.model, backend="aot_eager")
    solver, loader = solver_for(case, fcco.output_memory())
    for batch in loader:
        solver.step(batch)  # a warning would be an error
    assert solver.t > 0


def test_a_first_step_that_fails_leaves_no_table() -> None:
    case = CASES["pauc"]()
    solver, _ = solver_for(case, fcco.output_memory())
    batch = whole(case)
    for hook in (case.model.register_full_backward_pre_hook, solver.optimizer.register_step_pre_hook):

        def fails(*_: object) -> None:
            raise RuntimeError("no more")

        handle = hook(fails)
        with pytest.raises(RuntimeError, match="no more"):
            solver.step(batch)
        handle.remove()
        assert state_of(solver).values is None
        assert state_of(solver).table is None
        assert state_of(solver).period == 0
        with pytest.raises(RuntimeError, match="the memory is empty"):
            diagnose(solver)
    solver.step(batch)
    assert diagnose(solver).seen == 1.0


def test_rows_u_have_no_meaning_and_are_refused() -> None:
    case = CASES["pauc"]()
    with pytest.raises(ValueError, match="u0 must be None for output-memory"):
        fcco.Solver(case, torch.optim.SGD(case.parameters(), lr=0.1), fcco.output_memory(), u0=0.5)
    solver, _ = solver_for(case, fcco.output_memory())
    with pytest.raises(RuntimeError, match="keeps outputs"):
        solver.u()

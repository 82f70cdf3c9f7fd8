"""Draws by q are unbiased; what the cap and the balance do to the gradient is measured and bounded."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fcco
from fcco.memory.draws import Chances, Stratum, balanced, capped
from fcco.memory.loader import MemoryLoader
from tests.memory.cases import CASES, Case, exact_gradient, inputs, solver_for, whole


def test_draws_follow_q() -> None:
    chances = Chances(Stratum(torch.arange(5, 10), draws=40_000), torch.device("cpu"))
    chances.update(torch.tensor([0.0, 1.0, 0.0, 3.0, 4.0]))
    drawn = chances.draw(0.5, torch.Generator().manual_seed(0))
    wanted = 0.1 + 0.5 * torch.tensor([0.0, 1, 0, 3, 4], dtype=torch.float64) / 8
    torch.testing.assert_close(drawn.probability, wanted)
    torch.testing.assert_close(drawn.weight, wanted, rtol=0.0, atol=0.01)
    assert drawn.id.tolist() == [5, 6, 7, 8, 9]


def test_ranks_share_the_draws_of_one() -> None:
    def draw(share: tuple[int, int]) -> Tensor:
        chances = Chances(Stratum(torch.arange(50), draws=20), torch.device("cpu"))
        chances.update(torch.arange(50.0))
        drawn = chances.draw(0.5, torch.Generator().manual_seed(3), share)
        return torch.zeros(50, dtype=torch.float64).index_add(0, drawn.id, drawn.weight)

    torch.testing.assert_close(draw((0, 2)) + draw((1, 2)), draw((0, 1)))


@pytest.mark.parametrize("name", ["pauc", "ap", "push", "pauc-tasks", "cox"])
def test_unbiased_without_cap_and_balance(name: str) -> None:
    mean, error, exact = _mean_gradient(name, fcco.output_memory(importance=0.5, cap=None, balance=False))
    assert bool(((mean - exact).abs() < 5 * error + 1e-9).all())


@pytest.mark.parametrize("name", ["pauc", "ap"])
def test_bias_of_cap_and_balance_is_small_and_does_not_turn_the_gradient(name: str) -> None:
    mean, _, exact = _mean_gradient(name, fcco.output_memory(importance=0.5, cap=3.0))
    cosine = torch.cosine_similarity(mean, exact, dim=0)
    bias = (mean - exact).norm() / exact.norm()
    assert cosine > 0.95
    assert bias < 0.35


def _mean_gradient(name: str, method: fcco.Method, draws: int = 600) -> tuple[Tensor, Tensor, Tensor]:
    """Mean over draws of the gradient at a fresh table, its standard error, and the exact gradient."""
    case = CASES[name]()
    solver, loader = solver_for(case, method, lr=0.0)
    exact = torch.cat([gradient.flatten() for gradient in exact_gradient(case)])
    solver.step(None, whole(case, loader.memory))  # lr = 0: the table is fresh and stays so
    loader.memory.refresh(1, due=True)
    found = torch.stack([_one(solver, loader, case) for _ in range(draws)])
    return found.mean(0), found.std(0) / draws**0.5, exact


def _one(solver: fcco.Solver, loader: MemoryLoader, case: Case) -> Tensor:
    drawn = loader._plan().drawn
    batch = fcco.Batch(inputs()[drawn.id], drawn.id, weight=drawn.weight, probability=drawn.probability)
    solver.step(None, batch)
    return torch.cat([p.grad.flatten() for p in solver.parameters if p.grad is not None])


def test_cap_cuts_at_so_many_times_the_mean_of_a_draw() -> None:
    v, weight = torch.tensor([1.0, -1.0, 10.0, 2.0]), torch.tensor([0.2, 0.2, 0.2, 0.4])  # the last was drawn twice
    cut, share = capped(v, weight, 2.0)
    most = 2.0 * 14.0 / 5
    torch.testing.assert_close(cut, torch.tensor([1.0, -1.0, most, 2.0]))
    assert float(share) == 0.25


def test_balance_makes_every_group_add_up_to_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(30, 2, generator=generator, dtype=torch.float64)
    groups = torch.randint(4, (30,), generator=generator)
    result = balanced(v, groups)
    for group in range(4):
        assert result[groups == group].sum(0).abs().max() < 1e-12
    assert bool((result * v >= 0).all())
    assert balanced(v[:, 0], None).sum().abs() < 1e-12
    assert balanced(torch.ones(3), None).abs().sum() == 0.0  # nothing to set against: no push

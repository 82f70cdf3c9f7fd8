"""The tracking slopes of the theory, and that broken trackers do not have them."""

import pytest
import torch

from fcco.lab.rates import fit, tracking
from fcco.lab.rates.problems import curved
from fcco.methods.trackers import MSVR, msvr_gamma

PLAN = tracking.Plan(m=10, n=10, steps=12_000, finite_steps=6_000, shortest=4e-4, lengths=4, betas=8, seeds=4)
TOLERANCE = 0.12
BROKEN = {
    "gamma = 1 - beta": lambda beta: MSVR(beta, gamma=1.0 - beta),
    "gamma doubled": lambda beta: MSVR(beta, gamma=2.0 * msvr_gamma(beta, PLAN.m)),
}


def slopes(errors):
    """name -> the slope of the error, minimised over beta, against d."""
    everyone = list(range(PLAN.seeds))
    return {name: fit.slope(torch.tensor(PLAN.d).numpy(), tracking.smallest(e)(everyone)) for name, e in errors.items()}


@pytest.fixture(scope="module")
def measured():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are small: a second thread only waits
    with torch.inference_mode():
        errors = tracking.grid_errors(tracking.ONLINE | BROKEN, curved(PLAN.m), PLAN, PLAN.steps)
        errors |= tracking.grid_errors(tracking.FINITE, curved(PLAN.m, n=PLAN.n), PLAN, PLAN.finite_steps)
        other = tracking.grid_errors({"another xi": MSVR}, curved(PLAN.m), PLAN, 2_000, other=True)
    torch.set_num_threads(threads)
    return slopes(errors | other)


@pytest.mark.parametrize("name", tracking.CLAIMS)
def test_slopes_of_the_theory(measured, name):
    assert measured[name] == pytest.approx(tracking.CLAIMS[name], abs=TOLERANCE)


@pytest.mark.parametrize("name", [*BROKEN, "another xi"])
def test_a_broken_msvr_is_caught(measured, name):
    assert abs(measured[name] - tracking.CLAIMS["MSVR"]) > 1.5 * TOLERANCE


def test_path_has_the_step_length():
    course = tracking.Course([MSVR(0.1)], [0.01], seeds=2, steps=3)
    points = torch.stack(list(course.path(5)))
    assert torch.allclose((points[1:] - points[:-1]).norm(dim=-1), torch.tensor(0.01, dtype=torch.float64))
    assert torch.allclose(points.norm(dim=-1), torch.tensor(tracking.RADIUS, dtype=torch.float64))

"""The vectorised loop is fcco.Solver, and its problems are what their closed forms say."""

import pytest
import torch

import fcco
from fcco.lab.rates import forms, journeys, problems
from fcco.lab.rates.forms import Constants, First, Form, Sizes
from fcco.lab.rates.loop import Loop, Scaling
from fcco.methods import stages

pytestmark = pytest.mark.usefixtures("one_thread")


RATES = {"alpha": 0.2, "beta": 0.3}
RECIPES = {
    "sox": RATES,
    "soap": {"beta": 0.3},
    "bsgd": {},
    "bspiderboost": {"period": 5},
    "storm-v1": RATES,
    "storm-v2": RATES,
    "msvr-v1": RATES,
    "msvr-v2": RATES,
    "msvr-v3": RATES | {"period": 14},
    "msvr-v1-sp": RATES,
    "msvr-v2-sp": RATES,
    "variant-v1": RATES,
    "variant-v2": RATES,
    "variant-v3": RATES | {"period": 14},
}


class Twin(fcco.Objective):
    """A problem as a user would write it; data: linear (B, K, d) and offset (B, K)."""

    def __init__(self, problem, w1):
        super().__init__(num_blocks=problem.m, dim=1)
        self.problem, self.w = problem, torch.nn.Parameter(w1.clone())

    def inner(self, index, linear, offset):
        quadratic = 0.5 * self.problem.q * self.w.square().sum()
        return (linear @ self.w + offset + quadratic).mean(1, keepdim=True)

    def outer(self, index, u):
        u = u.squeeze(1)
        return self.problem.outer.value(u) + self.problem.tilt[index] * u


def everything(problem):
    """One full pass: every sample of every block."""
    xi = problem.table
    linear = problem.linear.unsqueeze(1) + problem.jacobian_noise * xi[..., :-1]
    offset = problem.offset.unsqueeze(1) + problem.value_noise * xi[..., -1]
    return [(torch.arange(problem.m), linear, offset)]


def solver_of(problem, w1, method, *, lr=0.05, mu=0.0, normalize=False, radius=None, adaptive=None):
    twin = Twin(problem, w1)
    optimizer = torch.optim.SGD(twin.parameters(), lr=lr, weight_decay=mu)
    if adaptive is not None:
        optimizer = fcco.Adaptive(twin.parameters(), lr=lr, weight_decay=mu, **adaptive._asdict())
    return fcco.Solver(
        twin, optimizer, method, normalize=normalize, radius=radius, full_pass=lambda: everything(problem)
    )


def gap(loop, solver, lane=0):
    """The largest difference in w and in the rows that were visited."""
    rows = loop.rows.u[lane, 0] * loop.rows.visited[0].unsqueeze(1)
    return max(
        float((solver.objective.w.detach() - loop.w[lane, 0]).abs().max()), float((solver.u() - rows).abs().max())
    )


@pytest.mark.filterwarnings("ignore:the theory of msvr-v. needs a bounded step")
@pytest.mark.filterwarnings("ignore:the theory of msvr-v.-sp needs a bounded step")
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("name", RECIPES)
def test_loop_is_the_solver(name, normalize):
    problem, w1 = problems.curved(7, n=6), torch.ones(5, dtype=torch.float64)
    method = fcco.METHODS[name](**RECIPES[name])
    loop = Loop(problem, [method], [0.05], w1, seeds=1, normalize=normalize)
    solver = solver_of(problem, w1, method, normalize=normalize)
    for _, draw in zip(range(60), problem.draws([3], 2, 1), strict=False):
        loop.step(draw, samples=2)
        report = solver.step(draw.blocks[0], draw.linear[0].unsqueeze(1), draw.offset[0])
        assert gap(loop, solver) < 1e-12
    assert loop.samples == report.samples


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("name", ["sox", "msvr-v2", "msvr-v1-sp", "msvr-v3"])
def test_loop_is_the_solver_with_adaptive_steps_and_a_radius(name, amsgrad):
    problem, w1, mu, radius = problems.curved(7, n=6), torch.ones(5, dtype=torch.float64), 0.1, 0.8
    method, adaptive = fcco.METHODS[name](**RECIPES[name]), Scaling(beta=0.2, delta=0.3, amsgrad=amsgrad)
    loop = Loop(problem, [method], [0.05], w1, seeds=1, mu=[mu], radius=radius, adaptive=adaptive)
    solver = solver_of(problem, w1, method, mu=mu, radius=radius, adaptive=adaptive)
    clipped = 0
    for _, draw in zip(range(60), problem.draws([3], 2, 1), strict=False):
        loop.step(draw, samples=2)
        solver.step(draw.blocks[0], draw.linear[0].unsqueeze(1), draw.offset[0])
        assert gap(loop, solver) < 1e-12
        clipped += int(float(loop.z.norm()) > 0.999 * radius)
    assert 0 < clipped < 60


def test_lanes_are_independent_runs():
    problem, w1 = problems.curved(6), torch.zeros(5, dtype=torch.float64)
    methods = [fcco.msvr_v2(alpha=a, beta=b) for a, b in ((0.1, 0.2), (0.5, 0.4))]
    together = Loop(problem, methods, [0.02, 0.08], w1, seeds=3, mu=[0.0, 0.1])
    alone = Loop(problem, methods[1:], [0.08], w1, seeds=3, mu=[0.1])
    for _, draw in zip(range(40), problem.draws(range(3), 2, 4), strict=False):
        together.step(draw, 8)
        alone.step(draw, 8)
    torch.testing.assert_close(together.w[1], alone.w[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["msvr-v2", "msvr-v3"])
def test_journeys_are_stagewise_runs(name):
    """Stages, and the regulariser as weight decay, against fcco.StageWise; v3's anchor goes on across stages here."""
    problem, w1, mu = problems.paired(6, q=0.2, scales=(1.0, 0.5), n=5), torch.zeros(2, dtype=torch.float64), 0.05
    recipe = journeys.recipe(name, problem)
    plan = forms.halving("msvr-v2", First(0.05, 9, 0.4, 0.4), stages=3)
    if name == "msvr-v3":
        plan = plan[:1]
    setting = journeys.Setting(problem, recipe, w1, seeds=1)
    solver = solver_of(problem, w1, recipe(alpha=1.0, beta=1.0), mu=mu)
    run, draws = fcco.StageWise(solver, plan, mu=mu), problem.draws([0], 1, 1)
    for loop in journeys.travel(setting, [plan], [mu]):
        assert gap(loop, solver) < 1e-12
        if not run.finished:
            draw = next(draws)
            run.step(draw.blocks[0], draw.linear[0].unsqueeze(1), draw.offset[0])
    assert run.finished


@pytest.mark.parametrize(
    "problem",
    [
        problems.curved(6, n=4),
        problems.paired(6, q=0.3, scales=(1.0, 0.5, 0.0), n=4),
        problems.paired(6, q=0.3, scales=(1.0, 0.5), n=4, outer=problems.Kinked(), tilt=3.0, lopsided=2.0, depth=0.0),
    ],
)
def test_closed_forms(problem):
    """F and grad F from the formula are those of autograd over the whole table, whose mean is exact."""
    w = torch.linspace(-1, 1, problem.d, dtype=torch.float64).requires_grad_()
    index, linear, offset = everything(problem)[0]
    twin = Twin(problem, w.detach())
    value = twin.outer(index, twin.inner(index, linear, offset)).mean()
    value.backward()
    torch.testing.assert_close(problem.value(w.detach()), value.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(problem.gradient(w.detach()), twin.w.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lopsided", [1.0, 2.0])
def test_paired_optimum(lopsided):
    problem = problems.paired(20, q=0.3, scales=(1.0, 0.5, 0.0), tilt=3.0, lopsided=lopsided)
    best = torch.ones(3, dtype=torch.float64)
    assert float(problem.gradient(best).norm()) < 1e-12
    nearby = best + 0.3 * torch.randn(200, 3, dtype=torch.float64)
    assert float((problem.value(nearby) - problem.value(best)).min()) > 0.0


def test_batches_shrink_the_noise():
    problem, w = problems.curved(5), torch.ones(5, dtype=torch.float64)

    def noise(b2):
        draws = zip(range(500), problem.draws(range(4), 5, b2), strict=False)
        looks = torch.cat([problem.probe(w, draw).squeeze(-1) for _, draw in draws])  # B1 = m: (500 * 4, m)
        return float((looks - problem.inner(w).squeeze(-1)).std())

    assert noise(1) / noise(16) == pytest.approx(4.0, rel=0.1)


def test_seeds_do_not_depend_on_their_company():
    problem = problems.curved(5)
    alone, together = next(problem.draws([2], 2, 1)), next(problem.draws([0, 1, 2], 2, 1))
    assert torch.equal(alone.blocks[0], together.blocks[2])
    assert torch.equal(alone.linear[0], together.linear[2])


def test_halving_has_the_powers_of_the_proved_stages():
    proved = stages.stages_v2(m=10, b1=1, b2=1, c=1.0, mu=1.0, gap=0.1, accuracy=0.05)
    ours = forms.halving("msvr-v2", First(proved[0].lr, proved[0].steps, proved[0].alpha, proved[0].beta), len(proved))
    for one, other in zip(proved, ours, strict=True):
        assert (other.lr, other.alpha, other.beta) == pytest.approx((one.lr, one.alpha, one.beta))
        assert other.steps == pytest.approx(one.steps, rel=1e-6)


@pytest.mark.parametrize(
    ("form", "powers"),
    [
        (Form.SOX, (-1 / 2, -1 / 2, -1 / 2)),
        (Form.V1_LATE, (-1 / 2, -1 / 2, -1.0)),
        (Form.V1_EARLY, (-1 / 3, -1 / 3, -2 / 3)),
        (Form.V2, (-1 / 3, -2 / 3, -2 / 3)),
    ],
)
def test_decaying_rates_have_the_theorems_powers(form, powers):
    early, late = (forms.rates(form, Sizes(20), Constants(1.0, 1.0, 1.0), s) for s in (100.0, 6400.0))
    assert [b / a for a, b in zip(early, late, strict=True)] == pytest.approx([64**p for p in powers])


def test_decaying_v2_is_the_theorems_schedule():
    """With the theorem's constants put in, the free form is fcco.schedules.theorem_v2 (up to its offset a)."""
    m, b1, b2, c0 = 12, 2, 4, 264.0
    proved = fcco.schedules.theorem_v2(m=m, b1=b1, b2=b2, c=1.0)
    free = Constants(1.0, c0**2 / 32, c0**2 / 32)
    offset = (forms.rates(Form.V2, Sizes(m, b1, b2), free, 1.0)[0] / proved.lr(0)) ** 3
    eta, alpha, beta = forms.rates(Form.V2, Sizes(m, b1, b2), free, offset + 7)
    assert (eta, alpha, beta) == pytest.approx((proved.lr(7), proved.alpha(8), proved.beta(8)))

"""The watch over MSVR's correction: its number against a literal one, its warning where the map is red."""

import math
import warnings

import pytest
import torch

import fcco
from fcco.methods.trackers import Coefficients, Values
from fcco.solver._watch import EVERY, THRESHOLD, WINDOW, CorrectionWarning, CorrectionWatch


def rows(seed, steps=WINDOW // EVERY):
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(3, 4, 2, generator=generator, dtype=torch.float64) + 0.5 for _ in range(steps)]


def literal(probes, gamma, beta):
    moved = sum(((g - before) ** 2).mean() for _, g, before in probes)
    apart = sum(((g - u) ** 2).mean() for u, g, _ in probes)
    return float(gamma**2 * moved / (beta * (2 - beta) * apart))


def fed(probes, log_domain=None, gamma=0.3, beta=0.2, jvp=False, new=None):
    watch = CorrectionWatch()
    marked = None if log_domain is None else torch.tensor(log_domain)
    first = None if new is None else new.unsqueeze(1)
    c = Coefficients(u=1 - beta, now=beta, beta=beta, **({"jvp": gamma} if jvp else {"previous": -gamma}))
    for k, (u, g, before) in enumerate(probes):
        v = Values(u, g, jvp=g - before) if jvp else Values(u, g, before)
        watch.follow(EVERY * (k + 1), c, v, first, marked)
    return watch.rho


@pytest.mark.parametrize("jvp", [False, True])
def test_rho_is_the_formula(jvp):
    probes = rows(0)
    assert fed(probes, jvp=jvp) == pytest.approx(literal(probes, 0.3, 0.2), rel=1e-12)


def test_rho_of_logs_is_that_of_the_values_relative_to_u():
    probes = rows(1)
    relative = [(torch.ones_like(u), g / u, before / u) for u, g, before in probes]
    logs = [[row.log() for row in probe] for probe in probes]
    assert fed(logs, log_domain=[True, True]) == pytest.approx(literal(relative, 0.3, 0.2), rel=1e-10)
    mixed = [[torch.stack([a[:, 0].log(), a[:, 1]], 1) for a in probe] for probe in probes]
    either = [[torch.stack([r[:, 0], a[:, 1]], 1) for r, a in zip(x, y, strict=True)]
              for x, y in zip(relative, probes, strict=True)]  # fmt: skip
    assert fed(mixed, log_domain=[True, False]) == pytest.approx(literal(either, 0.3, 0.2), rel=1e-10)


def test_extreme_logs_stay_finite():
    probes = [(torch.full((4, 1), -400.0), torch.full((4, 1), 400.0), torch.full((4, 1), 0.0))] * (WINDOW // EVERY)
    assert math.isfinite(fed(probes, log_domain=[True]))


def test_blocks_met_for_the_first_time_do_not_count():
    probes = rows(2)
    spoilt = [(torch.cat([u[:2], 100 + u[2:]]), g, before) for u, g, before in probes]
    new = torch.tensor([False, False, True, True])
    assert fed(spoilt, new=new) == pytest.approx(literal([[x[:2] for x in probe] for probe in probes], 0.3, 0.2))


def run(method, lr, m=80, b1=1, steps=WINDOW):
    """g_i(w; xi) = a_i . w + noise, f = sqrt(1 + u^2) + 3/4 sin u: the map's problem, but for the curvature of g."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(m, 5, generator=generator, dtype=torch.float64)
    w = torch.nn.Parameter(torch.ones(5, dtype=torch.float64))
    objective = fcco.objective(
        lambda i, xi: ((a[i] + 0.5 * xi[:, :5]) @ w + 1.0 + xi[:, 5]).unsqueeze(1),
        lambda i, u: ((1 + u * u).sqrt() + 0.75 * u.sin()).squeeze(1),
        num_blocks=m,
        parameters=[w],
    )
    solver = fcco.Solver(objective, torch.optim.SGD([w], lr=lr), method, u0=0.0)
    for _ in range(steps):
        index = torch.randperm(m, generator=generator)[:b1]
        solver.step(index, torch.randn(b1, 6, generator=generator, dtype=torch.float64))
    return solver


@pytest.mark.parametrize("name", ["msvr-v1", "msvr-v2"])
def test_the_red_region_is_warned_of_once(name):
    with pytest.warns(CorrectionWarning, match=r"above 0.5 it does harm.*gamma=0") as caught:
        solver = run(fcco.METHODS[name](alpha=0.1, beta=0.1), lr=0.3)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert solver.correction_share > THRESHOLD


def test_the_other_regions_are_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(fcco.msvr_v2(alpha=0.1, beta=0.1), lr=0.001).correction_share < THRESHOLD
        assert run(fcco.msvr_v2(alpha=0.1, beta=0.1), lr=0.03, m=4, b1=2).correction_share < THRESHOLD
        assert run(fcco.msvr_v2(alpha=0.1, beta=0.1, gamma=0.0), lr=0.3).correction_share == 0.0
        assert run(fcco.sox(alpha=0.1, beta=0.1), lr=0.3).correction_share is None


def test_a_step_that_failed_is_not_watched():
    w = torch.nn.Parameter(torch.ones(2))
    f = fcco.objective(
        lambda i, x: (x @ w).mean(1, keepdim=True), lambda i, u: u.square().squeeze(1), num_blocks=4, parameters=[w]
    )
    solver = fcco.Solver(f, torch.optim.SGD([w], lr=0.1), fcco.msvr_v1(alpha=0.5, beta=0.5))

    def refuse(*_):
        raise MemoryError

    for t in range(1, EVERY + 1):
        if t == EVERY:  # the step that would be watched
            handle = solver.optimizer.register_step_pre_hook(refuse)
            for _ in range(3):
                with pytest.raises(MemoryError):
                    solver.step(torch.tensor([0, 1]), torch.ones(2, 8, 2))
            handle.remove()
            assert solver.state.engine.watch.figures == 0
        solver.step(torch.tensor([0, 1]), torch.ones(2, 8, 2))
    assert solver.state.engine.watch.figures == 1


def test_a_resumed_run_knows_what_was_seen_before(tmp_path):
    def made():
        w = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
        objective = fcco.objective(
            lambda index, x: (x @ w).mean(1, keepdim=True), lambda index, u: u.square().squeeze(1), num_blocks=4,
            parameters=[w],
        )  # fmt: skip
        return fcco.Solver(objective, torch.optim.SGD([w], lr=1e-4), fcco.msvr_v2(alpha=0.5, beta=0.5))

    def go(solver, until):
        while solver.t < until:
            generator = torch.Generator().manual_seed(solver.t)
            index = torch.randperm(4, generator=generator)[:2]
            solver.step(index, torch.randn(2, 3, 2, generator=generator, dtype=torch.float64))

    whole = made()
    go(whole, WINDOW + WINDOW // 2)
    parts = made()
    for until in (WINDOW // 3, WINDOW - 1, WINDOW + WINDOW // 2):
        go(parts, until)
        fcco.save(tmp_path / "state", solver=parts)
        parts = made()
        fcco.load(tmp_path / "state", solver=parts)
    assert whole.correction_share is not None
    assert parts.correction_share == whole.correction_share
    assert torch.equal(parts.state.engine.watch.sums, whole.state.engine.watch.sums)

"""The library's side of the comparison with tests/reference: the same problems in torch, the same runs."""

import dataclasses

import numpy as np
import torch

import fcco
from tests.helpers.methods import TABLE, VALUES
from tests.reference.methods import at, run

# as the reference is run: gamma by the paper's formula
DEFAULTS = {**VALUES, "alpha": 0.2, "beta": 0.3, "gamma": None}


class Curved(fcco.Objective):
    """tests.reference.problem.CurvedProblem; a batch is (rows, weight), both (B, samples)."""

    def __init__(self, problem, w1, project=None):
        super().__init__(num_blocks=problem.m, dim=problem.p)
        self.w = torch.nn.Parameter(torch.tensor(w1))
        self.abc, self.e = torch.tensor(problem.abc), torch.tensor(problem.e)
        self.h, self.q = torch.tensor(problem.h), torch.tensor(problem.q)
        self.factors = torch.tensor([1.0, 0.4, 0.3, 1.0], dtype=torch.float64)
        self.range = project

    def inner(self, index, rows, weight):
        a, b, c = (self.abc[index[:, None], rows] @ self.w).unbind(2)  # (B, samples, p) each
        terms = torch.stack([a.tanh(), b.sin(), c.square(), self.e[index[:, None], rows]])
        return torch.einsum("kbsp,k,bs->bp", terms, self.factors, weight)

    def outer(self, index, u):
        return (self.h[index] * torch.sqrt(1 + u * u)).sum(1) + 0.3 * torch.sin((self.q[index] * u).sum(1))

    def samples(self, index, rows, weight):
        return rows.numel()


class Bounded(Curved):
    """The same with a range for u."""

    def project(self, u):
        return u.clamp(*self.range)


class Logarithmic(fcco.Objective):
    """tests.reference.problem.LogProblem, its logarithmic components handed over as log g."""

    def __init__(self, problem, w1):
        super().__init__(num_blocks=problem.m, dim=problem.p, log_domain=problem.log.tolist())
        self.w = torch.nn.Parameter(torch.tensor(w1))
        self.a, self.b, self.e = (torch.tensor(x) for x in (problem.a, problem.b, problem.e))
        self.h, self.q = torch.tensor(problem.h), torch.tensor(problem.q)
        self.is_log = torch.tensor(problem.log)

    def inner(self, index, rows, weight):
        at = (index[:, None], rows)
        x = self.a[at] @ self.w + 0.3 * torch.sin(self.b[at] @ self.w) + self.e[at]  # (B, samples, p)
        log_g = torch.logsumexp(x + weight.log()[:, :, None], 1)
        return torch.where(self.is_log, log_g, (x.sin() * weight[:, :, None]).sum(1))

    def outer(self, index, u):
        s = torch.where(self.is_log, u, torch.sqrt(1 + u * u))
        return (self.h[index] * s).sum(1) + 0.3 * torch.sin((self.q[index] * s).sum(1))

    def samples(self, index, rows, weight):
        return rows.numel()


def draw(problem, steps, B1=3, B2=2, seed=0, large_every=None):
    """Batches (blocks, rows of each): B1 blocks, B2 samples, n - 1 where a large batch is due."""
    random = np.random.default_rng(seed)
    batches = []
    for t in range(steps):
        size = problem.n - 1 if large_every and t % large_every == 0 else B2
        blocks = random.choice(problem.m, at(B1, t + 1), replace=False).tolist()
        batches.append((blocks, [random.choice(problem.n, size, replace=False).tolist() for _ in blocks]))
    return batches


def tensors(blocks, rows, total=None):
    """A batch as the objectives above take it; `total` is how many samples the weights add up over."""
    rows = torch.tensor(rows)
    return (
        torch.tensor(blocks),
        rows,
        torch.full(rows.shape, 1.0 / (total or rows.shape[1]), dtype=torch.float64),
    )


def full_pass(problem):
    """Every sample of every block, blocks split unevenly over four batches."""
    first, second = list(range(problem.m // 3)), list(range(problem.m // 3, problem.m))
    for rows in (problem.all_rows[:2], problem.all_rows[2:]):
        for blocks in (second, first):
            yield tensors(blocks, [rows] * len(blocks), total=problem.n)


def recipe(name, options):
    """The library's method from the same numbers as the reference's."""
    arguments = {key: options.get(key, DEFAULTS[key]) for key in TABLE[name].rates}
    if name == "scent":
        arguments["alpha"] = options.get("alpha")
    if "nesterov" in options:
        arguments["nesterov"] = options["nesterov"]
    if options.get("lag") is not None:
        arguments["lag"] = options["lag"]
    if "zeta" in options:
        arguments["zeta"] = options["zeta"]
    return fcco.METHODS[name](**arguments)


def reference_run(name, problem, w1, batches, options):
    """The reference with the same numbers; its defaults are this file's."""
    arguments = {**DEFAULTS, **options}
    if name == "scent":
        arguments["alpha"] = options.get("alpha")
    return run(name, problem, w1, batches, **arguments)


def optimizer_of(objective, options):
    """SGD, or the library's own adaptive rule where the reference is told to use its."""
    rule, lr = options.get("adaptive"), at(options["lr"], 1)
    if rule is None:
        return torch.optim.SGD(objective.parameters(), lr=lr, weight_decay=options.get("mu", 0.0))
    rates = dataclasses.asdict(rule)  # beta, delta, amsgrad
    return fcco.Adaptive(objective.parameters(), lr=lr, weight_decay=options.get("mu", 0.0), **rates)


@dataclasses.dataclass
class Trace:
    """What a run of the library leaves to be compared."""

    history: list
    u: np.ndarray  # log u in the components that `log` marks
    z: np.ndarray
    counts: tuple
    log: np.ndarray


def library_run(objective, problem, method, batches, options):
    """The library over the same batches."""
    optimizer = optimizer_of(objective, options)
    needs_pass = TABLE[method.name].finite_sum
    log = np.array(objective.log_domain)
    u0 = options.get("u0")
    solver = fcco.Solver(
        objective,
        optimizer,
        method,
        radius=options.get("radius"),
        full_pass=(lambda: full_pass(problem)) if needs_pass else None,
        normalize=options.get("normalize", False),
        u0=float(np.log(u0)) if log.all() and u0 is not None else u0,  # a row is given as it is kept
        z0=options.get("z0"),
    )
    history = [objective.w.detach().numpy().copy()]
    stages = options.get("stages")
    runner = solver if stages is None else fcco.StageWise(solver, stages, mu=options["mu"])
    for t, (blocks, rows) in enumerate(batches, start=1):
        if stages is None:
            optimizer.param_groups[0]["lr"] = at(options["lr"], t)
        report = runner.step(*tensors(blocks, rows))
        history.append(objective.w.detach().numpy().copy())
    counts = (report.samples, report.oracle.g, report.oracle.j, report.oracle.jvp)
    return Trace(history, solver.u().numpy(), solver.z[0].detach().numpy().copy(), counts, log)


class Nudged:
    """A tracker or an estimator with one of its coefficients 1 % off (None: what the function returns)."""

    def __init__(self, part, function, coefficient):
        self._part, self._function, self._coefficient = part, function, coefficient

    def __getattr__(self, name):
        got = getattr(self._part, name)
        return self._changed(got) if name == self._function else got

    def _changed(self, function):
        def changed(*args, **kwargs):
            numbers = function(*args, **kwargs)
            if self._coefficient is None:
                return 1.01 * numbers
            value = getattr(numbers, self._coefficient)
            off = None if value is None else 1.01 * value  # None: not there at this step
            return dataclasses.replace(numbers, **{self._coefficient: off})

        return changed


def relative(x, y):
    """||x - y|| / ||y||; NaN counts as different."""
    gap = np.linalg.norm(np.asarray(x) - np.asarray(y)) / np.linalg.norm(y)
    return gap if np.isfinite(gap) else np.inf

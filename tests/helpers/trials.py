"""Small runs for the robustness tests: a model with BatchNorm and Dropout, every method, and exact snapshots."""

import inspect
import math
import random

import numpy as np
import torch
from torch import nn

import fcco

BLOCKS, SAMPLES, FEATURES = 6, 5, 4
# what a recipe is given for each of its arguments
VALUES = {"alpha": 0.3, "beta": 0.4, "gamma": 0.5, "theta": 0.5, "period": 4, "step": 0.5}
FINITE_SUM = ("msvr-v3", "variant-v3")


class Noisy(fcco.Objective):
    """g_i is a weighted sum of a small network's outputs over block i's samples; a batch is (x, weight).

    ``fault(probe, g)``, ``outer_fault(probe, f)``, ``project_fault(u)`` and ``samples_fault()`` change what the
    objective returns, or raise; probes are counted from 1 after :meth:`arm`.
    """

    def __init__(self, dim=2, log=False, num_blocks=BLOCKS, width=5, batch_norm=True, dropout=0.2):
        super().__init__(num_blocks=num_blocks, dim=dim, log_domain=log)
        norm = nn.BatchNorm1d(width) if batch_norm else nn.Identity()
        self.model = nn.Sequential(
            nn.Linear(FEATURES, width), norm, nn.Tanh(), nn.Dropout(dropout), nn.Linear(width, dim)
        )
        self.shift = nn.Parameter(torch.full((dim,), 0.1))
        self.disarm()

    def arm(self, *, fault=None, outer_fault=None, project_fault=None, samples_fault=None):
        self._faults = (fault, outer_fault, project_fault, samples_fault)
        self._probes = self._outers = 0

    def disarm(self):
        self.arm()

    def inner(self, index, x, weight):
        y = self.model(x.flatten(0, 1)).unflatten(0, x.shape[:2])  # (B, B2, dim)
        if all(self.log_domain):
            g = torch.logsumexp(y + weight.log().unsqueeze(2), 1)
        else:
            g = (y * weight.unsqueeze(2)).sum(1)
        self._probes += 1
        return g if self._faults[0] is None else self._faults[0](self._probes, g)

    def outer(self, index, u):
        f = (1 + (u - self.shift).square()).sqrt().sum(1) * (1 + index / self.num_blocks)
        self._outers += 1
        return f if self._faults[1] is None else self._faults[1](self._outers, f)

    def project(self, u):
        return u if self._faults[2] is None else self._faults[2](u)

    def samples(self, index, *data):
        return super().samples(index, *data) if self._faults[3] is None else self._faults[3]()


def data(num_blocks=BLOCKS, seed=11):
    """x (m, n, features)."""
    return torch.randn(num_blocks, SAMPLES, FEATURES, generator=torch.Generator().manual_seed(seed))


def full_pass(x):
    """Every sample of every block, in two batches with the blocks split over them."""
    blocks = torch.arange(x.shape[0])
    for part in (slice(0, 2), slice(2, None)):
        yield blocks, x[:, part], torch.full((x.shape[0], x[:, part].shape[1]), 1 / x.shape[1])


def recipe(name, **changes):
    """The named method with the values above."""
    wanted = inspect.signature(fcco.METHODS[name]).parameters
    return fcco.METHODS[name](**{key: VALUES[key] for key in wanted if key in VALUES} | changes)


class Trial:
    """One run of one method: solver, Adam, data. ``batch(t)`` is the same for every trial of the same seed."""

    def __init__(self, name="msvr-v2", *, seed=0, batch_norm=True, dropout=0.2, changes=None, **options):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        log = name == "scent"
        self.objective = Noisy(dim=1 if log else 2, log_domain=log, batch_norm=batch_norm, dropout=dropout)
        self.optimizer = torch.optim.Adam(self.objective.parameters(), lr=0.02)
        self.x = data()
        if name in FINITE_SUM:
            options.setdefault("full_pass", lambda: full_pass(self.x))
        if name.endswith("-sp"):
            options.setdefault("radius", 2.0)
        self.solver = fcco.Solver(self.objective, self.optimizer, recipe(name, **(changes or {})), **options)

    def batch(self, t, blocks=3, samples=3):
        own = torch.Generator().manual_seed(1000 + t)
        index = torch.randperm(BLOCKS, generator=own)[:blocks]
        rows = torch.stack([torch.randperm(SAMPLES, generator=own)[:samples] for _ in range(blocks)])
        return index, self.x[index[:, None], rows], torch.full((blocks, samples), 1 / samples)

    def run(self, first, last):
        """Good steps first..last."""
        for t in range(first, last + 1):
            self.solver.step(*self.batch(t))
        return self

    def snapshot(self):
        return snapshot(self.solver)


def snapshot(solver):
    """Everything that a failed step must leave alone, read from where it lies and through ``state_dict``."""
    z = solver.z
    return {
        "t": solver.t,
        "samples": solver.samples,
        "skipped": solver.skipped,
        "oracle": (solver.oracle.g, solver.oracle.j, solver.oracle.jvp),
        "weights": {name: p.detach().clone() for name, p in solver.objective.named_parameters()},
        "buffers": {name: b.clone() for name, b in solver.objective.named_buffers()},
        "u": solver.u(),
        "visited": solver.state.engine.table.visited.clone(),
        "z": None if z is None else [part.clone() for part in z],
        "previous": None if solver.state.engine.previous is None else [w.clone() for w in solver.state.engine.previous],
        "method": repr(solver.method),
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": tuple(np.random.get_state()),
        "training": [part.training for part in solver.objective.modules()],
        "gradients on": torch.is_grad_enabled(),
        "state": solver.state_dict(),
    }


def difference(a, b, where=""):
    """Where two nested states differ, bit for bit; None where they do not."""
    if isinstance(a, np.ndarray):
        a, b = torch.from_numpy(a.astype("int64")), torch.from_numpy(b.astype("int64"))
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b))
        return None if same else f"{where}: {a} != {b}"
    if type(a) is not type(b):
        return f"{where}: {type(a).__name__} != {type(b).__name__}"
    if isinstance(a, dict):
        if list(a) != list(b):
            return f"{where}: keys {list(a)} != {list(b)}"
        pairs = [(a[key], b[key], f"{where}[{key!r}]") for key in a]
    elif isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return f"{where}: lengths {len(a)} != {len(b)}"
        if len(a) > 100 and all(type(item) is int for item in a):  # Python's random state
            return None if a == b else f"{where}: differ"
        pairs = [(x, y, f"{where}[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True))]
    else:
        same = a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))
        return None if same else f"{where}: {a!r} != {b!r}"
    return next((found for pair in pairs if (found := difference(*pair)) is not None), None)


def _bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def assert_same(a, b):
    found = difference(a, b)
    assert found is None, found


def without_counts(state):
    """A snapshot without what a skipped step is allowed to change."""
    inner = {key: value for key, value in state["state"].items() if key not in ("samples", "skipped")}
    return {k: v for k, v in state.items() if k not in ("samples", "skipped")} | {"state": inner}

"""Small runs for the robustness tests: a model with BatchNorm and Dropout, every method, and exact snapshots."""

import random

import numpy as np
import torch
from torch import nn

import fcco
from tests.helpers.methods import TABLE, recipe

BLOCKS, SAMPLES, FEATURES = 6, 5, 4


class Noisy(fcco.Objective):
    """g_i is a weighted sum of a small network's outputs over block i's samples; a batch is (x, weight).

    ``fault(probe, g)``, ``outer_fault(probe, f)``, ``project_fault(u)`` and ``samples_fault()`` change what the
    objective returns, or raise; probes are counted from 1 after :meth:`arm`.
    """

    def __init__(self, dim=2, log_domain=False, num_blocks=BLOCKS, width=5, batch_norm=True, dropout=0.2):
        super().__init__(num_blocks=num_blocks, dim=dim, log_domain=log_domain)
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


def noisy_for(name, **options):
    """The objective above as the named method needs it."""
    log_domain = TABLE[name].log_domain
    return Noisy(dim=1 if log_domain else 2, log_domain=log_domain, **options)


def needs(name, passes):
    """What a Solver has to be given for the named method besides the usual."""
    row = TABLE[name]
    given = {}
    if row.finite_sum:
        given["full_pass"] = passes
    if row.single_point:
        given["radius"] = 2.0
    return given


class Trial:
    """One run of one method: solver, Adam, data. ``batch(t)`` is the same for every trial of the same seed.

    ``passes`` is where a finite-sum method finds its data: put something else there to spoil a pass.
    """

    def __init__(self, name="msvr-v2", *, seed=0, batch_norm=True, dropout=0.2, changes=None, **options):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        self.objective = noisy_for(name, batch_norm=batch_norm, dropout=dropout)
        self.optimizer = torch.optim.Adam(self.objective.parameters(), lr=0.02)
        self.x = data()
        self.passes = lambda: full_pass(self.x)
        self.solver = fcco.Solver(
            self.objective,
            self.optimizer,
            recipe(name, **(changes or {})),
            **needs(name, lambda: self.passes()) | options,
        )

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


def without_counts(state):
    """A snapshot without what a skipped step is allowed to change."""
    counts = ("samples", "skipped")
    saved = state["state"]
    record = {key: value for key, value in saved["state"].items() if key not in counts}
    left = {key: value for key, value in state.items() if key not in counts}
    return left | {"state": saved | {"state": record}}

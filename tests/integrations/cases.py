"""One small problem with everything that a resumed run must find: dropout, BatchNorm, a full pass, a memory."""

from dataclasses import replace

import torch
from torch import nn

import fcco

EPOCH = 5  # steps
METHODS = {
    "msvr-v2": lambda: fcco.msvr_v2(alpha=0.3, beta=0.3),
    "msvr-v3": lambda: fcco.msvr_v3(alpha=0.3, beta=0.3, period=4),
    "soap": lambda: fcco.soap(beta=0.3),
    "memory": lambda: fcco.output_memory(refresh=2),
}


def data():
    """x (40, 5) and ten positives among the labels."""
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(1))
    return x, (torch.arange(40) % 4 == 0).long()


def make_objective():
    torch.manual_seed(2)
    network = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
    return fcco.objectives.PartialAUC(network, fcco.data.Points(*data()))


def make_parts(objective, name, **options):
    """Solver and loader; the random numbers of the run begin here."""
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.01)
    solver = fcco.Solver(objective, optimizer, METHODS[name](), **options)
    loader = solver.loader(blocks=2, samples=4, seed=0, steps_per_epoch=EPOCH)
    torch.manual_seed(3)
    return solver, loader


def plain_run(name, epochs=3, gamma=1.0, bfloat16=False):
    """The loop that every framework's must equal; the learning rate shrinks by gamma after each step.

    bfloat16: under autocast without its cache, whose copies of w_t would serve the probe at w_{t-1} too.
    """
    solver, loader = make_parts(make_objective(), name)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(solver.optimizer, gamma)
    for _ in range(epochs):
        for batch in loader:
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16, cache_enabled=False):
                solver.step(batch)
            scheduler.step()
    return solver


def outcome(solver):
    """Weights, buffers, u, counters, and what a next step would draw from."""
    return {
        "objective": {name: value.clone() for name, value in solver.objective.state_dict().items()},
        "adam": [state["exp_avg_sq"] for state in solver.optimizer.state_dict()["state"].values()],
        "lr": [group["lr"] for group in solver.optimizer.param_groups],
        "u": None if solver.method.memory is not None else solver.u(),
        "counts": (solver.t, solver.samples, solver.oracle.g, solver.oracle.j),
    }


class Unsized:
    """A loader that does not know its length: a framework would read it ahead."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)

    def state_dict(self):
        return self.loader.state_dict()

    def load_state_dict(self, state):
        self.loader.load_state_dict(state)


class Spoiled(Unsized):
    """A loader whose examples are not numbers."""

    def __iter__(self):
        for batch in self.loader:
            yield replace(batch, x=torch.full_like(batch.x, torch.nan))

    def __len__(self):
        return len(self.loader)


class Stateless:
    """A loader that cannot be resumed."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)

    def __len__(self):
        return len(self.loader)


class Silent(Stateless):
    """A loader that does not tell its place in the epoch."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


WRONG_LOADERS = {
    "unsized": (Unsized, "have a length"),
    "stateless": (Stateless, "state_dict and load_state_dict"),
    "silent": (Silent, "must have 'step'"),
}

"""The run behind the checkpoints that are kept in files/: each must load in every later version and go on bit for bit.

`python -m tests.checkpoint.kept` writes files/tracked-<version of the state>.pt; a new version of the format gets a new
file beside the old ones, which then load by migration. Everything is a sum of powers of two, so that no machine rounds.
"""

from pathlib import Path

import torch
from torch import nn

import fcco
from fcco.solver._saving import STATE_VERSION

FILES = Path(__file__).with_name("files")
CUT, STEPS = 3, 6


class Halves(fcco.Objective):
    """g_i = x w plus noise of one bit, f = u^2/2; a buffer counts the passes."""

    def __init__(self):
        super().__init__(num_blocks=4, dim=1)
        self.w = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def constants(self):
        return {"power": 2}

    def inner(self, index, x):
        self.calls += 1
        return x @ self.w.unsqueeze(1) + torch.randint(0, 2, (len(index), 1), dtype=torch.float64)

    def outer(self, index, u):
        return u.square().squeeze(1) / 2


def full_pass():
    yield torch.arange(4), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)


def make_run():
    """Solver and sampler: every field of the record is in use."""
    torch.manual_seed(0)
    objective = Halves()
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.0625, momentum=0.5)
    method = fcco.msvr_v3(alpha=0.5, beta=0.5, gamma=0.5, period=4)
    solver = fcco.Solver(objective, optimizer, method, full_pass=full_pass, keep="uniform", seed=1)
    return solver, fcco.BlockSampler(4, 2, seed=2)


def run(solver, sampler, steps):
    for _ in range(steps):
        index = next(sampler)
        x = torch.randint(-1, 2, (2, 2), dtype=torch.float64)
        solver.step(index, x)


def write(folder=FILES):
    """The run up to the cut, in one file."""
    solver, sampler = make_run()
    run(solver, sampler, CUT)
    path = folder / f"tracked-{STATE_VERSION}.pt"
    fcco.save(path, solver=solver, loader=sampler)
    return path


if __name__ == "__main__":
    write()

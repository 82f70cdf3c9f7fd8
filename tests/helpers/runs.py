"""Whole training runs for the tests of checkpoints, and files that they must refuse."""

import random

import numpy as np
import pytest
import torch

import fcco
from fcco.methods.stages import Stage
from fcco.solver import StageWise
from tests.helpers.methods import recipe
from tests.helpers.same import assert_same
from tests.helpers.trials import SAMPLES, data, full_pass, needs, noisy_for, snapshot

STAGES = [Stage(2, 0.05, 0.5, 0.6), Stage(4, 0.03, 0.3, 0.4), Stage(3, 0.02, 0.2, 0.3)]


class Run:
    """A whole training run: solver, Adam with a scheduler, sampler, stages where asked for, a uniform iterate.

    Samples are drawn by torch's, Python's and numpy's global generators in turn: a resumed run must find all three.
    """

    def __init__(self, name="msvr-v2", seed=0, stages=None, optimizer=torch.optim.Adam, **options):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        self.objective = noisy_for(name)
        self.optimizer = optimizer(self.objective.parameters(), lr=0.02)
        self.x = data()
        options = {"keep": "uniform", "seed": seed} | needs(name, lambda: full_pass(self.x)) | options
        self.solver = fcco.Solver(self.objective, self.optimizer, recipe(name), **options)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.sampler = fcco.BlockSampler(self.objective.num_blocks, 3, seed=seed)
        self.stages = None if stages is None else StageWise(self.solver, stages, drawn=True, seed=seed)

    @property
    def parts(self):
        """What a checkpoint holds, by keyword."""
        parts = {"solver": self.solver, "loader": self.sampler, "scheduler": self.scheduler}
        return parts if self.stages is None else parts | {"stages": self.stages}

    def step(self):
        index = next(self.sampler)
        one = int(torch.randint(SAMPLES, ()))
        rows = [(one + shift) % SAMPLES for shift in (0, 1 + random.randrange(2), 3 + np.random.randint(2))]
        batch = index, self.x[index][:, rows], torch.full((3, 3), 1 / 3)
        (self.stages or self.solver).step(*batch)
        self.scheduler.step()

    def steps(self, count):
        for _ in range(count):
            if self.stages is None or not self.stages.finished:
                self.step()
        return self

    def snapshot(self):
        return {
            **snapshot(self.solver),
            "kept": self.solver.kept(),
            "sampler": self.sampler.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "stages": None if self.stages is None else self.stages.state_dict(),
        }


def refused(path, run, says="."):
    """Loading must raise a CheckpointError and leave the run as it was; returns the message."""
    before = run.snapshot()
    with pytest.raises(fcco.CheckpointError, match=says) as caught:
        fcco.load(path, **run.parts)
    assert_same(before, run.snapshot())
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def goes_on_as_before(run, **setting):
    """After the refusals, the next steps are those of a run that never tried to load."""
    went_on = run.steps(2).snapshot()
    assert_same(went_on, Run(**setting).steps(4).snapshot())

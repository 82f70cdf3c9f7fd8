"""The network that every gradient method of the arena trains on a table, and how its runs are followed."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from benchmarks.arena.problems import Split
from benchmarks.arena.scoring import score


def network(split: Split, seed: int, width: int = 128, dropout: float = 0.3) -> nn.Module:
    """Two hidden layers with dropout: (N, F) -> (N, outputs)."""
    torch.manual_seed(seed)
    features = split.x_train.shape[1]
    return nn.Sequential(
        nn.Linear(features, width),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(width, split.outputs),
    )


@torch.no_grad()
def predict(model: nn.Module, x: Tensor, chunk: int = 4096) -> Tensor:
    """Outputs of the model in evaluation mode: (N, outputs)."""
    before = model.training
    model.eval()
    outputs = torch.cat([model(part) for part in x.split(chunk)])
    model.train(before)
    return outputs


def run_length(split: Split, epochs: float = 20.0, at_least: int = 100_000) -> int:
    """R, the examples of one run: 20 epochs, but at least 100,000."""
    return max(round(epochs * len(split.x_train)), at_least)


@dataclass
class Course:
    """A run followed: the metric on validation per check, and the weights where it was best.

    Args:
        split: of the problem.
        model: that is trained.
        length: examples of the whole run.
        checks: how many times validation is looked at.
    """

    split: Split
    model: nn.Module
    length: int
    checks: int = 20
    seen: int = 0
    history: list[float] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)
    start: float = field(default_factory=time.process_time)

    @property
    def ended(self) -> bool:
        return self.seen >= self.length

    def advance(self, examples: int) -> None:
        """Count the examples of a step; look at validation where it is due."""
        self.seen += examples
        if self.seen < self.length * (len(self.history) + 1) / self.checks:
            return
        value = score(self.split, _finite(predict(self.model, self.split.x_valid)), "valid")
        if not self.history or value > max(self.history):
            self.best = copy.deepcopy(self.model.state_dict())
        self.history.append(value)

    def row(self) -> dict[str, object]:
        """What is kept of the run; the model is left with its best weights."""
        last = score(self.split, _finite(predict(self.model, self.split.x_test)))
        last_valid = self.history[-1]
        self.model.load_state_dict(self.best)
        best_valid = max(self.history)
        return {
            "valid": best_valid,
            "test": score(self.split, _finite(predict(self.model, self.split.x_test))),
            "last_valid": last_valid,
            "last_test": last,
            "at": (self.history.index(best_valid) + 1) / len(self.history),
            "examples": self.seen,
        }


def _finite(scores: Tensor) -> Tensor:
    """A network that has left the numbers behind ranks at random."""
    return torch.nan_to_num(scores, 0.0, 0.0, 0.0)


def cosine(optimizer: torch.optim.Optimizer, lr: float, progress: float) -> None:
    """The learning rate at ``progress`` in [0, 1]."""
    for group in optimizer.param_groups:
        group["lr"] = lr * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))

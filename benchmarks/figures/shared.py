"""What the plans have in common: the paper's methods, and runs of equal samples."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.figures.sets import SETS
from fcco.lab.config import TrainConfig, recipe_arguments
from fcco.lab.lengths import steps_within

METHODS = ("sox", "msvr-v1", "msvr-v2", "msvr-v3")
#: MSVR-v3 again, every full pass charged n samples in place of m n, so that it takes more steps.
V3_BY_N = "msvr-v3 (n per pass)"


def lasting(config: TrainConfig, budget: int, by_n: bool = False) -> TrainConfig:
    """The same run with as many steps as the budget of samples allows, v3's full passes charged m n (or n)."""
    facts = SETS[config.dataset]
    drawn = (config.blocks or 1) * config.samples
    labels = facts.classes * facts.train
    if "period" not in recipe_arguments(config.method):
        return replace(config, steps=budget // drawn)
    period = max(1, round(labels / drawn))  # the theorem's I = m n/(B1 B2)
    charged = labels
    if by_n:
        charged = facts.train
    return replace(config, period=period, steps=steps_within(budget, drawn, period, charged))

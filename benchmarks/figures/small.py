"""What two CPU cores can do of "where does variance reduction pay?" and of "freely tuned": small problems of their own.

Their studies have names of their own, so that rows of another length or network never stand beside the GPU's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from benchmarks.figures.grids import Grid, points_of
from benchmarks.figures.runs import Run
from benchmarks.figures.studies import Point, Rung, Study
from fcco.lab.config import TrainConfig

SEEDS = (0, 1, 2)
PAYS = "pays-small"
FREE = "free-small"

#: Linear scores: label -> method, what differs. Steps are chosen so that all are charged 300,000 samples, with n per
#: full pass of MSVR-v3.
CONVEX: dict[str, tuple[str, dict[str, object]]] = {
    "sox": ("sox", {}),
    "sox nesterov": ("sox", {"nesterov": True}),
    "msvr-v1": ("msvr-v1", {}),
    "msvr-v2": ("msvr-v2", {}),
    "msvr-v3 (n per pass)": ("msvr-v3", {"period": 100, "steps": 2_400}),
}
CONVEX_GRID: Grid = {
    "lr": (0.003, 0.01, 0.03, 0.1),
    "alpha": (0.003, 0.03, 0.3),
    "beta": (0.003, 0.03, 0.3),
}
CONVEX_RUNGS = (Rung(1 / 6, 36), Rung(1.0, 8))

PANEL_METHODS = ("sox", "msvr-v1", "msvr-v2")
PANEL_GRID: Grid = {
    "lr": (0.03, 0.1, 0.3),
    "alpha": (0.1, 1.0),
    "beta": (0.1, 0.5),
}
LATE_GRID: Grid = {**PANEL_GRID, "lr": (0.003, 0.01, 0.03)}
PANEL_RUNGS = (Rung(1 / 4, 12), Rung(1.0, 4))

#: Every family has a learning rate of the same number of values, and the same number of points drawn from its space.
FREE_RUNGS = (Rung(1 / 4, 12), Rung(1.0, 3))
SGD_RATES = (0.05, 0.1, 0.2, 0.5, 1.0)
ADAM_RATES = (0.0001, 0.0002, 0.0005, 0.001, 0.002)
FREE_SPACE: Grid = {
    "alpha": (0.1, 0.3, 0.9),
    "beta": (0.1, 0.5, 0.9),
    "lag": (0, 1),
    "schedule": ("constant", "step"),
}
DAMPED: Grid = {"gamma": (0.1, 0.5), "zeta": (0.025, 0.1, 0.3, 1.0)}
FREE_FAMILIES: dict[str, tuple[str, Grid]] = {
    "sox": ("sox", {"lr": SGD_RATES}),
    "sox nesterov": ("sox", {"lr": SGD_RATES, "nesterov": (True,)}),
    "sox adam": ("sox", {"lr": ADAM_RATES, "optimizer": ("adam",)}),
    "sox nadam": ("sox", {"lr": ADAM_RATES, "optimizer": ("nadam",)}),
    "msvr-v2 scaled": ("msvr-v2", {"lr": SGD_RATES, **DAMPED}),
}


def small_studies() -> Iterator[Study]:
    """The most important first."""
    yield from _convex()
    yield from _panel("cifar100-pca64, B1 = 1", "cifar100-pca64", 1)
    yield from _free()
    yield from _panel("cifar100-pca64, B1 = 5", "cifar100-pca64", 5)
    yield from _panel("cifar100-pca64, B1 = 2", "cifar100-pca64", 2)
    yield from _panel("cifar10-pca64, late, small lr", "cifar10-pca64", 5, late=True)


def _convex() -> Iterator[Study]:
    """Linear scores in double precision: the distance to the optimum, which is known."""
    for label, (method, more) in CONVEX.items():
        config = TrainConfig(
            dataset="mnist-pca32", model="linear", method=method, blocks=2, samples=32, steps=4_700, precision="fp64",
            tensorboard=False,
        )  # fmt: skip
        base = Run(replace(config, **more), points=24)  # type: ignore[arg-type]
        yield Study(f"{PAYS}/linear scores/{label}", base, SEEDS, points_of(CONVEX_GRID), CONVEX_RUNGS)


def _mlp(dataset: str, method: str, blocks: int) -> TrainConfig:
    return TrainConfig(
        dataset=dataset, model="mlp", method=method, blocks=blocks, samples=32, steps=1_000, eval_examples=5_000,
        tensorboard=False,
    )  # fmt: skip


def _panel(panel: str, dataset: str, blocks: int, *, late: bool = False) -> Iterator[Study]:
    """An MLP on principal components, equal steps."""
    for method in PANEL_METHODS:
        base = Run(_mlp(dataset, method, blocks), points=20, whole=True)
        grid = points_of(PANEL_GRID)
        if late:
            base = replace(base, warm_up=2_000)
            grid = points_of(LATE_GRID)
        yield Study(f"{PAYS}/{panel}/{method}", base, SEEDS, grid, PANEL_RUNGS)


def _free() -> Iterator[Study]:
    for label, (method, space) in FREE_FAMILIES.items():
        base = Run(_mlp("cifar10-pca64", method, 5), points=20, whole=True)
        grid = random_points({**FREE_SPACE, **space}, FREE_RUNGS[0].points, label)
        yield Study(f"{FREE}/cifar10-pca64/{label}", base, SEEDS, grid, FREE_RUNGS)


def random_points(space: Mapping[str, Sequence[object]], count: int, seed: str) -> tuple[Point, ...]:
    """Points of a space, each once."""
    random_numbers = random.Random(seed)
    found: dict[Point, None] = {}
    while len(found) < count:
        found[tuple((name, random_numbers.choice(values)) for name, values in space.items())] = None
    return tuple(found)

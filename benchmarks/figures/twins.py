"""A small twin of every figure of the paper's experiments, for one core of a CPU.

An MLP on 64 whitened principal components of the first 2,000 images of each set, B1/m = 1/2 as in the paper, B2 = 32 (16 for
CIFAR-100's hundred tasks) in place of 128. As many samples for every method as three periods of MSVR-v3 are charged:
2 m n for a full pass and the I = m n/(B1 B2) steps after it. Studies have names of their own, so that rows of another
length or network never stand beside the GPU's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.figures.grids import Grid, points_of
from benchmarks.figures.runs import Run
from benchmarks.figures.sets import SETS
from benchmarks.figures.shared import METHODS, V3_BY_N, lasting
from benchmarks.figures.studies import Rung, Study
from fcco.lab.config import TrainConfig

FIGURE1, FIGURE2, FIGURE3, FIGURE4, FIGURE5 = (f"small-figure{number}" for number in range(1, 6))
FIGURES = (FIGURE1, FIGURE2, FIGURE3, FIGURE4, FIGURE5)
SEEDS = (0, 1, 2, 3, 4)
PERIODS = 3

DATASETS = ("cifar100", "cifar10", "fashion-mnist", "svhn", "stl10", "mnist")
#: Figure 2's own set, and another.
ABLATED = DATASETS[:2]
#: Searched over the whole grid; the others over the points that were best on CIFAR-10.
SEARCHED = DATASETS[:3]
VARIANTS = ("v1", "v2", "v3")
#: Figure 3's networks: hidden layers; (128,) is Figure 1's.
NETWORKS = {"MLP 512": (512,), "MLP 128-128-128": (128, 128, 128)}
#: Figures 4 and 5: B1 beside the middle B2, B2 beside the middle B1, for so many steps.
MIDDLE = (5, 64)
BLOCKS = (2, 5, 9)
SAMPLES = (32, 64, 128)
SIZED_STEPS = 600

#: The paper's alpha and beta without 1.0 (and beta without 0.9), where v2 is v1, and where MSVR's correction is off.
#: Learning rates a factor of 1.6 apart: between F's best rate and divergence there is less than a factor of three.
GRID: Grid = {"lr": (0.063, 0.1, 0.16, 0.25, 0.4, 0.63), "alpha": (0.1, 0.5, 0.9), "beta": (0.1, 0.5)}
#: F is a mean over tasks, so a hundred of them want larger rates.
HUNDRED_TASKS: Grid = {**GRID, "lr": (0.4, 0.63, 1.0, 1.6, 2.5, 4.0)}
#: For B1 = 2, and for the wide network: they diverge at lower rates.
FEW_BLOCKS: Grid = {**GRID, "lr": (0.04, 0.063, 0.1, 0.16, 0.25, 0.4)}
WIDE_NETWORK: Grid = {**GRID, "lr": (0.025, 0.04, 0.063, 0.1, 0.16, 0.25)}
RUNGS = (Rung(1 / 6, 36), Rung(1 / 2, 12), Rung(1.0, 4))
#: For another set or network: the points that were best with CIFAR-10's, or with Figure 1's network.
SHORT = (Rung(1 / 4, 8), Rung(1.0, 3))
#: For MSVR-v3's other charge, and for the middle sizes: the best points of Figure 1.
LAST = (Rung(1.0, 3),)
MIDDLE_RUNGS = (Rung(1.0, 6),)


def twin_studies() -> Iterator[Study]:
    """Claims that nothing else speaks of come first."""
    for dataset in ABLATED:
        yield from _figure1(dataset)
        yield from _figure2(dataset)
    yield from _figure1("fashion-mnist")
    yield from _figures_4_and_5()
    yield from _figure1("svhn")
    yield from _figure3("MLP 128-128-128")
    for method in METHODS[1:]:
        yield from _tuned_sizes(method)
    yield from _sizes(METHODS[0])
    yield _by_n("cifar10")
    yield _by_n("fashion-mnist")
    for dataset in ("stl10", "mnist"):
        yield from _figure1(dataset)
    yield from _figure3("MLP 512")
    for dataset in ("svhn", "stl10", "mnist", "cifar100"):
        yield _by_n(dataset)


def twin_run(dataset: str, method: str, *, hidden: tuple[int, ...] = (128,), by_n: bool = False) -> Run:
    """A reported run, rates and seed still open."""
    name = f"{dataset}-2k-pca64"
    facts = SETS[name]
    samples = 32
    if facts.classes >= 100:
        samples = 16
    config = TrainConfig(
        dataset=name, model="mlp", hidden=hidden, method=method, blocks=facts.classes // 2, samples=samples,
        tensorboard=False,
    )  # fmt: skip
    budget = PERIODS * 2 * facts.classes * facts.train
    return Run(lasting(config, budget, by_n), points=30)


def grid_of(dataset: str) -> Grid:
    """The points that are searched."""
    if dataset == "cifar100":
        return HUNDRED_TASKS
    return GRID


def _figure1(dataset: str) -> Iterator[Study]:
    for method in METHODS:
        name = f"{FIGURE1}/{dataset}/{method}"
        base = twin_run(dataset, method)
        if dataset in SEARCHED:
            yield Study(name, base, SEEDS, points_of(grid_of(dataset)), RUNGS)
        else:
            yield Study(name, base, SEEDS, (), SHORT, f"{FIGURE1}/cifar10/{method}")


def _by_n(dataset: str) -> Study:
    """MSVR-v3 with n samples per full pass: the best points of the other charge at the greater length."""
    prefix = f"{FIGURE1}/{dataset}"
    base = twin_run(dataset, "msvr-v3", by_n=True)
    return Study(f"{prefix}/{V3_BY_N}", base, SEEDS, (), LAST, f"{prefix}/msvr-v3")


def _figure2(dataset: str) -> Iterator[Study]:
    """Variants; MSVR's own curves are those of Figure 1."""
    for number in VARIANTS:
        method = f"variant-{number}"
        name = f"{FIGURE2}/{dataset}/{method}"
        yield Study(name, twin_run(dataset, method), SEEDS, points_of(grid_of(dataset)), RUNGS)


def _figure3(label: str) -> Iterator[Study]:
    """The wide network has the whole grid: of the points that it could borrow, all but SOX's diverged."""
    for method in METHODS:
        base = twin_run("svhn", method, hidden=NETWORKS[label])
        name = f"{FIGURE3}/{label}/{method}"
        if label == "MLP 512":
            yield Study(name, base, SEEDS, points_of(WIDE_NETWORK), RUNGS)
        else:
            yield Study(name, base, SEEDS, (), SHORT, f"{FIGURE1}/svhn/{method}")


def _figures_4_and_5() -> Iterator[Study]:
    for method in METHODS[1:]:
        yield from _sizes(method)


def _sizes(method: str) -> Iterator[Study]:
    """Tuned at the middle sizes, whose curve stands in both figures; equal steps."""
    tuned = f"{FIGURE4}/{method}/B1 = {MIDDLE[0]}"
    ranked = f"{FIGURE1}/fashion-mnist/{method}"
    yield Study(tuned, _sized(method, *MIDDLE), SEEDS, (), MIDDLE_RUNGS, ranked)
    for blocks in BLOCKS:
        if blocks != MIDDLE[0]:
            base = _sized(method, blocks, MIDDLE[1])
            yield Study(f"{FIGURE4}/{method}/B1 = {blocks}", base, SEEDS, from_study=tuned)
    for samples in SAMPLES:
        if samples != MIDDLE[1]:
            base = _sized(method, MIDDLE[0], samples)
            yield Study(f"{FIGURE5}/{method}/B2 = {samples}", base, SEEDS, from_study=tuned)


def _tuned_sizes(method: str) -> Iterator[Study]:
    """Other B1 with rates of their own: with those of the middle one, B1 = 2 diverges."""
    for blocks, grid in ((BLOCKS[0], FEW_BLOCKS), (BLOCKS[-1], GRID)):
        name = f"{FIGURE4}/{method}/B1 = {blocks}, tuned"
        yield Study(name, _sized(method, blocks, MIDDLE[1]), SEEDS, points_of(grid), RUNGS)


def sized(method: str) -> tuple[dict[str, str], dict[str, str]]:
    """Label -> study of Figure 4's curves, and of Figure 5's, the smallest size first."""
    blocks = {f"B1 = {size}": f"{FIGURE4}/{method}/B1 = {size}" for size in BLOCKS}
    samples = {f"B2 = {size}": f"{FIGURE5}/{method}/B2 = {size}" for size in SAMPLES}
    samples[f"B2 = {MIDDLE[1]}"] = blocks[f"B1 = {MIDDLE[0]}"]
    return blocks, samples


def _sized(method: str, blocks: int, samples: int) -> Run:
    """A run of other sizes; MSVR-v3's period is the theorem's I = m n/(B1 B2) for each."""
    usual = twin_run("fashion-mnist", method)
    config = replace(usual.config, blocks=blocks, samples=samples)
    return replace(usual, config=replace(lasting(config, 1), steps=SIZED_STEPS))

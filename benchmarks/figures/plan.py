"""The plan: every study behind the figures, in order of priority."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from benchmarks.figures.grids import points_of
from benchmarks.figures.runs import Run
from benchmarks.figures.sets import SETS
from benchmarks.figures.shared import METHODS, V3_BY_N, lasting
from benchmarks.figures.small import small_studies
from benchmarks.figures.studies import Point, Rung, Study
from benchmarks.figures.twins import twin_studies
from fcco.lab.config import TrainConfig
from fcco.lab.space import PAPER

FIGURE1 = ("cifar10", "fashion-mnist", "svhn", "stl10", "mnist", "cifar100")
SEEDS = (0, 1, 2, 3, 4)

#: Samples per run, the same for all methods. On CIFAR-100 one full pass of v3 is charged 2.5 million.
BUDGET = 1_200_000
BUDGETS = {"cifar100": 5_000_000}

HALVING = (Rung(1 / 12, 80), Rung(1 / 4, 16), Rung(1.0, 4))
#: On CIFAR-100 a step has ten times the images.
HALVINGS = {"cifar100": (Rung(1 / 20, 80), Rung(1 / 5, 12), Rung(1.0, 3))}
#: For another network or stem: the points that were best with ResNet18.
SHORT = (Rung(1 / 4, 8), Rung(1.0, 3))


def whole_plan() -> list[Study]:
    """Every study, the most important first."""
    return [
        *_figure1(),
        *_figure2(),
        *_figure3(),
        *_figures_4_and_5(),
        *_stems(),
        *_free(),
        *_generalisation(),
        *_pays(),
        *small_studies(),
        *twin_studies(),
    ]


def only(studies: Sequence[Study], prefixes: Sequence[str]) -> list[Study]:
    """The studies whose names begin with one of the prefixes, in the order of the prefixes; all without any.

    A prefix ends where a word of the name ends: figure1/cifar10 does not stand for figure1/cifar100.
    """
    if not prefixes:
        return list(studies)
    chosen: dict[str, Study] = {}
    for prefix in prefixes:
        found = {study.name: study for study in studies if _begins(study.name, prefix)}
        if not found:
            raise SystemExit(f"no study begins with {prefix!r}; `plan` lists them")
        chosen.update((name, study) for name, study in found.items() if name not in chosen)
    return list(chosen.values())


def _begins(name: str, prefix: str) -> bool:
    if not name.startswith(prefix):
        return False
    rest = name[len(prefix) :]
    return not rest[:1].isalnum() or not prefix[-1:].isalnum()


# ---------------------------------------------------------------------- runs


def deep_run(dataset: str, method: str, *, model: str = "resnet18", stem: str = "imagenet", by_n: bool = False) -> Run:
    """A reported run of the paper's protocol, rates and seed still open."""
    facts = SETS[dataset]
    blocks = 5
    if facts.classes >= 100:
        blocks = 50
    config = TrainConfig(
        dataset=dataset, model=model, stem=stem, method=method, blocks=blocks, samples=128,  # type: ignore[arg-type]
        eval_examples=_eval_examples(dataset), tensorboard=False,
    )  # fmt: skip
    return Run(lasting(config, BUDGETS.get(dataset, BUDGET), by_n), points=30, whole=True)


def _eval_examples(dataset: str) -> int:
    if SETS[dataset].train <= 5_000:
        return 0
    return 5_000


def _seeds(dataset: str) -> tuple[int, ...]:
    if dataset == "cifar100":
        return SEEDS[:3]
    return SEEDS


# ---------------------------------------------------------------------- item 1, the paper's figures


def _figure1() -> Iterator[Study]:
    grid = points_of(PAPER)
    for dataset in FIGURE1:
        rungs = HALVINGS.get(dataset, HALVING)
        for method in METHODS:
            yield Study(f"figure1/{dataset}/{method}", deep_run(dataset, method), _seeds(dataset), grid, rungs)
        base = deep_run(dataset, "msvr-v3", by_n=True)
        last = (Rung(1.0, rungs[-1].points),)
        yield Study(
            f"figure1/{dataset}/{V3_BY_N}", base, _seeds(dataset), (), last, f"figure1/{dataset}/msvr-v3"
        )  # fmt: skip


def _figure2() -> Iterator[Study]:
    """Variants; MSVR's own curves are those of Figure 1."""
    for number in ("v1", "v2", "v3"):
        method = f"variant-{number}"
        base = deep_run("cifar100", method)
        yield Study(f"figure2/cifar100/{method}", base, SEEDS[:3], points_of(PAPER), HALVINGS["cifar100"])


def _figure3() -> Iterator[Study]:
    """Other networks; ResNet18's curves are those of Figure 1."""
    for model in ("resnet34", "densenet121"):
        for method in METHODS:
            base = deep_run("svhn", method, model=model)
            yield Study(f"figure3/{model}/{method}", base, SEEDS[:3], (), SHORT, f"figure1/svhn/{method}")


def _figures_4_and_5() -> Iterator[Study]:
    """Other batch sizes with the rates tuned at (5, 128), for equal steps; (5, 128) itself is Figure 1's."""
    sizes = {
        "figure4": {f"B1 = {b1}": (b1, 128) for b1 in (2, 9)},
        "figure5": {f"B2 = {b2}": (5, b2) for b2 in (32, 64)},
    }
    for figure, labels in sizes.items():
        for method in METHODS[1:]:
            usual = deep_run("fashion-mnist", method)
            for label, (blocks, samples) in labels.items():
                config = replace(usual.config, blocks=blocks, samples=samples)
                config = replace(lasting(config, BUDGET), steps=usual.steps)
                base = replace(usual, config=config)
                tuned = f"figure1/fashion-mnist/{method}"
                yield Study(f"{figure}/{method}/{label}", base, SEEDS, from_study=tuned)


def _stems() -> Iterator[Study]:
    """The stem for small images; torchvision's own is Figure 1's."""
    for method in METHODS:
        base = deep_run("cifar10", method, stem="small")
        yield Study(f"stems/cifar10/{method}", base, SEEDS[:3], (), SHORT, f"figure1/cifar10/{method}")


# ---------------------------------------------------------------------- item 2, freely tuned

FREE_RUNGS = (Rung(1 / 9, 36), Rung(1 / 3, 10), Rung(1.0, 3))
FREE_SPACE: dict[str, tuple[object, ...]] = {
    "optimizer": ("sgd", "adam", "nadam"),
    "schedule": ("constant", "step"),
    "alpha": (0.03, 0.1, 0.3, 0.5, 0.9),
    "beta": (0.03, 0.1, 0.3, 0.5, 0.9, 1.0),
    "lag": (0, 1),
    "radius": (None, None, 1.0),
}
RATES_OF = {
    "sgd": (0.003, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05),
    "adam": (0.0001, 0.0003, 0.001, 0.003),
    "nadam": (0.0001, 0.0003, 0.001, 0.003),
}
FREE: dict[str, tuple[str, dict[str, tuple[object, ...]]]] = {
    "sox": ("sox", {}),
    "sox nesterov": ("sox", {"nesterov": (True,)}),
    "msvr-v1": ("msvr-v1", {"gamma": (None, 0.05, 0.1, 0.3, 0.5, 0.9)}),
    "msvr-v1 nesterov": ("msvr-v1", {"gamma": (None, 0.05, 0.1, 0.3, 0.5, 0.9), "nesterov": (True,)}),
    "msvr-v2": ("msvr-v2", {"gamma": (None, 0.05, 0.1, 0.3, 0.5, 0.9)}),
    "msvr-v2 scaled": (
        "msvr-v2",
        {"gamma": (None, 0.05, 0.1, 0.3, 0.5, 0.9), "zeta": (0.025, 0.05, 0.1, 0.2, 0.3)},
    ),
}


def _free() -> Iterator[Study]:
    """Every family gets as many points drawn from its space, the same number of samples, the same halving."""
    for label, (method, more) in FREE.items():
        space = {**FREE_SPACE, **more}
        grid = drawn_points(space, FREE_RUNGS[0].points, label)
        yield Study(f"free/cifar10/{label}", deep_run("cifar10", method), SEEDS[:3], grid, FREE_RUNGS)


def drawn_points(space: Mapping[str, Sequence[object]], count: int, seed: str) -> tuple[Point, ...]:
    """Random points, each once; the learning rate goes by the optimizer."""
    random_numbers = random.Random(seed)
    found: dict[Point, None] = {}
    while len(found) < count:
        point = {name: random_numbers.choice(values) for name, values in space.items()}
        point["lr"] = random_numbers.choice(RATES_OF[str(point["optimizer"])])
        found[tuple(point.items())] = None
    return tuple(found)


# ---------------------------------------------------------------------- item 4, generalisation

BASELINE_GRID: dict[str, tuple[object, ...]] = {
    "lr": (1e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1),
    "alpha": (1.0, 0.1),  # momentum is 1 - alpha
    "weight_decay": (0.0, 1e-4, 1e-3, 1e-2, 5e-2),
}


def _generalisation() -> Iterator[Study]:
    """Baselines with the network, batch, samples and number of tuning runs of Figure 1's methods."""
    for dataset in ("cifar10", "fashion-mnist"):
        for trainer in ("cross-entropy", "aucm"):
            base = replace(deep_run(dataset, "sox"), trainer=trainer)
            name = f"general/{dataset}/{trainer}"
            yield Study(name, base, SEEDS, points_of(BASELINE_GRID), HALVING)


# ---------------------------------------------------------------------- item 3, where variance reduction pays

PAYS_RUNGS = (Rung(1 / 4, 45), Rung(1.0, 8))
PAYS_GRID: dict[str, tuple[object, ...]] = {
    "lr": (0.003, 0.01, 0.03, 0.1, 0.3),
    "alpha": (0.1, 0.5, 1.0),
    "beta": (0.1, 0.5, 0.9),
}
LATE_GRID: dict[str, tuple[object, ...]] = {**PAYS_GRID, "lr": (0.0003, 0.001, 0.003, 0.01, 0.03)}


def _pays() -> Iterator[Study]:
    """An MLP without BatchNorm, so that F is one function whatever the batch; equal steps within a panel."""
    for b1 in (1, 2, 5, 50):
        yield from _mlp_panel(f"cifar100, B1 = {b1}", "cifar100", b1, 128)
    for b2 in (2, 8, 32):
        yield from _mlp_panel(f"cifar10, B2 = {b2}", "cifar10", 5, b2)
    yield from _mlp_panel("cifar10, large batches", "cifar10", 9, 1024)
    yield from _mlp_panel("cifar10, late, small lr", "cifar10", 5, 128, late=True)


def _mlp_panel(panel: str, dataset: str, blocks: int, samples: int, *, late: bool = False) -> Iterator[Study]:
    for method in METHODS[:3]:
        config = TrainConfig(
            dataset=dataset, model="mlp", method=method, blocks=blocks, samples=samples, steps=2_000, eval_examples=5_000,
            tensorboard=False,
        )  # fmt: skip
        base = Run(config, points=30, whole=True)
        grid = points_of(PAYS_GRID)
        if late:
            base = replace(base, warm_up=2_000)
            grid = points_of(LATE_GRID)
        yield Study(f"pays/{panel}/{method}", base, SEEDS[:3], grid, PAYS_RUNGS)


# ---------------------------------------------------------------------- a small plan to try it all


def quick_plan() -> list[Study]:
    """Minutes on a CPU: every kind of study, none of the paper's sizes."""
    grid = points_of({"lr": (0.01, 0.1, 0.3), "alpha": (0.5, 1.0), "beta": (0.5,)})
    rungs = (Rung(1 / 4, 6), Rung(1.0, 2))
    studies = []
    for method in METHODS:
        base = _quick_run(method, 120)
        studies.append(Study(f"figure1/fashion-mnist/{method}", base, (0, 1), grid, rungs))
    base = _quick_run("msvr-v3", 200)
    last = (Rung(1.0, 2),)
    tuned = "figure1/fashion-mnist/msvr-v3"
    studies.append(Study(f"figure1/fashion-mnist/{V3_BY_N}", base, (0, 1), (), last, tuned))
    for label, b1 in (("B1 = 2", 2), ("B1 = 9", 9)):
        usual = _quick_run("msvr-v2", 120)
        sized = replace(usual, config=replace(usual.config, blocks=b1))
        studies.append(Study(f"figure4/msvr-v2/{label}", sized, (0, 1), from_study="figure1/fashion-mnist/msvr-v2"))
    scaled = (*grid[0], ("zeta", 0.1), ("schedule", "step"))
    studies.append(
        Study("free/fashion-mnist/msvr-v2 scaled", _quick_run("msvr-v2", 120), (0, 1), (scaled,), (Rung(1.0, 1),))
    )
    entropy = replace(_quick_run("sox", 120), trainer="cross-entropy")
    studies.append(Study("general/fashion-mnist/cross-entropy", entropy, (0, 1), grid, rungs))
    return studies


def _quick_run(method: str, steps: int) -> Run:
    config = TrainConfig(
        dataset="fashion-mnist", model="mlp", hidden=(32,), method=method, blocks=5, samples=32, eval_examples=2_000,
        tensorboard=False,
    )  # fmt: skip
    config = replace(lasting(config, 1), steps=steps)
    if config.period is not None:
        config = replace(config, period=80)
    return Run(config, points=8, whole=True)

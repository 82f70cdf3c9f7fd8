"""The paper's experiments: what it fixes, and what it leaves open, chosen once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

from fcco.lab.config import TrainConfig, recipe_arguments
from fcco.lab.datasets import Dataset
from fcco.lab.parts import default_blocks
from fcco.lab.space import PAPER

METHODS = ("sox", "msvr-v1", "msvr-v2", "msvr-v3")
DATASETS = ("stl10", "cifar10", "cifar100", "mnist", "fashion-mnist", "svhn")


@final
@dataclass(frozen=True)
class Protocol:
    """Everything that the runs behind a figure share. The first group is the paper's, the second was left open by it.

    Attributes:
        model: the network.
        samples: B2.
        grid: what is searched for each method.
        seeds: runs per curve.

        margin: c of the squared hinge.
        passes: a run draws this many times m n samples.
        positive_fraction: share of positives among a task's B2 samples.
        evaluations: points on a curve, about.
        hidden: widths, where the model is an MLP.
        halving: tune by successive halving instead of in full.
        shortened: how this run falls short of the paper's protocol.
    """

    model: str = "resnet18"
    samples: int = 128
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: dict(PAPER))
    seeds: int = 5

    margin: float = 1.0
    passes: float = 10.0
    positive_fraction: float = 0.5
    evaluations: int = 40
    hidden: tuple[int, ...] = (256, 256)
    halving: bool = False
    shortened: str = ""

    def notes(self) -> str:
        """Return the note for every figure: what was chosen where the paper says nothing."""
        searched = []
        for name, values in self.grid.items():
            numbers = ", ".join(f"{value:g}" for value in values)
            searched.append(f"{name} in {{{numbers}}}")
        grid = "; ".join(searched)
        text = (
            f"Tuned per method by final F at seed 0 over {grid}; mean ± one standard deviation over {self.seeds} "
            f"seeds. Chosen where the paper leaves it open: margin c = {self.margin:g}; I = m n/(B1 B2) steps; every "
            f"run draws {self.passes:g} m n samples; {self.positive_fraction:.0%} of a task's samples are positives; a "
            "block's first probe starts its u; no augmentation; SGD, constant step size; plotted is F on all training "
            "data, in training mode where there is BatchNorm, over batches composed as in training. "
            "Every full pass of v3 is charged m n samples, though the tasks share their images. "
            "beta = 1 (undefined in the paper's gamma) was run with gamma = 0, that is u = g."
        )
        if self.shortened:
            return f"{self.shortened}\n{text}"
        return text


#: For tests and first impressions: nothing of the paper's but the comparison.
QUICK = Protocol(
    model="mlp",
    samples=32,
    grid={"lr": (0.1, 0.3), "alpha": (0.5,), "beta": (0.5,)},
    seeds=2,
    passes=1.4,
    evaluations=6,
    hidden=(32,),
    shortened="QUICK RUN, not the paper's protocol: a small MLP, a grid of two points, two seeds, few steps.",
)


def shortened(protocol: Protocol, budget: float) -> Protocol:
    """Return the same protocol on a part of its samples, tuned by halving, with a note that says so."""
    if budget == 1.0:
        return protocol
    text = f"{protocol.shortened} SHORTENED: {budget:.0%} of the samples, tuned by successive halving.".strip()
    return replace(protocol, passes=protocol.passes * budget, halving=True, shortened=text)


@final
@dataclass(frozen=True)
class Group:
    """One curve: a label, and its configuration before tuning and seeds.

    Args:
        tuned_as: the configuration whose tuned rates it takes; its own where None.
    """

    panel: str
    label: str
    method: str
    config: TrainConfig
    tuned_as: TrainConfig


@final
@dataclass(frozen=True)
class Figure:
    """A figure of the paper: its curves, and what is drawn against what."""

    name: str
    title: str
    x: str
    x_label: str
    groups: tuple[Group, ...]


def base(protocol: Protocol, data: Dataset, method: str, *, model: str | None = None) -> TrainConfig:
    """Return a run of the protocol whose rates are still open."""
    m = data.num_classes
    n = len(data.x_train)
    blocks = default_blocks(m)
    network = protocol.model
    if model is not None and protocol.model != "mlp":
        network = model
    steps = protocol.passes * m * n / (blocks * protocol.samples)
    config = TrainConfig(
        dataset=data.name,
        model=network,
        hidden=protocol.hidden,
        method=method,
        blocks=blocks,
        samples=protocol.samples,
        positive_fraction=protocol.positive_fraction,
        margin=protocol.margin,
        total_samples=round(protocol.passes * m * n),
        eval_every=max(1, round(steps / protocol.evaluations)),
        tensorboard=False,
    )
    return _with_period(config, m * n)


def _with_period(config: TrainConfig, labels: int) -> TrainConfig:
    """Return the same run with the theorem's period, I = m n/(B1 B2), where its method has one."""
    if "period" not in recipe_arguments(config.method):
        return config
    drawn = (config.blocks or 1) * config.samples
    return replace(config, period=max(1, round(labels / drawn)))


def figure_groups(name: str, protocol: Protocol, sets: list[Dataset]) -> Iterator[Group]:
    """Yield the curves of a figure."""
    for data in sets:
        if name == "figure1":
            for method in METHODS:
                yield _group(data.name, method, base(protocol, data, method))
        elif name == "figure2":
            yield from _variants(protocol, data)
        elif name == "figure3":
            for model, method in itertools.product(("resnet18", "resnet34", "densenet121"), METHODS):
                yield _group(f"{model} on {data.name}", method, base(protocol, data, method, model=model))
        else:
            yield from _sizes(name, protocol, data)


def _variants(protocol: Protocol, data: Dataset) -> Iterator[Group]:
    """Yield the curves of figure 2: each version of MSVR beside its Variant."""
    for number in ("v1", "v2", "v3"):
        for method in (f"msvr-{number}", f"variant-{number}"):
            yield _group(f"{number} on {data.name}", method, base(protocol, data, method))


def _group(panel: str, method: str, config: TrainConfig) -> Group:
    return Group(panel, method, method, config, config)


def _sizes(name: str, protocol: Protocol, data: Dataset) -> Iterator[Group]:
    """Yield the curves of figures 4 and 5: other batch sizes, at the rates of the usual ones, for equal steps."""
    b2 = protocol.samples
    if name == "figure4":
        sizes = {f"B1 = {b1}": (b1, b2) for b1 in (2, 5, 9)}
    else:
        sizes = {f"B2 = {samples}": (5, samples) for samples in (b2 // 4, b2 // 2, b2)}
    for method in METHODS[1:]:
        usual = base(protocol, data, method)
        steps = (usual.total_samples or 1) // ((usual.blocks or 1) * usual.samples)
        for label, (blocks, samples) in sizes.items():
            config = replace(usual, blocks=blocks, samples=samples, total_samples=None, steps=steps)
            config = _with_period(config, data.num_classes * len(data.x_train))
            yield Group(f"{method} on {data.name}", label, method, config, usual)

"""The settings on a device: multi-task AUC with three networks, average precision with two, and launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fcco.data import Points, Tasks
from fcco.lab.bench.launches import counted
from fcco.lab.bench.libauc import libauc_steps
from fcco.lab.bench.literal import Literal, LiteralSOX, LiteralV1, LiteralV2, TaskDraw, captured, repeated
from fcco.lab.bench.problems import (
    CLASSES,
    METHODS,
    NEVER,
    RATES,
    Layout,
    Lookup,
    Network,
    PlainData,
    Precision,
    Sizes,
    class_numbers,
    images,
    loader_steps,
    network,
    plain_steps,
    points,
    seeded,
    solver_of,
    solver_steps,
    tasks,
    tf32,
)
from fcco.lab.bench.rows import Name, Row, Step, Way
from fcco.lab.bench.timing import Budget, Steps, measured, release
from fcco.objectives import AveragePrecision, MultiTaskAUC, OutputObjective, PartialAUC

Makers = dict[Name, Callable[[], Steps]]
LITERAL: dict[Step, type[Literal]] = {Step.SOX: LiteralSOX, Step.V1: LiteralV1, Step.V2: LiteralV2}


def setting(problem: str, kind: Network, precision: Precision) -> str:
    """What a setting is called in rows, tables and verdicts."""
    return f"{problem}, {kind.value}, {precision.value}"


def auc_setting(kind: Network, precision: Precision) -> str:
    """A setting of the multi-task AUC."""
    return setting("multi-task AUC", kind, precision)


def ap_setting(kind: Network) -> str:
    """A setting of the average precision."""
    return setting("average precision", kind, Precision.BF16)


# ---------------------------------------------------------------------- multi-task AUC


@final
@dataclass(frozen=True)
class AUC:
    """Contenders of the multi-task AUC over images on the device.

    Args:
        kind: the network.
        precision: of the network.
        sizes: of data and batches.
        device: on a CPU nothing is captured: the floors are the literal steps as they are, fcco's are left out.
        data: ten tasks over the images.
        x: the images.
    """

    kind: Network
    precision: Precision
    sizes: Sizes
    device: torch.device
    data: Tasks
    x: Tensor

    @classmethod
    def over(cls, x: Tensor, kind: Network, precision: Precision, sizes: Sizes) -> AUC:
        return cls(kind, precision, sizes, x.device, tasks(x), x)

    @property
    def name(self) -> str:
        return auc_setting(self.kind, self.precision)

    @property
    def captures(self) -> bool:
        return self.device.type == "cuda"

    def makers(self) -> Makers:
        """How each contender is made."""
        found: Makers = {Name(self.name, Step.PLAIN): self.plain}
        if self.kind.is_convolutional:
            # As anybody's step is who has not asked for another layout.
            found[Name(self.name, Step.PLAIN_CONTIGUOUS)] = partial(self.plain, Layout.CONTIGUOUS)
        for step in METHODS:
            found[Name(self.name, step)] = partial(self.solver, step, capture=False)
        for step in METHODS:
            if self.captures:
                found[Name(self.name, step, Way.CAPTURED)] = partial(self.solver, step, capture=True)
        for step, kind in LITERAL.items():
            found[Name(self.name, step, Way.FLOOR)] = partial(self.floor, kind)
        return found

    def plain(self, layout: Layout = Layout.CHANNELS_LAST) -> Steps:
        """Plain SGD on the ten one-vs-rest columns."""
        target = one_hot(class_numbers(self.x.shape[0], self.device), CLASSES).float()
        size = self.sizes.blocks * self.sizes.samples
        return plain_steps(self._network(layout), PlainData(self.x, target), size, capture=False)

    def solver(self, step: Step, *, capture: bool) -> Steps:
        """fcco."""
        objective = MultiTaskAUC(self._network(), self.data)
        solver = solver_of(objective, step, capture=capture)
        return solver_steps(solver, self.sizes.blocks, self.sizes.samples)

    def floor(self, kind: type[Literal], layout: Layout = Layout.CHANNELS_LAST) -> Steps:
        """The step by hand."""
        generator = seeded(self.device)
        positives = self.sizes.samples // 2
        literal = kind(self._network(layout), self.x, CLASSES, positives, RATES)
        members = class_numbers(self.x.shape[0], self.device).argsort(stable=True).view(CLASSES, -1)
        draw = TaskDraw(members, self.sizes.blocks, positives, generator)

        def step() -> None:
            literal.step(*draw())

        if self.captures:
            return captured(step, generator)
        return repeated(step)

    def _network(self, layout: Layout = Layout.CHANNELS_LAST) -> Any:
        return network(self.kind, self.precision, CLASSES, self.device, layout)


def run_auc(kind: Network, sizes: Sizes, device: torch.device, budget: Budget) -> Iterator[list[Row]]:
    """One network, in both precisions."""
    x = images(sizes.images, device)
    for precision in Precision:
        yield timed(AUC.over(x, kind, precision, sizes).makers(), device, budget.split(len(Precision)))


def timed(makers: Makers, device: torch.device, budget: Budget) -> list[Row]:
    """Rows of one setting; what its contenders held is given back."""
    with tf32():
        rows, running = measured(makers, device, budget)
    running.clear()
    release(device)
    return rows


# ---------------------------------------------------------------------- average precision


@final
@dataclass(frozen=True)
class AP:
    """Contenders of the average precision, 2 % positives; the memory's tables are full when the timing begins.

    Args:
        kind: the network; in bf16.
        sizes: of data and batches.
        device: as of :class:`AUC`.
        data: example numbers with their labels.
        pool: the images that they stand for.
    """

    kind: Network
    sizes: Sizes
    device: torch.device
    data: Points
    pool: Tensor

    @classmethod
    def over(cls, pool: Tensor, kind: Network, sizes: Sizes) -> AP:
        return cls(kind, sizes, pool.device, points(sizes.ids, pool.device), pool)

    @property
    def name(self) -> str:
        return ap_setting(self.kind)

    def makers(self) -> Makers:
        """How each contender is made."""
        ways = {Way.EAGER: False}
        if self.device.type == "cuda":
            ways[Way.CAPTURED] = True
        found: Makers = {}
        for way, capture in ways.items():
            found[Name(self.name, Step.PLAIN, way)] = partial(self.plain, capture=capture)
            found[Name(self.name, Step.SOX, way)] = partial(self.sox, capture=capture)
            found[Name(self.name, Step.MEMORY_AP, way)] = partial(self.memory, Step.MEMORY_AP, capture=capture)
            found[Name(self.name, Step.MEMORY_PAUC, way)] = partial(self.memory, Step.MEMORY_PAUC, capture=capture)
        found[Name(self.name, Step.LIBAUC)] = self.libauc
        if self.kind.is_convolutional:
            found[Name(self.name, Step.LIBAUC_CONTIGUOUS)] = partial(self.libauc, Layout.CONTIGUOUS)
        return found

    def plain(self, *, capture: bool) -> Steps:
        """Plain SGD on the binary cross-entropy."""
        id = torch.arange(self.sizes.ids, device=self.device)
        size = self.sizes.positives + self.sizes.others
        return plain_steps(self._model(), PlainData(id, self.data.y), size, capture=capture)

    def sox(self, *, capture: bool) -> Steps:
        """fcco's tracker."""
        objective = AveragePrecision(self._model(), self.data)
        solver = solver_of(objective, Step.SOX, capture=capture)
        return solver_steps(solver, self.sizes.positives, self.sizes.others)

    def memory(self, step: Step, *, capture: bool) -> Steps:
        """fcco's output memory."""
        model = self._model()
        objective: OutputObjective = AveragePrecision(model, self.data)
        if step is Step.MEMORY_PAUC:
            objective = PartialAUC(model, self.data)
        solver = solver_of(objective, step, capture=capture)
        loader: Any = solver.loader(self.sizes.positives, self.sizes.others, steps_per_epoch=NEVER)
        scores = torch.randn(self.sizes.ids, generator=seeded(self.device), device=self.device)
        with model.instead(scores + 2.0 * self.data.y):
            loader.score(self.sizes.fill)
        return loader_steps(solver, loader)

    def libauc(self, layout: Layout = Layout.CHANNELS_LAST) -> Steps:
        """LibAUC's loss and optimizer, on batches of the same composition."""
        return libauc_steps(self._model(layout), self.data.y, self.sizes.positives, self.sizes.others, RATES)

    def _model(self, layout: Layout = Layout.CHANNELS_LAST) -> Lookup:
        return Lookup(network(self.kind, Precision.BF16, 1, self.device, layout), self.pool)


def run_ap(kind: Network, sizes: Sizes, device: torch.device, budget: Budget) -> Iterator[list[Row]]:
    """One network."""
    pool = images(sizes.images, device)
    yield timed(AP.over(pool, kind, sizes).makers(), device, budget)


# ---------------------------------------------------------------------- launches


def launch_setting(kind: Network) -> str:
    """A setting in which launches are counted, not times."""
    return setting("launches per step", kind, Precision.BF16)


def run_launches(sizes: Sizes, device: torch.device, budget: Budget) -> Iterator[list[Row]]:
    """What the host asks of the device, with eager and captured SOX and MSVR-v2, and with their floors."""
    x = images(sizes.images, device)
    for kind in (Network.SMALL_STEM, Network.MLP):
        makers = AUC.over(x, kind, Precision.BF16, sizes).makers()
        rows = []
        for name, make in makers.items():
            if name.step in (Step.SOX, Step.V2):
                rows.append(counted(Name(launch_setting(kind), name.step, name.way), make, budget.warm))
                release(device)
        yield rows

"""Networks, data, and the steps of plain SGD and of fcco over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import fcco
from fcco.data import Batch, Points, Tasks
from fcco.lab.bench.literal import Rates, captured, repeated
from fcco.lab.bench.rows import Step
from fcco.lab.bench.timing import Steps
from fcco.lab.models import build, channels_last

CLASSES = 10
SHAPE = (3, 32, 32)
NEVER = 10**9  # steps; a run of the benchmark takes fewer
RATES = Rates()
METHODS = (Step.SOX, Step.V1, Step.V2, Step.V3)


class Network(Enum):
    """What is trained."""

    SMALL_STEM = "ResNet18, small-image stem"
    OWN_STEM = "ResNet18, torchvision's stem"
    MLP = "MLP 3072-64-10"

    @property
    def is_convolutional(self) -> bool:
        return self is not Network.MLP


class Precision(Enum):
    """What the network computes in."""

    BF16 = "bf16"
    TF32 = "TF32"


class Layout(Enum):
    """How the weights of convolutions lie in memory: as torch makes them, or with their channels innermost."""

    CONTIGUOUS = "contiguous"
    CHANNELS_LAST = "channels last"


@final
@dataclass(frozen=True)
class Sizes:
    """How much data there is, and how much of it goes into a step.

    Args:
        images: that exist.
        ids: examples of the average precision's data; they share the images.
        blocks: B1 of the multi-task AUC.
        samples: B2 of it, half of them positives.
        positives: of a batch of the average precision.
        others: of such a batch.
        fill: examples per batch when the memory's table is filled.
    """

    images: int = 50_000
    ids: int = 1_000_000
    blocks: int = 5
    samples: int = 128
    positives: int = 64
    others: int = 576
    fill: int = 65_536


QUICK = Sizes(images=60, ids=600, blocks=2, samples=4, positives=3, others=5, fill=200)


def seeded(device: torch.device) -> torch.Generator:
    """A generator on the device, always the same."""
    return torch.Generator(device).manual_seed(0)


def images(number: int, device: torch.device) -> Tensor:
    """Random images (number, 3, 32, 32) of 256 grey levels, float."""
    levels = torch.randint(256, (number, *SHAPE), generator=seeded(device), device=device, dtype=torch.uint8)
    return levels.float().div_(255.0)


# ---------------------------------------------------------------------- networks


class Rounded(nn.Module):
    """A network in a precision of its own; its outputs are float32 again.

    Args:
        net: the network.
        precision: TF32 is torch's own setting, see :func:`tf32`.
    """

    def __init__(self, net: nn.Module, precision: Precision) -> None:
        super().__init__()
        self.net = net
        self._bf16 = precision is Precision.BF16

    def forward(self, x: Tensor) -> Tensor:
        # Without a cache, which no graph could refill; each weight is cast once per pass either way.
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self._bf16, cache_enabled=False):
            out: Tensor = self.net(x)
        return out.float()


def network(
    kind: Network, precision: Precision, outputs: int, device: torch.device, layout: Layout = Layout.CHANNELS_LAST
) -> Rounded:
    """A network with the same weights every time."""
    torch.manual_seed(0)
    if kind is Network.SMALL_STEM:
        net = build("resnet18", SHAPE, outputs, stem="small")
    elif kind is Network.OWN_STEM:
        net = build("resnet18", SHAPE, outputs, stem="imagenet")
    else:
        net = build("mlp", SHAPE, outputs, hidden=(64,))
    model = Rounded(net, precision).to(device)
    if layout is Layout.CHANNELS_LAST:
        return channels_last(model)
    return model


class Lookup(nn.Module):
    """One score per example number: of the image that it stands for.

    Args:
        net: (K, 3, 32, 32) -> (K, 1).
        pool: (P, 3, 32, 32) the images; example k has number k mod P.
    """

    def __init__(self, net: nn.Module, pool: Tensor) -> None:
        super().__init__()
        self.net = net
        self._pool = (pool,)  # in a tuple: as a buffer it would be copied wherever buffers are
        self._given: Tensor | None = None

    def forward(self, id: Tensor) -> Tensor:
        if self._given is not None:
            return self._given[id]
        pool = self._pool[0]
        out: Tensor = self.net(pool[id % pool.shape[0]])
        return out.squeeze(1)

    @contextmanager
    def instead(self, scores: Tensor) -> Iterator[None]:
        """Within the block the scores (N,) stand in for the network: a table of 10^6 of them is filled in no time."""
        self._given = scores
        try:
            yield
        finally:
            self._given = None


@contextmanager
def tf32() -> Iterator[None]:
    """Products of float32 matrices in TF32, as its convolutions are by default."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# ---------------------------------------------------------------------- steps


RECIPES: dict[Step, str] = {
    Step.SOX: "sox",
    Step.V1: "msvr-v1",
    Step.V2: "msvr-v2",
    Step.V3: "msvr-v3",
    Step.V1_SP: "msvr-v1-sp",
    Step.V2_SP: "msvr-v2-sp",
}


def method_of(step: Step) -> fcco.Method:
    """The method of a step; v3 takes its one full pass before it is timed."""
    if step in (Step.MEMORY_AP, Step.MEMORY_PAUC):
        return fcco.output_memory()
    rates: dict[str, Any] = {"alpha": RATES.alpha, "beta": RATES.beta}
    if step is Step.V3:
        rates["period"] = NEVER
    return fcco.METHODS[RECIPES[step]](**rates)


def solver_of(objective: fcco.Objective, step: Step, *, capture: bool, **options: Any) -> fcco.Solver:
    """A solver with plain SGD under it."""
    optimizer = torch.optim.SGD(objective.parameters(), lr=RATES.lr)
    if capture:
        options["capture"] = True
    return fcco.Solver(objective, optimizer, method_of(step), **options)


def solver_steps(solver: fcco.Solver, blocks: int, samples: int) -> Steps:
    """Steps on batches as they come from the solver's loader."""
    return loader_steps(solver, solver.loader(blocks, samples, steps_per_epoch=NEVER))


def loader_steps(solver: fcco.Solver, loader: Iterable[Batch]) -> Steps:
    """Steps on batches as they come."""
    batches = iter(loader)

    def steps(number: int) -> None:
        for batch in islice(batches, number):
            solver.step(batch)

    return steps


def given_steps(solver: fcco.Solver, blocks: int, samples: int) -> Steps:
    """Steps on one batch, again and again: what the draw costs is left out."""
    batch = next(iter(solver.loader(blocks, samples)))
    return repeated(lambda: solver.step(batch))


@final
@dataclass(frozen=True)
class PlainData:
    """What plain SGD trains on: examples x (N, ...) and 0/1 targets (N, T) or (N,)."""

    x: Tensor
    target: Tensor


def plain_step(model: nn.Module, data: PlainData, size: int, generator: torch.Generator) -> Callable[[], None]:
    """A step of plain SGD on the binary cross-entropy, over ``size`` examples drawn uniformly."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATES.lr)

    def step() -> None:
        id = torch.randint(data.x.shape[0], (size,), generator=generator, device=generator.device)
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(model(data.x[id]), data.target[id]).backward()
        optimizer.step()

    return step


def plain_steps(model: nn.Module, data: PlainData, size: int, *, capture: bool) -> Steps:
    """Plain SGD, eager or captured by hand."""
    generator = seeded(data.x.device)
    step = plain_step(model, data, size, generator)
    if capture:
        return captured(step, generator)
    return repeated(step)


# ---------------------------------------------------------------------- data


def class_numbers(number: int, device: torch.device) -> Tensor:
    """Ten classes of equal size (number,)."""
    return torch.arange(number, device=device) % CLASSES


def tasks(x: Tensor) -> Tasks:
    """Ten one-vs-rest tasks over the examples."""
    return Tasks(x, class_numbers(x.shape[0], x.device))


def rare_labels(number: int, device: torch.device) -> Tensor:
    """0/1 labels (number,), 2 % of them positive."""
    return (torch.arange(number, device=device) % 50 == 0).float()


def points(number: int, device: torch.device) -> Points:
    """Examples that are their own numbers, 2 % of them positive."""
    return Points(torch.arange(number, device=device), rare_labels(number, device))

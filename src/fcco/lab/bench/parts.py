"""The parts of the benchmark, and which of them can run here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import final

import torch

from fcco.lab.bench import cpu, overhead, settings
from fcco.lab.bench.problems import QUICK, Network, Sizes
from fcco.lab.bench.rows import Row
from fcco.lab.bench.timing import Budget

#: Yields the rows of a setting as soon as it is measured.
Run = Callable[[Budget], Iterator[list[Row]]]


def nothing_missing() -> str | None:
    """For parts that run anywhere."""
    return None


def no_cuda() -> str | None:
    """For parts that need a CUDA device."""
    if torch.cuda.is_available():
        return None
    return "needs a CUDA device"


@final
@dataclass(frozen=True)
class Part:
    """A part of the table.

    Args:
        name: for ``--only``.
        run: measures it.
        share: how much of the seconds it gets, beside the others.
        missing: why it cannot run here; None: it can.
    """

    name: str
    run: Run
    share: float
    missing: Callable[[], str | None] = nothing_missing

    @property
    def group(self) -> str:
        """What it runs on, for ``--only`` too."""
        if self.missing is no_cuda:
            return "cuda"
        return "cpu"


def all_parts(*, quick: bool) -> list[Part]:
    """Every part, those on the device first."""
    sizes = Sizes()
    width = overhead.WIDTH
    if quick:
        sizes = QUICK
        width = 4
    device = torch.device("cuda")
    return [
        Part("resnet-small", _auc(Network.SMALL_STEM, sizes, device), 3.0, no_cuda),
        Part("resnet-own", _auc(Network.OWN_STEM, sizes, device), 2.0, no_cuda),
        Part("mlp", _auc(Network.MLP, sizes, device), 1.0, no_cuda),
        Part("ap-resnet", partial(settings.run_ap, Network.SMALL_STEM, sizes, device), 2.0, no_cuda),
        Part("ap-mlp", partial(settings.run_ap, Network.MLP, sizes, device), 1.0, no_cuda),
        Part("launches", partial(settings.run_launches, sizes, device), 0.0, no_cuda),
        Part("tiny", partial(cpu.run_small, cpu.TINY), 1.0),
        Part("wide", partial(cpu.run_small, cpu.WIDE), 1.0),
        Part("memory", cpu.run_memory, 1.0),
        Part("peers", cpu.run_peers, 1.0, cpu.peers_missing),
        Part("ratios", partial(overhead.run_ratios, width), 4.0),
        Part("blocks", overhead.run_blocks, 0.5),
    ]


def _auc(kind: Network, sizes: Sizes, device: torch.device) -> Run:
    return partial(settings.run_auc, kind, sizes, device)

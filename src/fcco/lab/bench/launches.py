"""What a step asks of a CUDA device: launches, copies and waits, by torch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch.profiler import ProfilerActivity, profile

from fcco.lab.bench.rows import Launches, Name, Row
from fcco.lab.bench.timing import Steps, quiet
from fcco.lab.errors import one_line

STEPS = 20
KERNELS = (
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cudaLaunchCooperativeKernel",
)
GRAPHS = ("cudaGraphLaunch",)
COPIES = ("cudaMemcpyAsync", "cudaMemcpy", "cudaMemsetAsync")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")


def counted(name: Name, make: Callable[[], Steps], warm: int) -> Row:
    """A row with the launches of a contender."""
    row = Row(name)
    try:
        with quiet():
            steps = make()
            steps(warm)
            torch.cuda.synchronize()
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
                steps(STEPS)
    except Exception as error:  # as in measured(): the other rows are worth having
        row.failed = f"{type(error).__name__}: {one_line(error)}"
        return row
    counts = {event.key: int(event.count) for event in profiler.key_averages()}
    row.launches = per_step(counts, STEPS)
    return row


def per_step(counts: dict[str, int], steps: int) -> Launches:
    """Calls into the CUDA runtime by kind.

    Example:
        >>> per_step({"cudaLaunchKernel": 30, "cudaGraphLaunch": 10, "aten::add": 7}, 10)
        Launches(kernels=3.0, graphs=1.0, copies=0.0, waits=0.0)
    """

    def rate(kinds: Iterable[str]) -> float:
        return sum(counts.get(kind, 0) for kind in kinds) / steps

    return Launches(rate(KERNELS), rate(GRAPHS), rate(COPIES), rate(WAITS))

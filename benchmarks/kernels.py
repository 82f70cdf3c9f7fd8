"""Where a captured step spends its time beside its floor: kernels by name, their number and their time, on a CUDA device.

    python -m benchmarks.kernels --out results/bench/kernels.txt

Multi-task AUC with ResNet18 and torchvision's stem (SOX, captured and by hand), and the captured output memory beside
captured cross-entropy with n = 10^6. Per step, by torch's profiler over 50 steps; the kernels' times add up to less than
a step takes where the device waits between them.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from fcco.lab.bench.problems import Network, Precision, Sizes, images, tf32
from fcco.lab.bench.rows import Name, Step, Way
from fcco.lab.bench.settings import AP, AUC
from fcco.lab.bench.timing import Steps, quiet, release, seconds_per_step

STEPS = 50
WARM = 40
SHOWN = 25


def kernels(make: Callable[[], Steps], device: torch.device) -> tuple[float, Counter[str], Counter[str]]:
    """Milliseconds per step without the profiler; kernels per step, and their microseconds per step, by name."""
    with quiet():
        steps = make()
        steps(WARM)
        ms = 1000.0 * min(seconds_per_step(steps, STEPS, device) for _ in range(5))
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            steps(STEPS)
            torch.cuda.synchronize()
    number: Counter[str] = Counter()
    time: Counter[str] = Counter()
    for event in profiler.events():
        if event.device_type == DeviceType.CUDA:
            number[event.name] += 1
            time[event.name] += event.device_time
    return ms, number, time


def page(name: Name, found: tuple[float, Counter[str], Counter[str]], against: Counter[str]) -> str:
    """A contender: its sums, then the kernels on which it spends more than its rival does."""
    ms, number, time = found
    total = sum(time.values()) / STEPS
    lines = [
        f"{name.setting}: {name.step.value}, {name.way.value}: {ms:.3f} ms per step, "
        f"{sum(number.values()) / STEPS:.1f} kernels and copies of {total / 1000:.3f} ms in all"
    ]
    more = {kernel: time[kernel] - against[kernel] for kernel in set(time) | set(against)}
    for kernel, excess in sorted(more.items(), key=lambda entry: -abs(entry[1]))[:SHOWN]:
        lines.append(
            f"  {excess / STEPS:+8.2f} us more than beside it, {time[kernel] / STEPS:8.2f} us in "
            f"{number[kernel] / STEPS:6.1f}: {kernel[:150]}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    device = torch.device("cuda")
    sizes = Sizes()
    x = images(sizes.images, device)
    pages = []
    for precision in Precision:
        problem = AUC.over(x, Network.OWN_STEM, precision, sizes)
        makers = problem.makers()
        pairs = [(Name(problem.name, Step.SOX, Way.FLOOR), Name(problem.name, Step.SOX, Way.CAPTURED))]
        pages += compare(makers, pairs, device)
    for kind in (Network.MLP, Network.SMALL_STEM):
        ranking = AP.over(x, kind, sizes)
        makers = ranking.makers()
        plain = Name(ranking.name, Step.PLAIN, Way.CAPTURED)
        pairs = [(plain, Name(ranking.name, step, Way.CAPTURED)) for step in (Step.SOX, Step.MEMORY_AP)]
        pages += compare(makers, pairs, device)
    options.out.write_text("\n\n".join(pages) + "\n", encoding="utf-8")
    print(*pages, sep="\n\n")


def compare(makers: dict[Name, Callable[[], Steps]], pairs: list[tuple[Name, Name]], device: torch.device) -> list[str]:
    """The first of each pair, then the second beside it."""
    pages = []
    for first, second in pairs:
        with tf32():
            base = kernels(makers[first], device)
            release(device)
            other = kernels(makers[second], device)
            release(device)
        pages += [page(first, base, Counter()), page(second, other, base[2])]
    return pages


if __name__ == "__main__":
    main()

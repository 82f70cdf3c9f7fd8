"""What a run costs on one H200 in TF32 (small problems: on one core of a CPU), from measured steps; and what it costs here,
once some runs are in."""

from __future__ import annotations

import math
import statistics

from benchmarks.figures.runs import Row, Run
from benchmarks.figures.sets import SETS

#: Milliseconds of a captured step of 640 images of 32x32, ResNet18 with torchvision's stem.
STEP = {"sox": 2.9, "msvr-v1": 4.0, "msvr-v2": 5.9, "msvr-v3": 9.4}
FORWARD = 1.0  # of the same batch
BACKWARD = 1.9
#: Times ResNet18's; DenseNet121's is a guess from its operations and its many small kernels.
NETWORKS = {"resnet18": 1.0, "resnet34": 1.8, "densenet121": 3.0}
SMALL_STEM = 5.7
#: Milliseconds of a captured step that computes next to nothing.
FLOOR = 0.3
#: Throughput of a dozen processes under MPS over that of one.
SIDE_BY_SIDE = 1.5
#: Seconds per run to put it together, warm up and capture.
START = 2.0
#: Small problems: milliseconds of a step of 160 examples on one core with nothing beside it, and of a pass over the data.
CPU_STEP = {"sox": 0.8, "msvr-v1": 1.0, "msvr-v2": 1.3, "msvr-v3": 1.7}
CPU_PASS = 5.0
CPU_START = 0.1


def alone(run: Run) -> float:
    """Seconds of work in a run that has the GPU (small problems: a core) for itself."""
    if on_cpu(run):
        return _on_a_core(run)
    return (_stepping(run) + _evaluating(run)) / 1000


def shared(run: Run) -> float:
    """Seconds of the GPU that a run costs where a dozen run side by side; meanwhile others use it while one starts.

    Small problems: seconds of a core.
    """
    if on_cpu(run):
        return CPU_START + alone(run)
    return START / 12 + alone(run) / SIDE_BY_SIDE


def on_cpu(run: Run) -> bool:
    """Whether it is one of the small problems, on principal components."""
    return SETS[run.config.dataset].components > 0


def _on_a_core(run: Run) -> float:
    """Costs grow with a step's examples, from a floor of small operations."""
    examples = (run.config.blocks or 1) * run.config.samples
    step = CPU_STEP[_method(run)] * (0.6 + examples / 400)
    passes = run.points
    if run.config.period is not None:
        passes += 3 * math.ceil(run.steps / run.config.period)
    return ((run.steps + run.warm_up) * step + passes * CPU_PASS) / 1000


def _scale(run: Run) -> float:
    """Cost of 640 of its images over that of ResNet18 on 32x32."""
    config = run.config
    if config.model not in NETWORKS:
        return 0.02
    factor = NETWORKS[config.model] * (SETS[config.dataset].size / 32) ** 2
    if config.stem == "small":
        factor *= SMALL_STEM
    return factor


def _method(run: Run) -> str:
    if run.trainer != "fcco":
        return "sox"
    return run.config.method.replace("variant", "msvr")


def _stepping(run: Run) -> float:
    """Milliseconds in steps and in v3's full passes."""
    images = (run.config.blocks or 1) * run.config.samples
    step = max(FLOOR, STEP[_method(run)] * _scale(run) * images / 640)
    total = (run.steps + run.warm_up) * step
    if run.config.period is not None:
        passes = math.ceil(run.steps / run.config.period)
        evaluations = pass_evaluations(run, SETS[run.config.dataset].train)
        total += (passes * (FORWARD + BACKWARD) + FORWARD) * _scale(run) * evaluations / 640
    return total


def _evaluating(run: Run) -> float:
    """Milliseconds in evaluations of F and of the test set."""
    n = SETS[run.config.dataset].train
    part = run.config.eval_examples or n
    examples = run.points * pass_evaluations(run, part) + 10_000
    if run.whole:
        examples += pass_evaluations(run, n)
    return FORWARD * _scale(run) * examples / 640


def pass_evaluations(run: Run, examples: int) -> float:
    """Examples through the network in a pass over some data: with BatchNorm batches are composed as in training."""
    if run.config.model not in NETWORKS:
        return examples
    return 2.2 * examples * SETS[run.config.dataset].classes / (run.config.blocks or 1)


class Forecast:
    """Seconds that a run will take on this machine, with so many beside it.

    Runs of a kind (network, method) that have been seen tell how much longer than alone they take; before that, the GPU
    counts as shared evenly.

    Args:
        workers: how many run side by side.
    """

    def __init__(self, workers: int) -> None:
        self._even = max(1.0, workers / SIDE_BY_SIDE)
        self._seen: dict[tuple[str, ...], list[float]] = {}

    def learn(self, run: Run, row: Row) -> None:
        """A run took so long."""
        ratio = max(0.1, row["wall"] - START) / alone(run)
        self._seen.setdefault(_kind(run), []).append(ratio)

    def seconds(self, run: Run) -> float:
        """A tenth above the median of its kind."""
        seen = self._seen.get(_kind(run), [])
        if len(seen) < 3:
            return START + self._even * alone(run)
        return START + 1.1 * statistics.median(seen[-20:]) * alone(run)


def _kind(run: Run) -> tuple[str, ...]:
    config = run.config
    # Short runs are mostly preparation: what they say of long ones is too much.
    length = str(len(str(run.steps)))
    return config.model, config.stem, config.method, run.trainer, length

"""What must hold, line by line: the bound, the figure that was measured, and whether it holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

from fcco.lab.bench.cpu import MANY_LABELS, PEERS, TINY, WIDE
from fcco.lab.bench.overhead import FEW, MANY, RATIOS, blocks_setting
from fcco.lab.bench.problems import Network, Precision
from fcco.lab.bench.rows import Launches, Name, Results, Step, Way
from fcco.lab.bench.settings import ap_setting, auc_setting, launch_setting

FLOORED = (Step.SOX, Step.V1, Step.V2)
LEAST_PLAIN_MS = 50.0  # below this the ratios to plain SGD promise nothing


@final
@dataclass(frozen=True)
class Verdict:
    """One line.

    Args:
        part: which part measures it.
        line: what is compared with what.
        bound: the largest figure that holds, or the smallest where ``at_least``.
        figure: what was measured; None: it was not.
        unit: of both: "x" for a ratio.
        at_least: whether the figure must reach the bound, and not stay within it.
    """

    part: str
    line: str
    bound: float
    figure: float | None
    unit: str = "x"
    at_least: bool = False

    @property
    def holds(self) -> bool | None:
        """None where nothing was measured."""
        if self.figure is None:
            return None
        if self.at_least:
            return self.figure >= self.bound
        return self.figure <= self.bound

    @property
    def verdict(self) -> str:
        """In words."""
        if self.holds is None:
            return "not measured"
        if self.holds:
            return "holds"
        return "MISSED"

    @property
    def bound_text(self) -> str:
        """The bound with its direction and unit."""
        sign = "<="
        if self.at_least:
            sign = ">="
        return f"{sign} {self.bound:g} {self.unit}".rstrip()

    def as_json(self) -> dict[str, Any]:
        return vars(self) | {"verdict": self.verdict}


def verdicts(results: Results) -> list[Verdict]:
    """Every line, whether measured or not."""
    return [
        *_floors(results),
        *_third(results),
        *_against_plain(results),
        *_precision(results),
        *_launches(results),
        *_small(results),
        *_labels(results),
        *_peers(results),
        *_ratios(results),
        *_blocks(results),
    ]


# ---------------------------------------------------------------------- on the device

PART_OF = {Network.SMALL_STEM: "resnet-small", Network.OWN_STEM: "resnet-own", Network.MLP: "mlp"}


def _floors(results: Results) -> Iterator[Verdict]:
    """Captured SOX, v1 and v2 beside their floors."""
    for kind in Network:
        for precision in Precision:
            setting = auc_setting(kind, precision)
            for step in FLOORED:
                name = Name(setting, step, Way.CAPTURED)
                floor = Name(setting, step, Way.FLOOR)
                what = f"{kind.value}, {precision.value}: captured {step}"
                if kind is Network.MLP:
                    figure = results.difference(name, floor)
                    yield Verdict(PART_OF[kind], f"{what} - floor", 0.15, figure, "ms")
                else:
                    yield Verdict(PART_OF[kind], f"{what} / floor", 1.15, results.ratio(name, floor))


def _third(results: Results) -> Iterator[Verdict]:
    """v3 beside v2, both captured."""
    for kind in Network:
        for precision in Precision:
            setting = auc_setting(kind, precision)
            ratio = results.ratio(Name(setting, Step.V3, Way.CAPTURED), Name(setting, Step.V2, Way.CAPTURED))
            yield Verdict(PART_OF[kind], f"{kind.value}, {precision.value}: captured v3 / v2", 1.6, ratio)


def _against_plain(results: Results) -> Iterator[Verdict]:
    """A captured MSVR-v2 step beside anybody's eager step."""
    kind = Network.SMALL_STEM
    setting = auc_setting(kind, Precision.BF16)
    captured = Name(setting, Step.V2, Way.CAPTURED)
    for step in (Step.PLAIN, Step.PLAIN_CONTIGUOUS):
        ratio = results.ratio(captured, Name(setting, step))
        yield Verdict(PART_OF[kind], f"{kind.value}, bf16: captured v2 / eager {step}", 1.0, ratio)


def _precision(results: Results) -> Iterator[Verdict]:
    """Average precision: LibAUC beside captured SOX, and the captured memory."""
    memories = (Step.MEMORY_AP, Step.MEMORY_PAUC)
    for kind, part, bound in ((Network.SMALL_STEM, "ap-resnet", 3.0), (Network.MLP, "ap-mlp", 8.0)):
        setting = ap_setting(kind)
        libauc = Name(setting, Step.LIBAUC)
        rivals = {Step.LIBAUC: "LibAUC"}
        if kind.is_convolutional:
            rivals[Step.LIBAUC_CONTIGUOUS] = "LibAUC, contiguous weights"
        for rival, words in rivals.items():
            ratio = results.ratio(Name(setting, rival), Name(setting, Step.SOX, Way.CAPTURED))
            yield Verdict(part, f"AP, {kind.value}: {words} / captured SOX", bound, ratio, at_least=True)
        for step in memories:
            memory = Name(setting, step, Way.CAPTURED)
            if kind is Network.MLP:
                yield Verdict(part, f"{kind.value}: captured {step} / LibAUC AP", 1.0, results.ratio(memory, libauc))
                continue
            plain = Name(setting, Step.PLAIN, Way.CAPTURED)
            yield Verdict(part, f"{kind.value}: captured {step} / captured BCE", 1.25, results.ratio(memory, plain))


def _launches(results: Results) -> Iterator[Verdict]:
    """One graph per step; the looks, which come every few steps, may copy a flag and wait for it.

    A replay itself writes the seed and the offset of each generator: those launches the floor has too.
    """
    for kind in (Network.SMALL_STEM, Network.MLP):
        for step in (Step.SOX, Step.V2):
            found = _launched(results, kind, step, Way.CAPTURED)
            floor = _launched(results, kind, step, Way.FLOOR)
            figures: tuple[float | None, ...] = (None, None, None)
            if found is not None and floor is not None:
                more = found.kernels + found.copies - floor.kernels - floor.copies
                figures = (found.graphs, more, found.waits)
            limits = (("graphs", 1.0), ("kernels and copies more than its floor", 0.5), ("waits", 0.5))
            for (what, bound), figure in zip(limits, figures, strict=True):
                line = f"{kind.value}: captured {step}, {what} per step"
                yield Verdict("launches", line, bound, figure, "")


def _launched(results: Results, kind: Network, step: Step, way: Way) -> Launches | None:
    row = results.rows.get(Name(launch_setting(kind), step, way))
    if row is None:
        return None
    return row.launches


# ---------------------------------------------------------------------- on the CPU


def _small(results: Results) -> Iterator[Verdict]:
    """Small networks beside plain SGD."""
    bounds = ((TINY, "tiny", 2.0, 3.5), (WIDE, "wide", 1.25, 2.1))
    for problem, part, sox, second in bounds:
        plain = Name(problem.given, Step.PLAIN)
        for step, bound in ((Step.SOX, sox), (Step.V2, second)):
            ratio = results.ratio(Name(problem.given, step), plain)
            yield Verdict(part, f"{problem.given}: {step} / plain", bound, ratio)


def _labels(results: Results) -> Iterator[Verdict]:
    """Memories with many labels."""
    for problem, bound in zip(MANY_LABELS, (20.0, 10.0), strict=True):
        for step in (Step.MEMORY_AP, Step.MEMORY_PAUC):
            yield Verdict("memory", f"{problem.name}: {step}", bound, results.ms(Name(problem.name, step)), "ms")


def _peers(results: Results) -> Iterator[Verdict]:
    """Every loss that LibAUC has too."""
    settings = [setting for setting in results.settings() if setting.startswith(PEERS)]
    if not settings:
        yield Verdict("peers", "each loss of benchmarks/peers.py: LibAUC / fcco", 1.0, None, at_least=True)
    for setting in settings:
        ratio = results.ratio(Name(setting, Step.LIBAUC), Name(setting, Step.SOAP))
        yield Verdict("peers", f"{setting}: LibAUC / fcco", 1.0, ratio, at_least=True)


def _ratios(results: Results) -> Iterator[Verdict]:
    """Where passes dominate a method costs its passes."""
    plain = Name(RATIOS, Step.PLAIN)
    plain_ms = results.ms(plain)
    share = results.ratio(Name(RATIOS, Step.FORWARD), plain)
    forward = 1.0
    if share is not None:
        forward = share
    bounds = {Step.SOX: 1.03, Step.V1: 1.03 * (1.0 + forward), Step.V2: 2.06, Step.V3: 3.10}
    for step, bound in bounds.items():
        ratio = results.ratio(Name(RATIOS, step), plain)
        if plain_ms is None or plain_ms < LEAST_PLAIN_MS:
            ratio = None
        yield Verdict("ratios", f"plain step of 50 ms or more: {step} / plain", round(bound, 3), ratio)


def _blocks(results: Results) -> Iterator[Verdict]:
    """A step's cost does not depend on m."""
    few = Name(blocks_setting(FEW), Step.V2)
    many = Name(blocks_setting(MANY), Step.V2)
    yield Verdict("blocks", "tiny step: m = 10^7 - m = 10^3", 0.3, results.difference(many, few), "ms")

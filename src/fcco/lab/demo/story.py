"""What the demo says: a table and one sentence per part, and its terms in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from fcco.lab.demo import rare, theory
from fcco.lab.figure import short

#: A column whose name holds a term is explained by it at a hover.
TERMS: dict[str, str] = {
    "AP": "average precision: the area under precision against recall; 1 is perfect, the rare class's share is chance",
    "examples": "examples shown to the network in training, all settings together",
    "F - F*": "how far the objective F(w) = mean of f_i(g_i(w)) over the blocks i is above its minimum F*; 0 is solved",
    "|u - g|": "how far the method's running estimate u_i is from the inner value g_i(w) that it stands for, root mean "
    "square over blocks; a gradient taken at a wrong u is wrong, too",
    "calls": "oracle calls: evaluations of g, or of its gradient, on one sample, full passes over the data included: "
    "what a run costs",
    "step": "the step size (learning rate), constant over the run",
}


@final
@dataclass(frozen=True)
class Part:
    """One part as it is told: what was done, a table, what to take away."""

    title: str
    done: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    lesson: str


def rare_part(plan: rare.Plan, found: rare.Found) -> Part:
    """Part 1."""
    images, positives = found.train
    valid_images, valid_positives = found.valid
    test_images, test_positives = found.test
    done = (
        f"scikit-learn's digits, one digit against the rest, thinned to about {positives} positives among {images} "
        f"training images ({valid_positives} of {valid_images} validate, {test_positives} of {test_images} test). The "
        f"same small network twice: cross-entropy, tuned over {2 * len(plan.rates)} learning rates and class weights "
        f'and stopped in time, and fcco.fit(network, (x, y), metric="average_precision"). Test average precision, each '
        "digit in turn:"
    )
    rows: list[tuple[str, ...]] = []
    for digit, (plain, fitted) in enumerate(zip(found.plain, found.fit, strict=True)):
        rows.append((f"digit {digit}", _with_interval(plain), _with_interval(fitted)))
    rows.append(("mean", f"{rare.mean_ap(found.plain):.3f}", f"{rare.mean_ap(found.fit):.3f}"))
    rows.append(("examples", _mean_shown(found.plain), _mean_shown(found.fit)))
    columns = ("test AP [95 %]", "cross-entropy, tuned", "fcco.fit")
    return Part("Part 1: a rare class", done, columns, rows, _rare_lesson(found))


def _mean_shown(scored: Sequence[rare.Scored]) -> str:
    """Return how many examples a network was shown, on average over the digits."""
    total = sum(one.shown for one in scored)
    return short(total / len(scored), 3)


def _with_interval(one: rare.Scored) -> str:
    return f"{one.ap:.3f} [{one.low:.2f}, {one.high:.2f}]"


def _rare_lesson(found: rare.Found) -> str:
    mean, low, high = found.difference()
    if math.isnan(low):
        return f"fcco.fit minus cross-entropy: {mean:+.3f}. One digit says little; --digits 10 gives an interval."
    ahead = sum(one.ap > other.ap for one, other in zip(found.fit, found.plain, strict=True))
    told = (
        f"fcco.fit minus cross-entropy: {mean:+.3f}, 95 % interval {low:+.3f} to {high:+.3f} over digits; it is ahead "
        f"on {ahead} of {len(found.fit)}. "
    )
    if low > 0:
        return told + "Naming the metric ranks the rare class better here than a tuned plain loss."
    if high < 0:
        return told + "Here the tuned plain loss is better: try it first, as fcco.fit itself does."
    return (
        told
        + "A tie: these digits cannot tell the two apart. fcco.fit chose its settings by itself, the baseline's were "
        "listed by hand."
    )


def theory_part(plan: theory.Plan, found: Sequence[theory.Found]) -> Part:
    """Part 2."""
    tried = max(one.tried for one in found)
    done = (
        f"A strongly convex finite sum with a known optimum: {plan.m} blocks of {plan.n} noisy samples, one block and "
        f"one sample per step, {short(plan.calls)} oracle calls for every method, float64, mean over {plan.seeds} "
        f"seeds. SOX, v1 and v2 show the best of {tried} constant settings each, v3 the one setting of its theorem "
        f"with step size {plan.eta:g}:"
    )
    rows = []
    for one in found:
        needed = [_calls(one.needed(level)) for level in theory.LEVELS]
        rows.append((one.title, f"{one.eta:g}", f"{one.gap():.0e}", f"{one.error:.0e}", *needed))
    levels = [f"calls to {_power(level)}" for level in theory.LEVELS]
    columns = ("method", "step", "F - F*", "|u - g|", *levels)
    return Part("Part 2: the paper's methods", done, columns, rows, _theory_lesson(found))


def _power(level: float) -> str:
    """
    >>> _power(1e-8)
    '1e-8'
    """
    return f"1e{round(math.log10(level))}"


def _calls(number: float | None) -> str:
    if number is None:
        return "never"
    return short(number, 3)


def _theory_lesson(found: Sequence[theory.Found]) -> str:
    ends = {one.name: one.gap() for one in found}
    v3 = ends.pop("msvr-v3")
    lowest = min(ends.values())
    if v3 > 1e-8 or v3 > 1e-3 * lowest:
        return f"MSVR-v3 ends at {v3:.0e}, the best of the others at {lowest:.0e}: these runs are too short to tell."
    return (
        f"With a constant step size the others stop where their noise holds them (at best {lowest:.0e} above the "
        f"optimum) while MSVR-v3, whose full passes take the noise away, goes on to {max(v3, 1e-16):.0e}. It pays "
        "where the data are finite, a full pass is affordable and accuracy is wanted; with step sizes that shrink the "
        "others go on as well, but slowly: in theory as 1/calls (`fcco rates` measures it)."
    )

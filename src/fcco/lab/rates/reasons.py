"""Why intervals miss their claims, as far as it was found out: from the full run and from runs made to find out."""

from __future__ import annotations

from dataclasses import replace

from fcco.lab.rates.fit import Row

QUICK = "The quick run is too short to judge; see the full one."
UNKNOWN = "No reason found."

_BETA = (
    "The best beta is not small against 1 over this range, and the noise that it leaves is beta/(2 - beta), not "
    "beta/2: the line bends, and comes to its claim towards the end where beta is small."
)
_SHARE = (
    "m/B1 stands for (m - B1)/B1 in the claim, and the correction for the blocks that were not drawn shrinks by the "
    "factor 1 - B1/m besides: 16 of 80 blocks is not a small share."
)
_DRAWN = (
    "B2 reduces the noise of samples only. With one block a step the noise of drawing blocks is larger, does not "
    "depend on B2 (no assumption of the paper bounds it), and the larger step that the schedule allows itself "
    "raises it."
)
_FLOOR_M = (
    "At the smallest m, where the constants are tuned, the noise of the drawn block sets the time, and that does not "
    "depend on m; the term in m takes over as m grows (last two points)."
)
_BOUND = (
    "A claim about the worst case; this problem is easier: its curvature is bounded below along every direction that "
    "still matters at these gaps, so it behaves as a strongly convex one."
)
_START = "The way from the start, which the mean contains, still shows: it fades as 1/T (last two points)."

# the start of a row's key -> why; the first that fits is taken
REASONS: tuple[tuple[str, str], ...] = (
    ("tracking: MSVR, finite sum", "At the largest d the anchor is I d = 1.9 behind, the radius of the circle."),
    ("tracking: ", _BETA),
    ("scaling: MSVR, finite sum: tracking error against B1", _SHARE),
    ("scaling: MSVR: tracking error against B1", _SHARE),
    ("scaling: MSVR-SP: tracking error against B1", _SHARE),
    ("scaling: STORM, naive: tracking error against B1", _SHARE),
    ("scaling: MSVR-v2: iterations against B2", _DRAWN),
    ("scaling: SOX: iterations against B2", _DRAWN),
    (
        "scaling: MSVR-v1 (late): iterations against m",
        "The claim holds while m < max(B1, B2)/(eps sqrt(B2)), here about 10; beyond it the bound's other branch, "
        "linear in m, is the larger one (last two points), and beta runs into its cap of 1/2.",
    ),
    ("scaling: MSVR-v1 (late): iterations against B1 = B2", "B2 also shortens the early part of the run."),
    ("scaling: MSVR-v2: iterations against m", _FLOOR_M),
    ("scaling: SOX: iterations against m", _FLOOR_M),
    ("scaling: ", _BETA),
)


def reason(row: Row, quick: bool) -> Row:
    """The row with the reason of its miss."""
    known = next((why for start, why in REASONS if row.key.startswith(start)), UNKNOWN)
    return replace(row, reason=QUICK if quick else known)

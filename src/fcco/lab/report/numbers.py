"""Numbers as JSON files may hold them."""

from __future__ import annotations

import math


def as_number(value: object) -> float:
    """Return a finite float; nan for null and other non-numbers; inf for the NaN and Infinity of a diverged run."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        number = float(value)
    except OverflowError:  # an integer beyond the largest float
        return math.inf
    if not math.isfinite(number):
        return math.inf
    return number

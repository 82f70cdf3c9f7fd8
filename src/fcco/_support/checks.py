"""Checks at the boundary: each raises an error that names the argument and the value."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[str, Any], float]


def number(name: str, value: Any) -> float:
    """Check for a finite number, and return it."""
    # A bool is an int to Python, and never what was meant.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {shown(value)} of type {type(value).__name__}")
    if isinstance(value, int) and abs(value) >= 2**63:  # torch has no larger ones, and would say so much later
        raise ValueError(f"{name} must be a float or below 2^63, got {value}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    return float(value)


def rate(name: str, value: Any) -> float:
    """Check for a mixing rate such as alpha or beta, in (0, 1], and return it."""
    checked = number(name, value)
    if not 0.0 < checked <= 1.0:
        raise ValueError(f"{name} must be in (0, 1], got {value}")
    return checked


def fraction(name: str, value: Any) -> float:
    """Check for a number in [0, 1], and return it."""
    checked = number(name, value)
    if not 0.0 <= checked <= 1.0:
        raise ValueError(f"{name} must be in [0, 1], got {value}")
    return checked


def non_negative(name: str, value: Any) -> float:
    """Check for a finite number >= 0, and return it."""
    checked = number(name, value)
    if checked < 0.0:
        raise ValueError(f"{name} must be >= 0, got {value}")
    return checked


def positive(name: str, value: Any) -> float:
    """Check for a finite number > 0, and return it."""
    checked = number(name, value)
    if checked <= 0.0:
        raise ValueError(f"{name} must be > 0, got {value}")
    return checked


def positive_int(name: str, value: Any) -> int:
    """Check for a whole number >= 1, and return it."""
    if whole(name, value) < 1:
        raise ValueError(f"{name} must be >= 1, got {value}")
    if value >= 2**63:  # neither Python's iterators nor torch count so far, and they would say so much later
        raise ValueError(f"{name} must be below 2^63, got {value}")
    return int(value)


def whole(name: str, value: Any) -> int:
    """Check for a whole number such as a seed, NumPy's too, and return it."""
    try:
        index = operator.index(value)
    except TypeError:
        index = None
    if index is None or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {shown(value)} of type {type(value).__name__}")
    return index


def flag(name: str, value: Any) -> bool:
    """Check for True or False, and return it."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {shown(value)} of type {type(value).__name__}")
    return value


def shown(value: Any) -> str:
    """Return a value for an error message, on one line and cut short: a tensor's numbers would fill a page."""
    text = " ".join(repr(value).split())
    if len(text) > 80:
        return f"{text[:77]}..."
    return text


def same_kind(what: str, saved: Mapping[str, Any] | None, own: Mapping[str, Any]) -> None:
    """Refuse the state of something with other settings, and name these; None is an older state without settings."""
    if saved is None:
        return
    differing = [name for name in own if saved.get(name) != own[name]]
    if differing:
        theirs = ", ".join(f"{name}={saved.get(name)!r}" for name in differing)
        mine = ", ".join(f"{name}={own[name]!r}" for name in differing)
        raise ValueError(f"the state is of a {what} with {theirs}, but this one has {mine}")


def some(values: list[Any], limit: int = 8) -> str:
    """Return the first few values for an error message: '3, 7, 9 and 12 more'."""
    text = ", ".join(str(value) for value in values[:limit])
    if len(values) > limit:
        text += f" and {len(values) - limit} more"
    return text

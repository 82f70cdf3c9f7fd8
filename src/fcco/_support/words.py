"""Which of two words is the positive one, where that is evident."""

from __future__ import annotations

import math
from collections.abc import Iterable

#: Pairs of a negative and a positive word, in small letters.
_PAIRS = frozenset(
    {
        ("no", "yes"),
        ("n", "y"),
        ("false", "true"),
        ("f", "t"),
        ("negative", "positive"),
        ("neg", "pos"),
        ("off", "on"),
    }
)


def positive_word(words: Iterable[str]) -> str | None:
    """The positive one of two words: 'yes' beside 'no', '1' beside '0'; None: it is not evident.

    Args:
        words: the different ones, as they are written.

    Example:
        >>> positive_word(["Yes", "No"]), positive_word(["0", "1"]), positive_word(["cat", "dog"])
        ('Yes', '1', None)
    """
    given = list(words)
    if len(given) != 2:
        return None
    for low, high in (given, reversed(given)):
        if (_plain(low), _plain(high)) in _PAIRS:
            return high
    return _larger_number(*given)


def _plain(word: str) -> str:
    return word.strip().lower()


def _larger_number(first: str, second: str) -> str | None:
    """The larger of two numbers in quotes, as for numbers themselves; None: one of them is none."""
    try:
        numbers = (float(first), float(second))
    except ValueError:
        return None
    if not all(map(math.isfinite, numbers)) or numbers[0] == numbers[1]:
        return None
    if numbers[0] > numbers[1]:
        return first
    return second

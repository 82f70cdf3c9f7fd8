"""What can be wrong with a table, and what is worth a word."""

from __future__ import annotations


class TableError(ValueError):
    """A table is not what it should be; the message names row and column."""


class TableTypeError(TableError, TypeError):
    """A cell holds something that is neither a number, a string, a truth value nor a time."""


class TableWarning(UserWarning):
    """A column is left out, or looks as if it should not be there."""


def named(names: list[str], limit: int = 5) -> str:
    """Column names for a sentence: "column 'a'", "columns 'a', 'b' and 3 more"."""
    text = ", ".join(repr(name) for name in names[:limit])
    if len(names) > limit:
        text += f" and {len(names) - limit} more"
    if len(names) == 1:
        return f"column {text}"
    return f"columns {text}"

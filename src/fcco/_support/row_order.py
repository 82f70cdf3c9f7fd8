"""A data frame and its labels whose rows stand in different orders."""

from __future__ import annotations

import warnings
from typing import Any


def warn_of_order(x: Any, y: Any) -> None:
    """Warn where the indices of two pandas objects hold the same names in another order: rows are matched by place.

    Args:
        x: the inputs.
        y: the labels.
    """
    ours: Any = getattr(x, "index", None)
    theirs: Any = getattr(y, "index", None)
    if not hasattr(ours, "equals") or not hasattr(theirs, "equals") or len(ours) != len(theirs):
        return
    if ours.equals(theirs) or not (ours.is_unique and theirs.is_unique):
        return
    if bool(ours.isin(theirs).all()):
        warnings.warn(
            "y has the index of x in another order, and rows are matched by place, not by index: "
            "if that is not meant, give y.loc[x.index]",
            stacklevel=4,
        )

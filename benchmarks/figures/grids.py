"""Grids of rates."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from benchmarks.figures.studies import Point

Grid = Mapping[str, Sequence[object]]


def points_of(grid: Grid) -> tuple[Point, ...]:
    """Every point of a grid."""
    return tuple(
        tuple(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())
    )  # fmt: skip

"""What is learnt from one column of the training table: how its values become numbers that a network takes.

Three forms: Number (scaled, with the edges of its quantile bins), Flag (two values: 0 and 1), Levels (strings: codes).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, ClassVar, final

from fcco._support import checks

from ._columns import Column, Kind, as_times, level_name
from ._errors import TableError, TableTypeError
from ._numpy import Array, np

# Whole numbers may fall together in float32 in so small a share of the rows: a few clashes among hashes do no harm.
_MAX_COLLAPSED = 0.01
_LARGEST = 1e9  # deviations, in scales, beyond which values are taken for equal
_BEYOND = 1.0  # how far outside the training values, on the encoded scale, new values may fall
MISSING_CODE = 0
OTHER_CODE = 1  # a rare level, or one that the training table does not have
FIRST_CODE = 2


@final
@dataclass(frozen=True)
class Number:
    """Numbers and times: asinh((x - center) / scale), which is linear near the median and logarithmic far out.

    Args:
        name: of the column.
        kind: "number" or "time".
        center: the median; a whole number where the column holds whole numbers, so that the difference is exact.
        scale: of the deviations: the interquartile range / 1.349, or where that is 0 the root mean square of those
            that are not 0.
        edges: of the quantile bins on the encoded scale, increasing; the first and last are the training table's
            smallest and largest value.
        indicator: whether a column that says "missing" goes with it.
    """

    form: ClassVar[str] = "number"
    name: str
    kind: str
    center: int | float
    scale: float
    edges: tuple[float, ...]
    indicator: bool

    def encode(self, column: Column) -> Array:
        """Encoded values (N,) float32, 0 (the median) where missing."""
        checked = _numeric(column, self.kind)
        encoded = scaled(_differences(checked, self.center), self.scale)
        inside = np.clip(encoded, self.edges[0] - _BEYOND, self.edges[-1] + _BEYOND)
        return np.where(checked.missing, 0.0, inside).astype(np.float32)


@final
@dataclass(frozen=True)
class Flag:
    """Two values, as 0 and 1; what lies between stays between. A rare 1 stays a 1.

    Args:
        name: of the column.
        kind: "number", "bool" or "time".
        low: the value that becomes 0.
        high: the value that becomes 1.
        fill: what stands where the value is missing: the more frequent of the two.
        indicator: whether a column that says "missing" goes with it.
    """

    form: ClassVar[str] = "flag"
    name: str
    kind: str
    low: int | float
    high: int | float
    fill: float
    indicator: bool

    def encode(self, column: Column) -> Array:
        """Encoded values (N,) float32 in [0, 1]."""
        checked = _numeric(column, self.kind)
        share = _differences(checked, self.low) / float(self.high - self.low)
        return np.where(checked.missing, self.fill, np.clip(share, 0.0, 1.0)).astype(np.float32)


@final
@dataclass(frozen=True)
class Gaps:
    """One value or none: all there is to know is where it is missing.

    Args:
        name: of the column.
        kind: what the value is.
    """

    form: ClassVar[str] = "gaps"
    name: str
    kind: str

    @property
    def indicator(self) -> bool:
        """Always: it is nothing else."""
        return True


@final
@dataclass(frozen=True)
class Levels:
    """Strings as codes: 0 missing, 1 rare or new, then the levels.

    Args:
        name: of the column.
        kind: "string".
        levels: that have a code of their own, most frequent first.
    """

    form: ClassVar[str] = "levels"
    name: str
    kind: str
    levels: tuple[str, ...]

    @property
    def codes(self) -> int:
        """How many codes there are."""
        return FIRST_CODE + len(self.levels)

    def encode(self, column: Column) -> Array:
        """Codes (N,) float32, exact there."""
        code = {level: FIRST_CODE + place for place, level in enumerate(self.levels)}
        texts = _texts(column)
        codes = np.fromiter((code.get(text, OTHER_CODE) for text in texts), dtype=np.float32, count=len(texts))
        return np.where(column.missing, np.float32(MISSING_CODE), codes)


Learnt = Number | Flag | Gaps | Levels
_FORMS: dict[str, type[Number] | type[Flag] | type[Gaps] | type[Levels]] = {
    form.form: form for form in (Number, Flag, Gaps, Levels)
}


def scaled(differences: Array, scale: float) -> Array:
    """asinh(d / scale), (N,) float64; linear near 0 and logarithmic far out, so that nothing diverges."""
    with np.errstate(over="ignore"):
        ratio = np.clip(differences / scale, -_LARGEST, _LARGEST)
    encoded: Array = np.arcsinh(ratio)
    return encoded


def _differences(column: Column, center: int | float) -> Array:
    """x - center as (N,) float64; whole numbers are subtracted exactly, whatever their size."""
    values = column.values
    if values.dtype.kind in "iu" and isinstance(center, int):
        # 64 bits cannot hold every difference of two numbers of 64 bits; Python's whole numbers can.
        largest = max(abs(int(values.min())), abs(int(values.max())), abs(center))
        if largest >= 2**62:
            values = values.astype(object)
        else:
            values = values.astype(np.int64)
    with np.errstate(over="ignore"):
        differences: Array = (values - center).astype(np.float64)
    return differences


def _numeric(column: Column, kind: str) -> Column:
    """The column as numbers, or one sentence that names the cell which is none."""
    if kind == Kind.TIME.value and column.kind is Kind.STRING:
        times = as_times(column)
        if times is not None:
            return times
    given = column.kind
    if len(column.known) == 0:
        return Column(column.name, Kind.NUMBER, np.zeros(len(column.values)), column.missing)
    if given is Kind.STRING or (given is Kind.TIME) != (kind == Kind.TIME.value):
        place = 0
        if given is Kind.STRING and kind == Kind.NUMBER.value:
            place = _first_word(column.known)
        raise TableTypeError(
            f"column {column.name!r} holds a {kind} in the training table, got a {given.value}, "
            f"{column.known[place]!r}, in row {column.row_of(place)}"
        )
    if given is Kind.BOOL:
        return Column(column.name, Kind.NUMBER, column.values.astype(np.int64), column.missing)
    return column


def _first_word(known: Array) -> int:
    """The place of the first string that is no number, of those that made a whole column strings; else 0."""
    for place, text in enumerate(known):
        try:
            float(text)
        except ValueError:
            return place
    return 0


def _texts(column: Column) -> list[str]:
    """The column as strings: a column of numbers may be what is left of codes such as 'A1' and '7'."""
    if column.kind is Kind.STRING:
        return [str(text) for text in column.values]
    return [level_name(value) for value in column.values.tolist()]


def learn(column: Column, bins: int, min_count: int, max_levels: int) -> Learnt | None:
    """What a column teaches; None: it holds one value alone, and nothing is missing, or every string is rare."""
    times = as_times(column)
    if times is not None:
        column = times
    missing = bool(column.missing.any())
    if len(column.known) == 0:
        return None
    if column.kind is Kind.STRING:
        return _learn_levels(column, min_count, max_levels)
    numeric = _numeric(column, column.kind.value)
    distinct, counts = np.unique(numeric.known, return_counts=True)
    if len(distinct) == 1:
        if missing:
            return Gaps(column.name, column.kind.value)
        return None
    if len(distinct) == 2:
        fill = float(counts[1] > counts[0])
        low = distinct[0].item() if hasattr(distinct[0], "item") else int(distinct[0])
        high = distinct[1].item() if hasattr(distinct[1], "item") else int(distinct[1])
        return _checked_flag(Flag(column.name, column.kind.value, low, high, fill, missing))
    return _learn_number(numeric, column.kind.value, bins, missing)


def _checked_flag(flag: Flag) -> Flag:
    if not math.isfinite(float(flag.high - flag.low)):
        raise TableError(f"column {flag.name!r} holds numbers that are too far apart: {flag.low} and {flag.high}")
    return flag


def _learn_levels(column: Column, min_count: int, max_levels: int) -> Levels | None:
    distinct, counts = np.unique(column.known.astype(str), return_counts=True)
    order = np.lexsort((distinct, -counts))  # by count, ties by name: the same on every machine
    frequent = [str(distinct[place]) for place in order if counts[place] >= min_count]
    levels = tuple(frequent[:max_levels])
    kinds_of_code = len(levels) + int(len(levels) < len(distinct)) + int(column.missing.any())
    if kinds_of_code < 2:
        return None
    return Levels(column.name, Kind.STRING.value, levels)


def _learn_number(column: Column, kind: str, bins: int, missing: bool) -> Number:
    ordered = np.sort(column.known)
    middle = ordered[(len(ordered) - 1) // 2]
    center = middle.item() if hasattr(middle, "item") else int(middle)
    differences = _differences(column, center)[~column.missing]
    if not np.isfinite(differences).all():
        place = int(np.flatnonzero(~np.isfinite(differences))[0])
        raise TableError(
            f"column {column.name!r} has {column.known[place]} in row {column.row_of(place)}: too large for 64 bits"
        )
    scale = _scale(differences)
    encoded = scaled(differences, scale).astype(np.float32).astype(np.float64)
    if column.whole:
        _check_collapse(column, encoded)
    edges = tuple(quantile_edges(encoded, bins).tolist())
    if len(edges) < 2:
        raise TableError(f"column {column.name!r} holds numbers that 32 bits cannot tell apart near {center}")
    return Number(column.name, kind, center, scale, edges, missing)


def _scale(differences: Array) -> float:
    """A typical deviation: of the middle half, or where that is one value of those that deviate."""
    largest = float(np.abs(differences).max())
    relative = differences / largest
    quarter, three_quarters = np.quantile(relative, [0.25, 0.75])
    typical = float(three_quarters - quarter) / 1.349
    if typical <= 0.0:
        deviating = relative[relative != 0.0]
        typical = math.sqrt(float(np.mean(deviating**2)))
    return max(typical * largest, float(np.finfo(np.float64).tiny))


def _check_collapse(column: Column, encoded: Array) -> None:
    """Whole numbers that differ must differ in float32 too."""
    known = column.known
    order = np.argsort(encoded, kind="stable")
    # Neighbours on the encoded scale: the same code but another number.
    ordered = known[order]
    same = np.diff(encoded[order]) == 0
    lost = int(np.count_nonzero(same & (ordered[1:] != ordered[:-1])))
    if lost > _MAX_COLLAPSED * len(known):
        place = int(np.flatnonzero(same & (ordered[1:] != ordered[:-1]))[0])
        raise TableError(
            f"column {column.name!r} holds whole numbers that 32 bits cannot tell apart, such as {ordered[place]} and "
            f"{ordered[place + 1]}: give it as strings, or leave it out"
        )


def quantile_edges(values: Array, bins: int) -> Array:
    """Edges of at most about `bins` bins that hold equally many values; increasing, (E,).

    Where one value fills most of the rows (a sparse count), the other values have bins of their own.
    """
    shares = np.linspace(0.0, 1.0, bins + 1)
    edges = np.unique(np.quantile(values, shares))
    distinct, counts = np.unique(values, return_counts=True)
    most = distinct[counts.argmax()]
    if counts.max() > 0.5 * len(values):
        others = values[values != most]
        edges = np.union1d(np.quantile(others, np.linspace(0.0, 1.0, max(bins // 2, 1) + 1)), edges)
    rounded: Array = np.unique(edges.astype(np.float32)).astype(np.float64)
    return rounded


def learnt_to_dict(learnt: Learnt) -> dict[str, Any]:
    """Plain JSON values."""
    plain = {"form": learnt.form, **asdict(learnt)}
    for key, value in plain.items():
        if isinstance(value, tuple):
            plain[key] = list(value)
    return plain


def learnt_from_dict(plain: Mapping[str, Any]) -> Learnt:
    """The inverse of `learnt_to_dict`, checked."""
    if not isinstance(plain, Mapping) or plain.get("form") not in _FORMS:
        raise TableError(f"a described column must have one of the forms {', '.join(_FORMS)}, got {plain!r:.200}")
    given = dict(plain)
    form = _FORMS[given.pop("form")]
    for key, value in given.items():
        if isinstance(value, list):
            given[key] = tuple(value)
    try:
        learnt = form(**given)
    except TypeError as error:
        raise TableError(f"the description of column {given.get('name')!r} has other entries than it should") from error
    _check_learnt(learnt)
    return learnt


def _check_learnt(learnt: Learnt) -> None:
    where = f"the description of column {learnt.name!r}"
    if not isinstance(learnt.name, str) or learnt.kind not in {kind.value for kind in Kind}:
        raise TableError(f"{where} must have a name and a kind, got kind {learnt.kind!r}")
    if isinstance(learnt, Number):
        _check_number(where, learnt)
    elif isinstance(learnt, Flag):
        _check_reals(where, [learnt.low, learnt.high, learnt.fill])
        if not learnt.low < learnt.high:
            raise TableError(f"{where} must have low < high, got {learnt.low} and {learnt.high}")
    elif isinstance(learnt, Levels):
        _check_levels(where, learnt)


def _check_number(where: str, number: Number) -> None:
    _check_reals(where, [number.center, number.scale, *number.edges])
    increasing = all(low < high for low, high in pairwise(number.edges))
    if number.scale <= 0 or len(number.edges) < 2 or not increasing:
        raise TableError(f"{where} must have a scale > 0 and at least two increasing edges")


def _check_levels(where: str, levels: Levels) -> None:
    if not all(isinstance(level, str) for level in levels.levels):
        raise TableError(f"{where} must have strings as levels")
    if len(set(levels.levels)) != len(levels.levels):
        raise TableError(f"{where} must have each level once")


def _check_reals(where: str, values: list[Any]) -> None:
    for value in values:
        try:
            checks.number("each number", value)
        except (TypeError, ValueError) as error:
            raise TableError(f"{where} must hold finite numbers, got {checks.shown(value)}") from error

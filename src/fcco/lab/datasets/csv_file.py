"""CSV as other programs write it: what separates the columns, gaps, decimal commas, percent signs."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from fcco.tables._columns import is_missing

from ._numpy import np
from .errors import DataError
from .formats import Array

_SEPARATORS = (",", ";", "\t", "|")
_LOOKED_AT = 20  # rows that must be as long as the first, for a separator to be the file's

#: How tables of other programs write a missing number; words in a column of words.
_GAPS = frozenset({"NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "Null", "null", "None", "none", "?", "-", "."})
EXACT = 2**53  # whole numbers up to here are exact as floats
_WHOLE = re.compile(r"\s*[+-]?\d{1,4000}\s*", re.ASCII)
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_COMMA_NUMBER = re.compile(r"\s*[+-]?(\d+,?\d*|,\d+)([eE][+-]?\d+)?\s*")
#: One number with signs around it: $1,234.50; 12 345; 1.234,5; 3,5.
_WRITTEN_NUMBER = re.compile(r"[\s$€£¥+%-]*\d[\d.,'\s]*[\s$€£¥%]*")
_WRITTEN_DATE = re.compile(r"\s*\d{1,2}[./-]\d{1,2}[./-]\d{2,4}\b.*")
_BANDS = 20  # as many different values may well be names of steps on a scale


def read_csv(pandas: Any, path: Path, words: Collection[str]) -> tuple[Any, list[str], bool]:
    """The rows of a file, the names of its columns, and whether its decimals may be written with a comma.

    Args:
        pandas: the module.
        path: the file.
        words: columns that are words whatever they look like.
    """
    separator = _separator(pandas, path)
    names = _names(pandas, path, separator)
    frame = _rows(pandas, path, separator, [name for name in words if name in names])
    _check_header_once(path, frame, names)
    return frame, names, separator != ","


def _separator(pandas: Any, path: Path) -> str:
    """What cuts the first rows into most columns, equally many in each; a comma in doubt."""
    lines = _read(pandas, path, "\1", header=None, nrows=_LOOKED_AT, dtype=str, na_filter=False, quoting=csv.QUOTE_NONE)
    texts = [f"{line}\n" for line in lines.iloc[:, 0].tolist()]
    found, most = ",", 1
    for mark in _SEPARATORS:
        rows = list(csv.reader(texts, delimiter=mark))
        if len(texts) == _LOOKED_AT:
            rows = rows[:-1]  # may end inside a quoted cell
        widths = {len(row) for row in rows}
        if len(widths) == 1 and max(widths) > most:
            found, most = mark, max(widths)
    return found


def _names(pandas: Any, path: Path, separator: str) -> list[str]:
    """The names as they stand in the first row: pandas itself would call a second 'y' 'y.1', and hide a leak."""
    first = _read(pandas, path, separator, header=None, nrows=1, dtype=str, keep_default_na=False)
    names = []
    for place, name in enumerate(first.iloc[0].tolist()):
        if name == "":
            name = f"Unnamed: {place}"
        names.append(str(name))
    return names


def _rows(pandas: Any, path: Path, separator: str, words: list[str]) -> Any:
    """The rows; where they are longer than the first, pandas would take values for an index or lose them."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", pandas.errors.ParserWarning)
        try:
            return _read(
                pandas,
                path,
                separator,
                keep_default_na=False,
                na_values=[""],
                low_memory=False,
                index_col=False,
                dtype=dict.fromkeys(words, str),
            )
        except pandas.errors.ParserWarning as error:
            raise DataError(
                f"{path.name} has rows that are longer than the first one, which names the columns"
            ) from error


def _check_header_once(path: Path, frame: Any, names: list[str]) -> None:
    """Refuse a file that was put together from several, each with its header."""
    first = frame.iloc[:, 0]
    if first.dtype.kind in "biuf":
        return
    for row in np.flatnonzero(first.astype(str).to_numpy() == names[0]).tolist():
        if [str(cell) for cell in frame.iloc[row].tolist()] == names:
            raise DataError(f"{path.name} has its header again in row {row}: leave that row out")


def _read(pandas: Any, path: Path, separator: str, **options: Any) -> Any:
    return pandas.read_csv(path, sep=separator, encoding="utf-8-sig", **options)


def read_whole_numbers(pandas: Any, path: Path, place: int) -> Array | None:
    """A column as whole numbers and None for gaps; None: it holds something else.

    Args:
        pandas: the module.
        path: the file.
        place: of the column.
    """
    separator = _separator(pandas, path)
    frame = _read(pandas, path, separator, keep_default_na=False, index_col=False, dtype=str, usecols=[place])
    texts = [str(value) for value in frame.iloc[:, 0].to_list()]
    if not all(text == "" or _WHOLE.fullmatch(text) for text in texts):
        return None
    return np.array([_whole_or_gap(text) for text in texts], dtype=object)


def with_gaps(values: Array, where: str, comma: bool = False) -> Array:
    """Words that are all numbers or gaps ('NA' in R's tables) as numbers; warns of other words that look like numbers.

    Args:
        values: (N,) a column.
        where: its name, for messages.
        comma: whether 3,5 is a number.
    """
    if not _is_of_words(values):
        return values
    known = [text for text in values.tolist() if isinstance(text, str) and text not in _GAPS]
    if len(known) == 0:
        return values
    if _are_large_wholes(known):
        return np.array([_whole_or_gap(value) for value in values.tolist()], dtype=object)
    readers = [_number, _percent]
    if comma:
        readers += [_comma_number, _comma_percent]
    for read in readers:
        if all(read(text) is not None for text in known):
            return np.array([_or_gap(read, value) for value in values.tolist()])
    _warn_of_words(values, known, where)
    return values


def _is_of_words(values: Array) -> bool:
    """Whether a column holds words and gaps alone."""
    if values.dtype.kind not in "UO":
        return False
    return all(isinstance(value, str) or is_missing(value) for value in values.tolist())


def _are_large_wholes(known: list[str]) -> bool:
    """Whether they are whole numbers, some of which a float would round."""
    if not all(_WHOLE.fullmatch(text) for text in known):
        return False
    return any(abs(int(text)) > EXACT for text in known)


def _whole_or_gap(text: Any) -> int | None:
    if isinstance(text, str) and _WHOLE.fullmatch(text):
        return int(text)
    return None


def _warn_of_words(values: Array, known: list[str], where: str) -> None:
    """Warn where words may have been meant as numbers or dates."""
    odd = [text for text in known if _number(text) is None]
    if 0 < 2 * len(odd) < len(known):
        row = values.tolist().index(odd[0])
        warnings.warn(
            f"{where} has numbers, but also {odd[0]!r} in row {row}: the whole column is read as words", stacklevel=3
        )
    if len(set(odd)) <= _BANDS:
        return
    if all(_WRITTEN_NUMBER.fullmatch(text) for text in odd):
        warnings.warn(f"{where} is read as words: if {odd[0]!r} is a number, write it as 1234.5", stacklevel=3)
    if all(_WRITTEN_DATE.fullmatch(text) for text in odd):
        warnings.warn(f"{where} is read as words: if {odd[0]!r} is a date, write it as 2026-01-31", stacklevel=3)


def _number(text: str) -> float | None:
    if _NUMBER.fullmatch(text) is None:
        return None
    return float(text)


def _percent(text: str) -> float | None:
    if not text.rstrip().endswith("%"):
        return None
    return _number(text.rstrip()[:-1])


def _comma_number(text: str) -> float | None:
    if _COMMA_NUMBER.fullmatch(text) is None:
        return None
    return float(text.replace(",", "."))


def _comma_percent(text: str) -> float | None:
    if not text.rstrip().endswith("%"):
        return None
    return _comma_number(text.rstrip()[:-1])


def _or_gap(read: Callable[[str], float | None], value: Any) -> float:
    number = None
    if isinstance(value, str):
        number = read(value)
    if number is None:
        return float("nan")
    return number

"""The tables of a page, the numbers in a text, and whether one number is another, rounded."""

from __future__ import annotations

import gzip
import lzma
import re
from dataclasses import dataclass
from pathlib import Path

NUMBER = re.compile(r"(?<![\w.^-])-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w^])(?!\.\d)")


@dataclass(frozen=True)
class Table:
    """A table of a page.

    Args:
        heading: the heading that it stands under.
        header: its first row.
        rows: the others, without the line of dashes.
    """

    heading: str
    header: list[str]
    rows: list[list[str]]


def cells(line: str) -> list[str]:
    """The cells of a line of a table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def without_code(text: str) -> str:
    """A page without its blocks of code; the lines stay where they are."""
    return re.sub(
        r"^ *```.*?^ *```", lambda block: "\n" * block.group().count("\n"), text, flags=re.DOTALL | re.MULTILINE
    )


def tables(page: Path) -> list[Table]:
    """The tables of a page, in order."""
    found: list[Table] = []
    heading = ""
    inside = False
    for line in without_code(page.read_text()).splitlines():
        if line.startswith("#"):
            heading = line.strip("# ")
        if not line.startswith("|"):
            inside = False
        elif not inside:
            found.append(Table(heading, cells(line), []))
            inside = True
        elif not re.fullmatch(r"[|:\s-]+", line):
            found[-1].rows.append(cells(line))
    return found


def prose(page: Path) -> str:
    """A page without tables, code, formulas of a block, links' targets and what stands between backticks."""
    lines = []
    for line in without_code(page.read_text()).splitlines():
        if not line.startswith(("|", "    ", "#")):
            lines.append(line)
    text = "\n".join(lines)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return re.sub(r"`[^`]*`", " ", text)


def numbers(text: str) -> list[str]:
    """The numbers in a text, as they are written."""
    return [found.group() for found in NUMBER.finditer(text)]


def decimals(text: str) -> list[str]:
    """The numbers in a text that are measurements by their look: a point or an exponent."""
    return [number for number in numbers(text) if "." in number or "e" in number]


def value(number: str) -> float:
    """What a number says: with commas between thousands, and an exponent."""
    return float(number.replace(",", ""))


def unit(number: str) -> float:
    """One in the last place that a number shows."""
    mantissa, _, exponent = number.replace(",", "").partition("e")
    return 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def rounds(exact: str, shown: str) -> bool:
    """Whether `shown` is `exact`, rounded to the digits that it shows.

    Example:
        >>> rounds("0.6124", "0.61"), rounds("0.6124", "0.612"), rounds("0.6124", "0.613")
        (True, True, False)
        >>> rounds("1,154.2", "1154"), rounds("1.0e-15", "9e-16"), rounds("0.5", "0.50")
        (True, False, True)
    """
    apart = abs(value(exact) - value(shown))
    return apart <= 0.5 * unit(shown) * (1 + 1e-9) + 0.5 * min(unit(exact), unit(shown)) * (unit(exact) < unit(shown))


def read(path: Path) -> str:
    """A log, compressed or not."""
    if path.suffix == ".xz":
        return lzma.decompress(path.read_bytes()).decode()
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes()).decode()
    return path.read_text()

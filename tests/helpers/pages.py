"""The blocks of code in a page of the documentation, and a way to run them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"

# An HTML comment on the line before a block says why it is not run, or what has to be installed for it.
MARK = re.compile(r"<!-- (not run|needs):? (.+?) -->")
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[^\s`]*)[^\n`]*\n(?P<code>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """A block of code.

    Args:
        line: where it begins, from 1.
        language: "" where the page says none.
        code: its lines, without the fence's indent.
        not_run: why it is not run; None: it is.
        needs: the module without which it is not run; None: the tests' own.
    """

    line: int
    language: str
    code: str
    not_run: str | None = None
    needs: str | None = None


def pages() -> list[Path]:
    """Every page that is written by hand."""
    return sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text()
    found = []
    for fence in FENCE.finditer(text):
        indent = fence.group("indent")
        code = "".join(line.removeprefix(indent) for line in fence.group("code").splitlines(keepends=True))
        before = text[: fence.start()].rstrip("\n").rpartition("\n")[2].strip()
        mark = MARK.fullmatch(before)
        reasons: dict[str, str] = {}
        if mark is not None:
            reasons[mark.group(1)] = mark.group(2)
        line = text.count("\n", 0, fence.start()) + 2
        block = Block(line, fence.group("language"), code, reasons.get("not run"), reasons.get("needs"))
        found.append(block)
    return found


def run(page: Path, names: dict[str, Any], missing: list[str]) -> int:
    """Run a page's Python from top to bottom in one namespace; returns how many blocks were run.

    Args:
        page: whose blocks.
        names: the namespace.
        missing: modules that cannot be imported; blocks that need one of them are left out.
    """
    count = 0
    for block in blocks(page):
        if block.language != "python" or block.not_run is not None or block.needs in missing:
            continue
        padded = "\n" * (block.line - 1) + block.code  # so that an error names the page's line
        exec(compile(padded, str(page), "exec"), names)
        count += 1
    return count

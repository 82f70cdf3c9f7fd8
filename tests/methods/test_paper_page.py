"""docs/paper.md: no number of the paper is missing, and every name and test that it points to is there."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
ERRATA = (ROOT / "docs" / "errata.md").read_text(encoding="utf-8")
THERE = {
    "equation": 19,
    "lemma": 12,
    "theorem": 6,
    "algorithm": 3,
    "figure": 5,
    "definition": 2,
    "assumption": 4,
    "table": 1,
}
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ")]


def numbers(kind):
    """The numbers of that kind in the first column."""
    found = set()
    for row in ROWS:
        first = row.split("|")[1]
        for listed in re.findall(rf"{kind}s? (\d+(?:, \d+)*)", first):
            found |= {int(number) for number in listed.split(", ")}
    return found


@pytest.mark.parametrize("kind", THERE)
def test_every_number_of_the_paper_has_its_row(kind):
    assert numbers(kind) == set(range(1, THERE[kind] + 1))


def test_every_test_is_there():
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE + ERRATA))
    assert len(named) > 40
    for file, name in sorted(named):
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {name}"


def test_every_symbol_is_there():
    named = set(re.findall(r"`(fcco(?:\.\w+)+)", PAGE))
    assert len(named) > 25
    for symbol in sorted(named):
        found(symbol)


def found(symbol):
    """The object by its dotted name; modules are imported on the way."""
    parts = symbol.split(".")
    here = importlib.import_module(parts[0])
    for place, part in enumerate(parts[1:], start=1):
        if not hasattr(here, part):
            importlib.import_module(".".join(parts[: place + 1]))
        here = getattr(here, part)
    return here


@pytest.mark.parametrize("page", ["paper.md", "errata.md", "stages.md", "theory.md"])
def test_tables_are_whole(page):
    """A bar inside a cell would end it."""
    tables = re.findall(r"(?:^\|.*\n)+", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert tables
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1, table[:80]


def test_links_between_the_pages_lead_somewhere():
    for text in (PAGE, ERRATA, (ROOT / "docs" / "stages.md").read_text(encoding="utf-8")):
        for target in re.findall(r"\]\(([^)#]+)", text):
            assert (ROOT / "docs" / target).exists(), target

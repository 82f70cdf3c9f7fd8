"""The README's examples run as they stand."""

import re
from pathlib import Path

import pytest
import torch

README = Path(__file__).parent.parent / "README.md"


def examples():
    return re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_every_python_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    blocks = examples()
    assert len(blocks) == 3
    names: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        if "fcco.fit(" in block:
            continue  # it takes a while, and has a test of its own
        exec(compile(block, str(README), "exec"), names)
    assert (tmp_path / "run.pt").exists()
    assert "Diagnosis(value=" in capsys.readouterr().out


@pytest.mark.parametrize("door", ["fcco.fit(", "fcco.losses", "fcco.objectives"])
def test_every_door_is_ten_lines_that_stand_alone(door, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block = next(block for block in examples() if door in block)
    assert len(block.strip().splitlines()) <= 10
    torch.manual_seed(0)
    names: dict[str, object] = {}
    exec(compile(block, str(README), "exec"), names)
    if door == "fcco.fit(":
        assert names["result"].value >= names["result"].plain_value - 0.05
        assert names["scores"].shape == (5000,)
    elif door == "fcco.losses":
        assert names["loss"].steps == len(names["loader"])
    else:
        assert names["solver"].t == len(names["loader"])


def anchors(page):
    """The names that headings can be linked by, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_somewhere():
    targets = re.findall(r"\]\((?!https?:)([^)]+)\)", README.read_text())
    assert len(targets) > 15
    for target in targets:
        path, _, anchor = target.partition("#")
        page = README
        if path:
            page = README.parent / path
        assert page.is_file(), target
        assert not anchor or anchor in anchors(page), target


def test_it_is_short():
    assert len(README.read_text().splitlines()) < 150

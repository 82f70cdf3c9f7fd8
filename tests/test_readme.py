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
        assert names["scores"].shape == (1000,)
    elif door == "fcco.losses":
        assert names["loss"].steps == len(names["loader"])
    else:
        assert names["solver"].t == len(names["loader"])

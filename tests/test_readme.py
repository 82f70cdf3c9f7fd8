"""The README's examples run as they stand."""

import re
from pathlib import Path

import torch

README = Path(__file__).parent.parent / "README.md"


def examples():
    return re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_every_python_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    blocks = examples()
    assert len(blocks) >= 2
    names: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert (tmp_path / "run.pt").exists()
    assert "Diagnosis(value=" in capsys.readouterr().out


def test_a_loss_in_ones_own_loop_is_ten_lines_that_stand_alone():
    block = next(block for block in examples() if "fcco.losses" in block)
    assert len(block.strip().splitlines()) <= 10
    torch.manual_seed(0)
    names: dict[str, object] = {}
    exec(compile(block, str(README), "exec"), names)
    assert names["loss"].steps == len(names["loader"])

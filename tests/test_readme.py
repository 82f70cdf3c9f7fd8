"""The README's examples run as they stand."""

import re
from pathlib import Path

import torch

README = Path(__file__).parent.parent / "README.md"


def test_every_python_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(blocks) >= 2
    names: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert (tmp_path / "run.pt").exists()
    assert "Diagnosis(value=" in capsys.readouterr().out

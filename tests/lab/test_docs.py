"""Every command of docs/lab.md is one that the command line understands; the example of docs/data.md runs."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from fcco.lab import app
from fcco.lab.cli import main
from fcco.lab.config import FitConfig, TrainConfig
from fcco.lab.demo.command import DemoConfig
from fcco.lab.runs import write_json
from fcco.lab.values import as_values

PAGE = Path(__file__).parents[2] / "docs" / "lab.md"
DATA_PAGE = PAGE.with_name("data.md")
WITHOUT_ARGUMENTS = ("methods", "objectives", "data", "rates", "bench")


def commands() -> list[list[str]]:
    """What stands behind `fcco` in the page's first block, without comments."""
    block = re.search(r"```sh\n(fcco .*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert block is not None
    found = [shlex.split(line.split("#")[0].split(">")[0])[1:] for line in block.group(1).splitlines()]
    return [argv for argv in found if argv[0] in app.COMMANDS]


@pytest.mark.parametrize("argv", commands(), ids=" ".join)
def test_the_command_is_understood(argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text("method = 'sox'\n")
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    write_json(tmp_path / "runs" / "mine" / "config.json", as_values(TrainConfig()))
    asked = []
    command = app.COMMANDS[argv[0]]
    monkeypatch.setitem(app.COMMANDS, argv[0], replace(command, run=lambda chosen, console: asked.append(chosen)))
    assert main(argv) == 0
    assert len(asked) == 1


def test_the_small_commands_are_there() -> None:
    text = PAGE.read_text()
    for name in WITHOUT_ARGUMENTS:
        assert name in {**app.COMMANDS, **app.HANDED_ON}
        assert name in text


def test_the_settings_that_the_page_names_are_there() -> None:
    known = set(as_values(TrainConfig())) | set(as_values(FitConfig())) | {field.name for field in fields(DemoConfig)}
    flags = {flag.replace("-", "_") for flag in re.findall(r"`--([a-z-]+)", PAGE.read_text())}
    elsewhere = {"resume", "config", "out", "target", "storage", "trials", "space", "halving", "budget", "quick"}
    assert flags - known <= elsewhere


def test_the_way_from_a_data_set_to_the_solver_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", DATA_PAGE.read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(blocks[-1], str(DATA_PAGE), "exec"), names)
    assert names["report"].step == len(names["solver"].loader(blocks=5, samples=32))

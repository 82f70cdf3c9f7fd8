"""Every block of code in the documentation runs, or says why it does not; every command named is there."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fcco
from fcco.lab import app
from fcco.lab.cli import main
from fcco.lab.config import TrainConfig
from fcco.lab.runs import write_json
from fcco.lab.values import as_values
from fcco.sklearn import _base
from tests.helpers.pages import DOCS, Block, blocks, pages, run

ROOT = DOCS.parent
FIT = fcco.fit
LANGUAGES = {"python", "sh", "text", "toml", "bibtex"}
PEER = ["libauc", "libauc.sampler"]  # not among the tests' packages


def name_of(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def blocks_of(language: str) -> list[tuple[Path, Block]]:
    return [(page, block) for page in pages() for block in blocks(page) if block.language == language]


# Pages whose own test runs them, and has more to check.
ELSEWHERE = {
    "integrations.md": "tests/integrations/test_docs.py",
    "losses.md": "tests/losses/test_docs.py",
    "sklearn.md": "tests/sklearn/test_docs.py",
    "stages.md": "tests/solver/test_stages_page.py",
    "tables.md": "tests/sklearn/test_docs.py",
}
WITH_PYTHON = sorted(page for page in {page for page, _ in blocks_of("python")} if name_of(page) not in ELSEWHERE)


def quick_fit(*arguments: Any, **settings: Any) -> Any:
    """`fcco.fit` with a short recipe: one plain setting, one epoch."""
    plain = (fcco.fitting.Setting("plain", lr=1e-3, weight_decay=1.0),)
    rungs = (fcco.fitting.Rung(1.0, 1),)
    settings["recipe"] = fcco.fitting.Recipe(epochs=1, least_examples=300, checks=1, plain=plain, plain_rungs=rungs)
    settings["progress"] = False
    return FIT(*arguments, **settings)


def importable(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fcco, "fit", quick_fit)
    monkeypatch.setattr(_base, "fit", quick_fit)
    torch.manual_seed(0)
    missing = [name for name in PEER if not importable(name)]
    asked = [block for block in blocks(page) if block.language == "python" and block.not_run is None]
    count = run(page, {"__name__": "page"}, missing)
    assert count == len([block for block in asked if block.needs not in missing])


def test_pages_that_run_elsewhere_do() -> None:
    for page, test in ELSEWHERE.items():
        assert page in (ROOT / test).read_text()


def test_every_block_says_what_it_is() -> None:
    for page in pages():
        for block in blocks(page):
            where = f"{name_of(page)}, line {block.line}"
            assert block.language in LANGUAGES or block.language.startswith("{"), f"{where}: {block.language!r}"
            assert block.needs is None or block.needs in PEER, where


def test_what_is_not_run_is_counted() -> None:
    """A new block that is not run has to be named here, too."""
    left_out = [(name_of(page), block.not_run) for page, block in blocks_of("python") if block.not_run is not None]
    assert sorted(left_out) == [("data.md", "the files are yours"), ("gpus.md", "needs a GPU")]


def test_blocks_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- not run: no disk -->\n```python\nx = 1\n```\n\n1. one:\n\n   ```sh\n   fcco demo\n   ```\n")
    assert blocks(page) == [Block(3, "python", "x = 1\n", "no disk"), Block(9, "sh", "fcco demo\n")]


# ---------------------------------------------------------------- commands


def shell_lines() -> list[tuple[str, str]]:
    """Every line of a shell block, without comments, by page."""
    found = []
    for page, block in blocks_of("sh"):
        for line in block.code.splitlines():
            command = line.split(" #")[0].strip()
            if command and not command.startswith("#"):
                found.append((name_of(page), command))
    return found


def commands(name: str) -> list[str]:
    return sorted({line for _, line in shell_lines() if line.split()[0] == name})


def test_shell_lines_are_of_kinds_that_are_checked() -> None:
    kinds = {line.split()[0].rpartition("/")[2] for _, line in shell_lines()}
    assert kinds <= {"fcco", "make", "pip", "python", "torchrun", "export", "OMP_NUM_THREADS=1"}


@pytest.mark.parametrize("line", commands("fcco"))
def test_the_command_is_understood(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = shlex.split(line.split(">")[0])[1:]
    if argv[0].startswith("-"):
        return  # --help, completion: tests/lab/test_cli.py
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text("method = 'sox'\n")
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    write_json(tmp_path / "runs" / "mine" / "config.json", as_values(TrainConfig()))
    if argv[0] in app.HANDED_ON:
        return  # it parses its own arguments: tests/lab/test_rates_run.py
    asked = []
    command = app.COMMANDS[argv[0]]
    monkeypatch.setitem(app.COMMANDS, argv[0], replace(command, run=lambda chosen, console: asked.append(chosen)))
    assert main(argv) == 0
    assert len(asked) == 1


def test_every_script_and_target_that_the_pages_name_is_there() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    scripts = 0
    for page in pages():
        text = page.read_text()
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", text, flags=re.MULTILINE):
            assert target in targets, f"{name_of(page)}: make {target}"
        for script in re.findall(r"benchmarks/[\w/]+\.py", text):
            assert (ROOT / script).is_file(), f"{name_of(page)}: {script}"
            scripts += 1
        for module in re.findall(r"python -m (benchmarks[\w.]*)", text):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), f"{name_of(page)}: {module}"
        for test in re.findall(r"`(tests/[\w/]+\.py)", text):
            assert (ROOT / test).is_file(), f"{name_of(page)}: {test}"
        for kept in re.findall(r"results/[\w./-]*\w(?!\*)\b(?!\*)", text):
            assert (ROOT / kept).exists(), f"{name_of(page)}: {kept}"
    assert scripts > 20


# ---------------------------------------------------------------- numbers

# Pages with measurements, which name what prints them; other pages quote these, and link to them.
MEASURED = {
    "arena.md",
    "captured.md",
    "choosing_a_method.md",
    "choosing_an_objective.md",
    "index.md",
    "lab.md",
    "learning.md",
    "memory.md",
    "memory_log.md",
    "peers.md",
    "reliability.md",
    "results.md",
    "stages.md",
    "tables.md",
    "theory.md",
}
COMMAND = re.compile(r"`[^`\n]*(?:python (?:-m )?benchmarks|fcco (?:rates|bench|train|report)|make peers)[^`\n]*`")


@pytest.mark.parametrize("name", sorted(MEASURED))
def test_a_page_with_measurements_names_the_command(name: str) -> None:
    text = (DOCS / name).read_text()
    assert COMMAND.search(text) or "```python" in text, name


# Guides quote the pages of results; these have the numbers from their commands.
GUIDES = ("choosing_a_method.md", "choosing_an_objective.md", "index.md", "memory.md", "how.md")
RESULTS = ("memory_log.md", "learning.md", "theory.md", "results.md", "captured.md", "peers.md")


def without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("name", GUIDES)
def test_what_a_guide_quotes_stands_in_the_results(name: str) -> None:
    """Numbers of two and three decimals, as the results round to."""
    known = [
        float(number) for page in RESULTS for number in re.findall(r"\d+\.\d+", without_code((DOCS / page).read_text()))
    ]
    for number in re.findall(r"(?<![\d.])(?<!Python )\d\.\d{2,3}(?![\d.])", without_code((DOCS / name).read_text())):
        places = len(number.partition(".")[2])
        assert any(f"{value:.{places}f}" == number for value in known), f"{name}: {number}"


def test_two_ranks_run_the_page_on_gpus(tmp_path: Path) -> None:
    script = next(block for block in blocks(DOCS / "gpus.md") if "# train.py" in block.code)
    (tmp_path / "train.py").write_text(script.code)
    # Without the import torch's optimizers keep the process group alive, and its threads may abort the process at its
    # end (docs/reliability.md).
    (tmp_path / "run.py").write_text(
        "import runpy\n\nimport torch._dynamo\n\nrunpy.run_path('train.py', run_name='__main__')\n"
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "run.py"]
    done = subprocess.run(launch, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+ steps, F = [\d.]+", done.stdout)
    assert (tmp_path / "run.pt").is_file()

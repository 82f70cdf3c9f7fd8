"""`fcco reproduce`: the paper's protocol, shortened, from tuning to the figure."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fcco.lab import reporting, reproduce
from fcco.lab.cli import main
from fcco.lab.loaded import load_dataset
from fcco.lab.protocol import METHODS, QUICK, Protocol, base, figure_groups, shortened
from fcco.lab.reproduce import ReproduceCommand, _protocol
from fcco.lab.space import PAPER


def test_figure1_end_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = []

    def page(runs: list[Path], out: Path, *, title: str, note: str) -> Path:  # test_report_page.py writes a real one
        notes.append(note)
        return out

    monkeypatch.setattr(reporting, "write", page)
    argv = ["reproduce", "figure1", "--dataset", "digits", "--quick", "--out", str(tmp_path)]
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert all(method in shown for method in METHODS)
    assert str(tmp_path / "figure1.png") in shown
    assert (tmp_path / "figure1.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "figure1.pdf").read_bytes()[:4] == b"%PDF"
    assert "QUICK RUN" in notes[0]
    assert "embedded" in notes[0]  # where the data came from
    protocol = json.loads((tmp_path / "protocol.json").read_text())["protocol"]
    assert protocol["margin"] == 1.0
    runs = sorted((tmp_path / "runs").iterdir())
    assert len(runs) == 4 * QUICK.seeds
    before = [(run / "metrics.jsonl").stat().st_mtime_ns for run in runs]
    monkeypatch.setattr(reproduce, "draw", lambda *_, **__: None)
    assert main(argv) == 0  # everything is there: only the figure would be drawn again
    assert [(run / "metrics.jsonl").stat().st_mtime_ns for run in runs] == before
    capsys.readouterr()
    assert main([*argv, "--seeds", "1"]) == 2
    assert "another reproduction" in capsys.readouterr().err


def test_the_protocol_is_the_papers() -> None:
    protocol = Protocol()
    assert (protocol.model, protocol.samples, protocol.seeds) == ("resnet18", 128, 5)
    assert protocol.grid == PAPER
    assert PAPER["alpha"] == PAPER["beta"] == (0.1, 0.5, 0.9, 1.0)
    assert PAPER["lr"] == (1e-4, 1e-3, 2e-3, 5e-3, 1e-2)
    for word in ("margin c = 1", "I = m n/(B1 B2)", "augmentation", "first probe", "beta = 1", "5 seeds"):
        assert word in protocol.notes()
    data = load_dataset("digits")
    config = base(protocol, data, "msvr-v2")
    assert (config.blocks, config.loss, config.optimizer) == (5, "squared-hinge", "sgd")
    assert config.period is None
    assert base(protocol, data, "msvr-v3").period == round(10 * 1442 / (5 * 128))  # the theorem's I
    hundred = replace(data, num_classes=100, classes=())
    assert base(protocol, hundred, "sox").blocks == 50


def test_what_is_shortened_is_said() -> None:
    half = shortened(Protocol(), 0.5)
    assert half.passes == 0.5 * Protocol().passes
    assert half.halving
    assert "SHORTENED: 50%" in half.notes()
    assert "SHORTENED" not in Protocol().notes()
    assert "2 seeds" in _protocol(ReproduceCommand("figure1", seeds=2)).shortened
    assert "QUICK" in _protocol(ReproduceCommand("figure1", quick=True, budget=0.5)).notes()


def test_the_figures_have_the_papers_curves() -> None:
    data = [load_dataset("digits")]
    one, two, three, four, five = (list(figure_groups(f"figure{n}", Protocol(), data)) for n in range(1, 6))
    assert [group.method for group in one] == list(METHODS)
    assert {group.method for group in two} == {f"{kind}-v{n}" for kind in ("msvr", "variant") for n in (1, 2, 3)}
    assert len({group.panel for group in two}) == 3
    assert {group.config.model for group in three} == {"resnet18", "resnet34", "densenet121"}
    assert {group.method for group in four + five} == {"msvr-v1", "msvr-v2", "msvr-v3"}
    assert [group.config.blocks for group in four[:3]] == [2, 5, 9]
    assert [group.config.samples for group in five[:3]] == [32, 64, 128]
    assert len({group.config.steps for group in four + five}) == 1
    assert [group.config.period for group in four[6:]] == [round(14420 / (128 * b1)) for b1 in (2, 5, 9)]
    assert len({group.tuned_as for group in four}) == 3  # tuned once per method


@pytest.mark.parametrize(("argv", "expected"), [
    (["figure9"], "figure9"),
    (["figure1", "--budget", "2"], "--budget must be in (0, 1]"),
    (["figure1", "--seeds", "0"], "--seeds must be >= 1"),
    (["figure1", "--dataset", "digit"], "did you mean 'digits'?"),
])  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(
    argv: list[str], expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["reproduce", *argv, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert expected in error


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["figure2", "figure3", "figure4", "figure5"])
def test_the_other_figures_end_to_end(figure: str, tmp_path: Path) -> None:
    argv = ["reproduce", figure, "--dataset", "digits", "--quick", "--seeds", "1", "--budget", "0.8"]
    assert main([*argv, "--out", str(tmp_path)]) == 0
    assert (tmp_path / f"{figure}.png").exists()

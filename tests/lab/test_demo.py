"""`fcco demo` and the figures: four methods, a table, a plot, a report."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from fcco import CorrectionWarning
from fcco.lab.cli import main
from fcco.lab.demo import TUNED, DemoConfig, _gathered, configs
from fcco.lab.figure import Panel, curve, draw


def test_the_demo_ends_with_a_plot_and_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "demo"
    assert main(["demo", "--seeds", "1", "--total-samples", "16000", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    for method in TUNED:
        assert method in shown
    assert str(out / "demo.png") in shown
    assert str(out / "report.html") in shown
    assert (out / "demo.png").read_bytes()[:4] == b"\x89PNG"
    page = (out / "report.html").read_text(encoding="utf-8")
    assert all(method in page for method in TUNED)
    assert main(["demo", "--out", str(out)]) == 2  # used


def test_warnings_are_told_once_and_others_pass() -> None:
    warned: dict[str, None] = {}

    def run(method: str, *messages: Warning) -> None:
        with _gathered(warned, method):
            for message in messages:
                warnings.warn(message, stacklevel=1)

    with pytest.warns(UserWarning, match="something else"):
        run("msvr-v2", CorrectionWarning("the correction"), UserWarning("something else"))
    run("sox")
    assert list(warned) == ["msvr-v2"]


def test_every_run_of_the_demo_draws_about_as_many_samples() -> None:
    wanted = configs(DemoConfig(seeds=1, total_samples=72_000))
    assert [config.method for config in wanted.values()] == list(TUNED)
    assert {config.total_samples for config in wanted.values()} == {72_000}
    assert len({config.seed for config in configs(DemoConfig(seeds=3)).values()}) == 3


def test_a_curve_is_the_mean_and_its_spread() -> None:
    runs = [
        [{"step": 0, "objective": 1.0}, {"step": 5, "objective": 4.0}],
        [{"step": 0, "objective": 3.0}, {"step": 5, "objective": 4.0}, {"step": 9, "objective": 1.0}],
    ]
    found = curve(runs, "step", "objective")
    assert found.x == [0.0, 5.0]  # as far as both go
    assert found.mean == [2.0, 4.0]
    assert found.high == pytest.approx([2.0 + 2**0.5, 4.0])


def test_what_was_not_measured_is_left_out(tmp_path: Path) -> None:
    runs = [[{"step": 0, "error": None}, {"step": 1, "error": 0.5}]]
    assert curve(runs, "step", "error").x == [1.0]
    nothing = [[{"step": 0, "error": None}]]
    panels = [Panel("a", {"x": runs, "y": nothing}, {}, "error", "error"), Panel("b", {}, {}, "error", "error")]
    draw(tmp_path / "new" / "figure.png", panels, x="step", x_label="steps", title="t", note="n " * 200)
    assert (tmp_path / "new" / "figure.png").stat().st_size > 1000

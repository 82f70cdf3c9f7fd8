"""`fcco demo`: both parts, their story, figure, page and numbers; and the figures of runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fcco.lab.cli import main
from fcco.lab.demo import rare, theory
from fcco.lab.demo.command import DemoConfig, plans
from fcco.lab.demo.story import TERMS, rare_part, theory_part
from fcco.lab.figure import Panel, curve, draw

METHODS = ("sox", "sox-nesterov", "msvr-v1", "msvr-v2", "msvr-v3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "out"
    assert main(["demo", "--quick", "--seeds", "2", "--digits", "2", "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def numbers(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "demo.json").read_text(encoding="utf-8"))
    return found


def test_v3_ends_orders_of_magnitude_below_the_others(numbers: dict[str, Any]) -> None:
    ends = {one["name"]: one["gap"] for one in numbers["methods"]["found"]}
    assert tuple(ends) == METHODS
    v3 = ends.pop("msvr-v3")
    assert v3 < 1e-8
    assert min(ends.values()) > 1e-4
    errors = {one["name"]: one["error"] for one in numbers["methods"]["found"]}
    assert errors["msvr-v3"] < 1e-5 < errors["msvr-v2"]  # u has arrived, too


def test_every_method_has_the_same_oracle_calls(numbers: dict[str, Any]) -> None:
    calls = numbers["methods"]["plan"]["calls"]
    for one in numbers["methods"]["found"]:
        assert 0.95 * calls < one["calls"][-1] <= calls
        assert one["calls"][0] == 0
        assert one["gaps"][0] == numbers["methods"]["found"][0]["gaps"][0]  # from the same start


def test_the_calls_of_an_entry_are_the_probes_of_a_step() -> None:
    plan = theory.Plan()
    for entry in theory.entries(plan):
        made = theory.problem(plan)
        setting = theory.Setting(made, entry.recipe, theory.start(made, 0.0), 1)
        *_, loop = theory.travel(setting, [[theory.Stage(5, 0.01, 0.1, 0.1)]])
        assert loop.seen is not None
        probes = loop.seen[1].values()
        gradients = sum(probe.u is not None for probe in probes)
        assert entry.calls == len(probes) + gradients, entry.name
        full_passes = 1 if entry.name == "msvr-v3" else 0
        assert theory._spent(loop, entry) == 5 * entry.calls + full_passes * 2 * plan.m * plan.n


def test_the_rare_class_has_both_models_on_every_digit(numbers: dict[str, Any]) -> None:
    found = numbers["rare_class"]
    for scored in (found["plain"], found["fit"]):
        assert len(scored) == 2
        for one in scored:
            assert 0.0 < one["low"] <= one["ap"] <= one["high"] <= 1.0
            assert one["ap"] > 0.3  # chance is 0.04: it has learnt something
    gains = [fit["ap"] - plain["ap"] for fit, plain in zip(found["fit"], found["plain"], strict=True)]
    difference = found["difference"]
    assert difference["mean"] == pytest.approx(sum(gains) / 2)
    # Student's t with one degree of freedom: 12.706 standard errors.
    assert difference["high"] - difference["mean"] == pytest.approx(12.7062 * abs(gains[0] - gains[1]) / 2, rel=1e-4)


def test_the_story_has_tables_lessons_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    out = tmp_path / "one"
    assert main(["demo", "--quick", "--seeds", "1", "--digits", "1", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    for name in ("SOX, heavy ball", "SOX, Nesterov", "MSVR-v1", "MSVR-v2", "MSVR-v3", "cross-entropy", "fcco.fit"):
        assert name in shown
    assert "One digit says little" in shown  # no interval from one digit
    assert "calls to 1e-8" in shown  # the table fits 80 columns
    for term in TERMS:
        assert term in shown
    for file in ("demo.png", "report.html", "demo.json"):
        assert str(out / file) in shown
    assert (folder / "demo.png").read_bytes()[:4] == b"\x89PNG"
    assert main(["demo", "--out", str(folder)]) == 2  # used


def test_the_page_explains_its_columns_at_a_hover(folder: Path) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    for name in ("F - F*", "|u - g|", "calls to 1e-8", "test AP [95 %]", "examples"):
        assert f">{name}</abbr>" in page
    assert "MSVR-v3" in page
    assert "data:image/png;base64," in page
    assert "http" not in page  # it stands alone


def test_the_parts_of_a_problem_are_apart_and_equally_rare() -> None:
    parts = rare.split(3)
    for part in parts:
        assert part.y.float().mean() == pytest.approx(rare.SHARE, abs=0.006)
    images = {tuple(row) for row in parts.train.x.tolist()}
    assert not images & {tuple(row) for row in parts.valid.x.tolist()}
    assert not images & {tuple(row) for row in parts.test.x.tolist()}
    assert parts.train.x.mean(0).abs().max() < 1e-4
    assert not torch.equal(rare.split(4).test.x, parts.test.x)


def test_precision_is_the_best_at_a_recall_or_above() -> None:
    scores = torch.tensor([4.0, 3.0, 2.0, 1.0])
    found = rare._precision(scores, torch.tensor([1, 0, 1, 1]))
    assert found[rare.RECALLS <= 1 / 3].eq(1.0).all()
    # After 3 images it is 2/3, after all 4 it is 3/4 at a higher recall.
    assert found[rare.RECALLS > 1 / 3].sub(3 / 4).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("gains", "said"),
    [((0.10, 0.11, 0.12), "better here than"), ((-0.10, -0.11, -0.12), "plain loss is better"), ((-0.1, 0.1), "A tie")],
)
def test_the_lesson_follows_the_interval(gains: tuple[float, ...], said: str) -> None:
    plain = [rare.Scored(0.5, 0.4, 0.6, [1.0], 10, "") for _ in gains]
    fitted = [rare.Scored(0.5 + gain, 0.4, 0.6, [1.0], 10, "") for gain in gains]
    found = rare.Found(plain, fitted, (100, 4), (25, 1), (125, 5))
    assert said in rare_part(rare.Plan(digits=len(gains)), found).lesson
    single = rare.Found(plain[:1], fitted[:1], (100, 4), (25, 1), (125, 5))
    assert math.isnan(single.difference()[1])


def test_a_run_too_short_to_tell_says_so() -> None:
    plan = theory.Plan(calls=1_500, marks=10, seeds=1, etas=(0.01,), alphas=(0.1,), betas=(0.1,))
    titles: list[str] = []
    found = theory.run(plan, titles.append)
    assert titles == [one.title for one in found]
    assert "too short to tell" in theory_part(plan, found).lesson
    assert found[-1].needed(1e-8) is None
    assert found[-1].needed(10.0) == 0.0


def test_the_best_setting_of_the_grid_is_shown() -> None:
    plan = theory.Plan(calls=2_000, marks=10, seeds=2, etas=(1e-5, 5e-3), alphas=(0.1,), betas=(0.1,))
    sox = theory.entries(plan)[0]
    found = theory._best(plan, sox, [(1e-5, 0.1, 0.1), (5e-3, 0.1, 0.1)])
    assert found.eta == 5e-3
    assert found.tried == 2
    assert np.all(found.gaps >= 0)


def test_the_full_demo_is_what_it_says() -> None:
    first, second = plans(DemoConfig())
    assert first.digits == 10  # none is left out
    assert second.seeds == 5
    assert len(second.etas) * len(second.alphas) * len(second.betas) == 96


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

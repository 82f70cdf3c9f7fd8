"""benchmarks/arena: runs are made once, failures are kept as such, and the table pairs seeds."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch

import fcco
from benchmarks.arena import chosen, figure, ours, plain, rivals, runs
from benchmarks.arena.__main__ import MARKS, draw, into_page, matching
from benchmarks.arena.network import Course, network, run_length
from benchmarks.arena.problems import PROBLEMS, Problem, Split, make_split
from benchmarks.arena.tables import Whole
from benchmarks.kept import Kept, Row
from fcco.fitting import Recipe

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def split() -> Split:
    x = torch.randn(400, 6)
    y = (x[:, 0] + 0.5 * torch.randn(400) > 1.0).float()
    return make_split("a9a-rare-ap", Problem("a9a", "average_precision"), Whole(x, y), seed=0)


def kept_row(method: str, seed: int, valid: float, test: float, setting: str = "{}", **more: float) -> Row:
    base = {"problem": "p", "method": method, "setting": setting, "seed": seed, "valid": valid, "test": test}
    return base | {"cpu_seconds": 1.0, "examples": 100} | more


def test_a_run_that_is_kept_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    jobs = runs.jobs(["emotions-ap"], ["plain"], [0])
    assert len(jobs) == 12
    rows = [dict(zip(runs.NAMES, job, strict=True)) | {"valid": 0.5, "test": 0.5} for job in jobs]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with Kept(path, runs.NAMES, pytest.fail, 1) as kept:
        assert kept.gather(jobs) == rows


def test_a_run_is_the_same_twice_and_says_where_it_comes_from(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "load", lambda problem, seed: split)
    monkeypatch.setattr(plain, "run_length", lambda split: 2000)
    setting = json.dumps(plain.SETTINGS[4], sort_keys=True)
    first = runs.one("a9a-rare-ap", "plain", setting, 3)
    second = runs.one("a9a-rare-ap", "plain", setting, 3)
    for row in (first, second):
        assert row.pop("cpu_seconds") > 0
    assert first == second
    assert first["examples"] >= 2000
    assert first["valid"] >= first["last_valid"]
    assert {"commit", "version", "fcco", "seed", "setting"} <= set(first)


def test_a_failed_run_says_so_and_can_be_tried_again(
    tmp_path: Path, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(split: Split, setting: runs.Setting, seed: int) -> Row:
        raise RuntimeError("no luck")

    monkeypatch.setattr(runs, "load", lambda problem, seed: split)
    monkeypatch.setitem(runs.METHODS, "plain", runs.Method(lambda problem: [{}], fail))
    row = runs.one("a9a-rare-ap", "plain", "{}", 0)
    assert row["error"] == "RuntimeError: no luck"
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps(kept_row("plain", 0, 0.5, 0.5)) + "\n")
    assert runs.drop_failed(path) == 1
    assert len(chosen.read(path)) == 1


def test_validation_chooses_the_setting_and_incomplete_searches_wait() -> None:
    rows = [
        kept_row("plain", 0, 0.6, 0.50, '{"lr": 1}', last_valid=0.1, last_test=0.45),
        kept_row("plain", 0, 0.7, 0.40, '{"lr": 2}', last_valid=0.2, last_test=0.35),
        kept_row("plain", 1, 0.9, 0.80, '{"lr": 1}', last_valid=0.1, last_test=0.1),
    ]
    found = chosen.cell(rows, "p", "plain", expected=2)
    assert found.test == {0: 0.40}
    assert found.last == {0: 0.35}
    assert found.cpu_seconds == 2.0
    assert found.examples == 200


def test_differences_are_paired_over_common_seeds() -> None:
    difference = chosen.paired({0: 0.5, 1: 0.7, 2: 0.9}, {0: 0.4, 1: 0.5, 2: 0.6, 3: 0.0})
    assert difference.seeds == 3
    assert difference.mean == pytest.approx(0.2)
    assert difference.error == pytest.approx(0.1 / math.sqrt(3))
    assert difference.verdict == "better"
    assert chosen.paired({0: 0.1, 1: 0.2, 2: 0.1}, {0: 0.2, 1: 0.3, 2: 0.3}).verdict == "worse"
    assert chosen.paired({0: 0.1}, {0: 0.0}).verdict == ""


def test_draw_writes_losses_as_plain_as_wins(tmp_path: Path) -> None:
    rows = [kept_row("plain", seed, 0.5, 0.5 + seed / 100) for seed in range(3)]
    rows += [kept_row("worse", seed, 0.5, 0.4 + seed / 90) for seed in range(3)]
    path = tmp_path / "runs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = draw(path, {"p": "AP"}, {"p": {"plain": 1, "worse": 1}})
    assert (tmp_path / "table.md").read_text() == text
    assert "| worse | 3 |" in text
    assert "worse minus tuned plain: 1 worse" in text
    assert "| p | AP | **0.5100** (3) | 0.4111 − (3) |" in text
    page = tmp_path / "page.md"
    page.write_text(f"above\n{MARKS[0]}\nold\n{MARKS[1]}\nbelow\n")
    into_page(page, text)
    into_page(page, text)
    assert page.read_text() == f"above\n{MARKS[0]}\n\n{text}\n{MARKS[1]}\nbelow\n"


def test_nobody_is_best_on_other_seeds(tmp_path: Path) -> None:
    rows = [kept_row("plain", seed, 0.5, 0.5) for seed in range(3)] + [kept_row("lucky", 0, 0.9, 0.9)]
    text = chosen.overview(rows, {"p": "AP"}, ["plain", "lucky"], {"p": {"plain": 1, "lucky": 1}})
    assert "| p | AP | 0.5000 (3) | 0.9000 (1) |" in text


def test_a_method_without_a_complete_search_has_no_column() -> None:
    rows = [kept_row("plain", seed, 0.5, 0.5) for seed in range(3)] + [kept_row("begun", 0, 0.9, 0.9)]
    text = chosen.overview(rows, {"p": "AP"}, ["plain", "begun"], {"p": {"plain": 1, "begun": 12}})
    assert text.splitlines()[0] == "| problem | metric | plain |"
    assert text.splitlines()[2] == "| p | AP | **0.5000** (3) |"


def test_names_are_matched_by_their_beginnings() -> None:
    assert matching(["a9a-ap", "hiv"], ["a9a"]) == ["a9a-ap"]
    assert matching(["a9a-ap", "hiv"], []) == ["a9a-ap", "hiv"]


def test_a_run_is_twenty_epochs_but_at_least_a_hundred_thousand_examples(split: Split) -> None:
    assert run_length(split) == 100_000
    assert run_length(split, at_least=10) == 20 * 240


def test_a_course_keeps_the_weights_that_validated_best(split: Split) -> None:
    model = network(split, 0)
    course = Course(split, model, length=40, checks=4)
    good = {name: value.clone() for name, value in model.state_dict().items()}
    course.advance(10)
    course.history[0] = 2.0  # nothing later is better
    for value in model.parameters():
        value.data.normal_()
    for _ in range(3):
        course.advance(10)
    row = course.row()
    assert course.ended
    assert row["at"] == 0.25
    for name, value in model.state_dict().items():
        assert torch.equal(value, good[name])


@pytest.mark.parametrize("method", ["queue", "roc-star", "SOX", "memory"])
def test_gradient_methods_learn_something(method: str, split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (rivals, ours):
        monkeypatch.setattr(module, "run_length", lambda split: 6000)
    made = runs.METHODS[method]
    setting = made.settings(PROBLEMS["a9a-rare-ap"])[-1]
    row = made.run(split, setting, 0)
    assert row["test"] > 2 * float(split.y_test.mean())
    assert row["examples"] >= 6000


def test_a_fit_tells_its_trials_and_how_its_plain_model_does(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    short = partial(fcco.fit, recipe=Recipe(epochs=2.0, least_examples=2000))
    monkeypatch.setattr(fcco, "fit", short)
    row = ours.run_fit(split, {}, 0)
    values = {name: value for name, (_, _, value) in row["trials"].items()}
    assert row["plain_valid"] == max(value for name, value in values.items() if name.startswith("plain"))
    assert 0.0 < row["plain_test"] <= 1.0
    assert json.loads(json.dumps(row)) == row


def test_every_search_has_at_most_twelve_settings() -> None:
    for problem in PROBLEMS.values():
        for method in runs.METHODS.values():
            assert len(method.settings(problem)) <= 12


def test_smooth_ap_with_a_queue_is_that_of_the_whole() -> None:
    scores = torch.randn(60, dtype=torch.float64)
    y = (torch.rand(60) < 0.3).double()
    y[:2] = torch.tensor([1.0, 0.0])
    queued = rivals.SmoothAPQueue(0.01, size=1000)
    queued(scores[:30], y[:30])
    in_two = queued(scores[30:], y[30:])
    above = torch.sigmoid((scores.unsqueeze(0) - scores.unsqueeze(1)) / 0.01).fill_diagonal_(0.0)
    precision = (1 + above[:, y == 1].sum(1)) / (1 + above.sum(1))
    expected = 1 - precision[30:][y[30:] == 1].mean()
    torch.testing.assert_close(in_two, expected)


def test_roc_star_takes_in_as_many_right_pairs_as_there_are_wrong_ones() -> None:
    scores = torch.rand(200)
    y = (torch.rand(200) < 0.4).float()
    loss = rivals.RocStar(delta=1.0)
    loss.begin_epoch(scores, y, torch.Generator().manual_seed(0))
    gaps = (scores[y == 1].unsqueeze(1) - scores[y == 0].unsqueeze(0)).flatten()
    wrong = int((gaps < 0).sum())
    within = int(((gaps >= 0) & (gaps < loss.margin)).sum())
    assert abs(within - min(wrong, int((gaps >= 0).sum()) - 1)) <= 1
    assert float(loss(scores, y)) > 0


def test_a_picture_shows_problems_with_enough_seeds(tmp_path: Path) -> None:
    rows = []
    for seed in range(5):
        rows.append(kept_row("plain", seed, 0.5, 0.5 + 0.01 * seed))
        rows.append(kept_row("fcco.fit", seed, 0.6, 0.52 + 0.01 * seed + 0.001 * (seed % 2)))
    rows.append(kept_row("LightGBM", 0, 0.6, 0.7))
    expected: chosen.Expected = {"p": {}, "q": {}}
    shown = {"p": "AP", "q": "AP"}
    found = figure.differences(rows, shown, "fcco.fit", expected)
    assert set(found) == {"p"}
    assert found["p"].mean == pytest.approx(0.0204)
    assert figure.differences(rows, shown, "LightGBM", expected) == {}  # one seed tells nothing
    figure.draw(tmp_path / "fit.png", rows, shown, expected)
    assert (tmp_path / "fit.png").stat().st_size > 5000

"""`fcco train` by the metric, and `fcco predict`: from a table, images or arrays to scores, and careless inputs."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import average_precision_score

from fcco.fitting import Progress
from fcco.lab import fitting
from fcco.lab.cli import main
from fcco.lab.config import FitConfig
from fcco.lab.errors import Interrupted
from fcco.lab.fitting import fit_in
from fcco.lab.loaded import inputs_of, load
from fcco.lab.training import still_falling

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore::fcco.tables.TableWarning")]

SHORT = ("--epochs", "1", "--batch-size", "64")


def patients(rows: int = 240, seed: int = 0) -> pd.DataFrame:
    """Numbers with holes, words, a constant, an id; two classes by name, times, queries and groups."""
    random = np.random.default_rng(seed)
    age = random.integers(20, 90, rows).astype(float)
    town = random.choice(["Bonn", "Kiel", "Ulm"], rows)
    risk = 0.08 * (age - 60) + 2.0 * (town == "Kiel")
    frame = pd.DataFrame({"id": [f"p{row}" for row in range(rows)], "age": age, "town": town, "same": 1})
    frame["died"] = np.where(risk + random.normal(size=rows) > 1.0, "yes", "no")
    frame["time"] = random.exponential(np.exp(-risk))
    frame["event"] = (random.random(rows) < 0.8).astype(int)
    frame["list"] = [f"q{row // 8}" for row in range(rows)]
    frame["relevance"] = np.clip(np.round(risk + 1), 0, 3).astype(int)
    frame["site"] = random.choice(["north", "south"], rows)
    frame.loc[::17, "age"] = np.nan
    return frame


FEATURES = ["id", "age", "town", "same"]


def written(frame: pd.DataFrame, path: Path, columns: Sequence[str]) -> str:
    frame[list(columns)].to_csv(path, index=False)
    return str(path)


def run(*argv: str) -> None:
    assert main(argv) == 0


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    capsys.readouterr()
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    return error


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a table of two classes."""
    folder = tmp_path_factory.mktemp("trained")
    table = written(patients(), folder / "patients.csv", [*FEATURES, "died"])
    run("train", "--dataset", table, "--target", "died", "--positive", "yes", "--drop", "id",
        *SHORT, "--out", str(folder / "run"))  # fmt: skip
    return folder / "run"


# ------------------------------------------------------------------ a run


def test_a_run_leaves_everything_behind(trained: Path) -> None:
    files = {file.name for file in trained.iterdir()}
    assert {"config.json", "environment.json", "metrics.json", "history.jsonl", "status.json", "model.safetensors",
            "fit.json", "inputs.json", "checkpoint.pt"} <= files  # fmt: skip
    measured = json.loads((trained / "metrics.json").read_text())
    low, high = measured["test"]["interval"]
    assert low <= measured["test"]["value"] <= high
    assert measured["test_plain_loss"]["value"] > 0.0
    assert measured["metric"] == "average_precision"
    assert measured["calibration"] == "platt"  # fewer than 200 positives
    environment = json.loads((trained / "environment.json").read_text())
    assert len(environment["data_sha256"]["patients.csv"]) == 64
    inputs = json.loads((trained / "inputs.json").read_text())
    assert inputs["encoder"]["columns"] == ["age", "town", "same"]
    history = [json.loads(line) for line in (trained / "history.jsonl").read_text().splitlines()]
    assert {"trial", "examples", "value", "loss"} <= history[0].keys()


def test_the_ap_of_two_classes_is_that_of_the_positives(trained: Path) -> None:
    table = trained.parent / "patients.csv"
    config = FitConfig(dataset=str(table), target=("died",), positive="yes", drop=("id",))
    test = load(config).test
    frame = pd.read_csv(table)
    frame.iloc[_rows_of_test(config)].drop(columns="died").to_csv(trained.parent / "test.csv", index=False)
    run("predict", str(trained), str(trained.parent / "test.csv"), "--out", str(trained.parent / "test_scores.csv"))
    scores = [float(row["score"]) for row in rows_of(trained.parent / "test_scores.csv")]
    labels = (frame["died"].iloc[_rows_of_test(config)] == "yes").to_numpy()
    assert test.num_examples == len(scores)
    measured = json.loads((trained / "metrics.json").read_text())
    assert measured["test"]["value"] == pytest.approx(average_precision_score(labels, scores), abs=1e-9)


def _rows_of_test(config: FitConfig) -> list[int]:
    """Where the test part's rows stand in the table: the split depends on labels alone."""
    frame = pd.read_csv(config.dataset)
    from fcco.data import Tasks

    y = torch.tensor((frame["died"] == "yes").to_numpy()).float().unsqueeze(1)
    test, _ = Tasks(torch.arange(len(frame)).unsqueeze(1), y).split(0.2, seed=0)
    rows: list[int] = inputs_of(test)[:, 0].tolist()
    return rows


def test_the_encoder_and_the_trials_never_see_the_test_part(tmp_path: Path) -> None:
    frame = patients()
    config = FitConfig(dataset=written(frame, tmp_path / "t.csv", ["age", "died"]), target=("died",), positive="yes")
    loaded = load(config)
    assert loaded.encoder is not None
    assert loaded.encoder.rows == loaded.train.num_examples
    assert loaded.train.num_examples + loaded.test.num_examples == len(frame)
    assert loaded.test.num_examples == pytest.approx(0.2 * len(frame), abs=2)


@pytest.mark.parametrize(("columns", "flags", "metric"), [
    (["relevance", "list"], ["--target", "relevance", "--query", "list"], "ndcg@10"),
    (["time", "event"], ["--time", "time", "--event", "event"], "concordance"),
    (["died", "site"], ["--target", "died", "--group", "site"], "worst_group"),
    (["died", "event"], ["--target", "event", "--metric", "roc_auc"], "roc_auc"),
    (["relevance"], ["--target", "relevance"], "average_precision"),
])  # fmt: skip
def test_every_metric_from_a_table_to_scores(
    columns: list[str], flags: list[str], metric: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = written(patients(), tmp_path / "t.csv", ["age", "town", *columns])
    run("train", "--dataset", table, *flags, *SHORT, "--epochs", "0.5", "--out", str(tmp_path / "run"))
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["metric"] == metric
    assert f"test {metric} " in capsys.readouterr().out
    run("predict", str(tmp_path / "run"), table, "--out", str(tmp_path / "scores.csv"))
    assert "ignored" not in capsys.readouterr().out or metric == "roc_auc"
    assert len(rows_of(tmp_path / "scores.csv")) == 240


def test_named_sets_and_arrays(tmp_path: Path) -> None:
    run("train", "--dataset", "digits", "--positive", "3", "--hidden", "8", "--epochs", "8", "--metric", "roc_auc",
        "--out", str(tmp_path / "run"))  # fmt: skip
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["test"]["value"] > 0.8
    images = np.zeros((3, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "new.npz", x=images)
    run("predict", str(tmp_path / "run"), str(tmp_path / "new.npz"), "--out", str(tmp_path / "scores.csv"))
    assert set(rows_of(tmp_path / "scores.csv")[0]) == {"score", "probability"}


def test_a_folder_of_two_classes_of_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    for name, level in (("cat", 60), ("dog", 160)):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(20):
            pixels = random.integers(level - 40, level + 40, (6, 6, 3)).astype(np.uint8)
            image.fromarray(pixels).save(tmp_path / "pets" / name / f"{number:02d}.png")
    run("train", "--dataset", str(tmp_path / "pets"), "--hidden", "8", "--epochs", "5", "--out", str(tmp_path / "run"))
    assert "positive is 'dog'" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["test"]["value"] == 1.0
    run("predict", str(tmp_path / "run"), str(tmp_path / "pets"), "--out", str(tmp_path / "scores.csv"))
    rows = rows_of(tmp_path / "scores.csv")
    assert rows[0]["file"] == "cat/00.png"
    assert max(float(row["score"]) for row in rows[:20]) < min(float(row["score"]) for row in rows[20:])


# ------------------------------------------------------------------ predicting


def test_predictions_go_by_column_names(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = patients(seed=1)
    written(frame, tmp_path / "new.csv", FEATURES)
    frame["more"] = 1
    written(frame, tmp_path / "mixed.csv", ["more", "town", "died", "same", "age"])
    run("predict", str(trained), str(tmp_path / "new.csv"), "--out", str(tmp_path / "new_scores.csv"))
    assert "ignored" not in capsys.readouterr().out
    run("predict", str(trained), str(tmp_path / "mixed.csv"), "--out", str(tmp_path / "mixed_scores.csv"))
    assert "no such column: more" in capsys.readouterr().out
    first = rows_of(tmp_path / "new_scores.csv")
    second = rows_of(tmp_path / "mixed_scores.csv")
    assert [row["score"] for row in first] == [row["score"] for row in second]
    assert [row["id"] for row in first] == frame["id"].tolist()  # a dropped column says which row is which
    assert "id" not in second[0]
    assert all(0.0 <= float(row["probability"]) <= 1.0 for row in first)


def test_what_cannot_be_predicted_is_said(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(patients(), tmp_path / "less.csv", ["age", "same"])
    assert "lacks column 'town'" in refusal(capsys, "predict", str(trained), str(tmp_path / "less.csv"))
    assert "gone.csv does not exist" in refusal(capsys, "predict", str(trained), "gone.csv")
    (tmp_path / "empty").mkdir()
    assert "no trained model" in refusal(capsys, "predict", str(tmp_path / "empty"), str(tmp_path / "less.csv"))
    frame = patients()
    frame["age"] = "old"
    written(frame, tmp_path / "words.csv", FEATURES)
    assert "'age'" in refusal(capsys, "predict", str(trained), str(tmp_path / "words.csv"))


# ------------------------------------------------------------------ stopping and going on


def test_stopped_and_resumed_it_ends_the_same(tmp_path: Path) -> None:
    table = written(patients(), tmp_path / "t.csv", ["age", "town", "event"])
    config = FitConfig(dataset=table, target=("event",), epochs=0.5, batch_size=64)
    whole = fit_in(config, tmp_path / "whole")

    def stop(progress: Progress) -> None:
        if progress.trial == "ranking-1":
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="resume with: fcco train --resume"):
        fit_in(config, tmp_path / "stopped", callbacks=(stop,))
    assert json.loads((tmp_path / "stopped" / "status.json").read_text())["status"] == "interrupted"
    again = fit_in(config, tmp_path / "stopped", resume=True)
    assert again.history == whole.history
    for name, value in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value)
    assert json.loads((tmp_path / "stopped" / "status.json").read_text())["status"] == "finished"


def test_going_on_with_other_data_or_settings_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = written(patients(), tmp_path / "t.csv", ["age", "event"])
    out = str(tmp_path / "run")
    run("train", "--dataset", table, "--target", "event", *SHORT, "--out", out)
    run("train", "--resume", out)
    assert "is finished already" in capsys.readouterr().out
    assert "--metric roc_auc differs" in refusal(capsys, "train", "--resume", out, "--metric", "roc_auc")
    assert "already holds a run" in refusal(capsys, "train", "--dataset", table, "--target", "event", "--out", out)
    (tmp_path / "run" / "status.json").unlink()
    assert "is not finished" in refusal(capsys, "predict", out, table)
    written(patients(seed=3), tmp_path / "t.csv", ["age", "event"])
    assert "the data have changed" in refusal(capsys, "train", "--resume", out)


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    table = written(patients(2000), tmp_path / "t.csv", ["age", "town", "event"])
    out = tmp_path / "run"
    argv = [sys.executable, "-m", "fcco", "train", "--dataset", table, "--target", "event", "--out", str(out)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while "plain" not in process.stdout.readline():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"fcco train --resume {out}" in error


# ------------------------------------------------------------------ careless inputs


def careless(tmp_path: Path, **columns: object) -> str:
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"a": random.normal(size=60), "b": random.choice(["x", "y"], 60)})
    frame["y"] = (frame["a"] > 0.5).astype(int)
    for name, values in columns.items():
        frame[name] = values
    frame.to_csv(tmp_path / "t.csv", index=False)
    return str(tmp_path / "t.csv")


@pytest.mark.parametrize("columns", [
    {"y": np.where(np.arange(60) % 3 == 0, 1, -1)},
    {"y": (np.arange(60) % 3 == 0).astype(np.float64)},
    {"y": np.arange(60) % 3 == 0},
    {"y": (np.arange(60) < 3).astype(int)},
    {"a": [np.nan if row % 7 == 0 else row / 10 for row in range(60)]},
    {"same": 4, "gone": np.nan},
    {"Unnamed: 0": np.arange(60)},
    {"big": np.arange(60) * 1e30},
], ids=["-1/1", "float64", "bool", "3 positives", "NaN in x", "constant", "an index", "large numbers"])  # fmt: skip
def test_careless_tables_work(columns: dict[str, object], tmp_path: Path) -> None:
    table = careless(tmp_path, **columns)
    run("train", "--dataset", table, "--target", "y", *SHORT, "--epochs", "2", "--out", str(tmp_path / "run"))
    run("predict", str(tmp_path / "run"), table, "--out", str(tmp_path / "scores.csv"))
    scores = [float(row["score"]) for row in rows_of(tmp_path / "scores.csv")]
    assert len(scores) == 60
    assert np.isfinite(scores).all()


@pytest.mark.parametrize(("text", "expected"), [
    ("a,y\n1,0\n2,1\n", "examples"),
    ("a,a,y\n1,2,0\n2,3,1\n", "two columns named 'a'"),
    ("a,y\n1,0\n2,0\n3,0\n", "only one class"),
    ("a,y\n1,cat\n2,sea lion\n3,cat\n4,sea lion\n", "'cat' and 'sea lion': name the positive class by"),
    ("a,y\n1,cat\n2,sea lion\n3,cat\n4,sea lion\n", "--positive 'sea lion'"),
    ("a,y\n1,\n2,\n3,\n", "no value in any row"),
    ("a,y\n1,0\n1,1\n1,0\n1,1\n1,0\n1,1\n", "no column of the table varies"),
    ("a,y\n1,0.5\n2,0.25\n3,1\n4,0\n", "must hold classes"),
    ("b,z\n1,0\n2,1\n", "'y' is not a column"),
    ("", "damaged"),
    ("a,y\n", "must have at least one row"),
    ("a,y\n1,0\n2,1\na,y\n3,0\n4,1\n", "t.csv has its header again in row 2"),
    ("a;y\n1;0\n2;1\n", "examples"),
    ("a,y\n1,0\n2,0\n3,0\n", "only one class, '0'"),
    ("a,y\n1,0\ninf,1\n3,0\n4,1\n1,0\n2,1\n3,0\n4,1\n1,0\n", "'a' has inf in row 1"),
    ("a,y\n1,11\n2,12\n3,13\n4,14\n", "it numbers or names the rows"),
])  # fmt: skip
def test_what_a_table_lacks_is_one_sentence(
    text: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(text)
    assert expected in refusal(capsys, "train", "--dataset", "t.csv", "--target", "y")


@pytest.mark.parametrize(("flags", "expected"), [
    ([], "t.csv, which has a, b, y"),
    (["--target", "y", "--event", "y"], "--event needs --time"),
    (["--time", "a"], "--time needs --event"),
    (["--target", "y", "--query", "b", "--group", "b"], "cannot both be given"),
    (["--target", "y", "--metric", "concordance"], "needs --time and --event"),
    (["--target", "y", "--query", "b", "--metric", "roc_auc"], "with --query it is ndcg"),
    (["--target", "y", "--metric", "pauc"], "got 'pauc': did you mean 'partial_auc'"),
    (["--target", "y", "--positive", "7"], "no class '7'"),
    (["--target", "y", "--drop", "nothing"], "'nothing' is not a column"),
    (["--target", "y", "--model", "linear"], "column 'b' holds words"),
    (["--target", "b", "--query", "b"], "must hold numbers, got"),
    (["--target", "y", "--drop", "y"], "drop must not name the target"),
])  # fmt: skip
def test_flags_that_do_not_fit_the_table(
    flags: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in refusal(capsys, "train", "--dataset", careless(tmp_path), *flags)


@pytest.mark.parametrize(("flags", "columns", "expected"), [
    (["--target", "y", "--query", "q"], {"q": [1.0, np.nan] * 30}, "--query 'q' has no value in row 1"),
    (["--target", "y", "--query", "q"], {"q": 1}, "no test data can be held out"),
    (["--target", "y", "--query", "q"], {"q": np.arange(60) // 6, "y": -1}, "a relevance >= 0, got -1 in row 0"),
    (["--target", "y", "--group", "g"], {"g": ["m", None, "f"] * 20}, "--group 'g' has no value in row 1"),
    (["--target", "y", "--group", "b"], {"y": [0.0, np.nan, 1.0] * 20}, "'y' has no value in row 1"),
    (["--target", "y", "--group", "b"], {"y": np.arange(60) / 7}, "'y' must hold classes"),
    (["--time", "a", "--event", "y"], {"y": 2}, "event must be 0 or 1, got 2"),
    (["--time", "a", "--event", "y"], {"y": 0}, "event must be 1 for at least one subject"),
])  # fmt: skip
def test_roles_without_values_are_refused(
    flags: list[str], columns: dict[str, object], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert expected in refusal(capsys, "train", "--dataset", careless(tmp_path, **columns), *flags)


def test_a_table_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing.csv does not exist" in refusal(capsys, "train", "--dataset", "nothing.csv", "--target", "y")


@pytest.mark.parametrize("gap", ["NA", "NaN", "?", "null"])
def test_numbers_with_gaps_are_numbers(gap: str, tmp_path: Path) -> None:
    values = [str(row / 10) for row in range(60)]
    values[5] = gap
    encoder = load(FitConfig(dataset=careless(tmp_path, a=values), target=("y",))).encoder
    assert encoder is not None
    assert [number.name for number in encoder.numbers] == ["a"]
    assert [level.name for level in encoder.categories] == ["b"]


@pytest.mark.parametrize("words", [("no", "yes"), ("Negative", "POSITIVE"), ("N", "Y")])
def test_words_for_yes_and_no_need_no_positive(words: tuple[str, str], tmp_path: Path) -> None:
    truth = np.arange(60) % 3 == 0
    data = load(FitConfig(dataset=careless(tmp_path, y=np.where(truth, words[1], words[0])), target=("y",)))
    assert (data.outputs, data.negative) == ((words[1],), words[0])
    assert f"positive is y = {words[1]}, 33.33%" in str(data)


def test_labels_and_events_of_yes_and_no(tmp_path: Path) -> None:
    truth = np.where(np.arange(60) % 3 == 0, "yes", "no").astype(object)
    gaps = np.where(np.arange(60) % 5 == 0, None, truth)
    table = careless(tmp_path, y=truth, z=gaps, t=np.arange(60) + 1.0)
    data = load(FitConfig(dataset=table, target=("y", "z"), drop=("t",)))
    known = ~data.y_train[:, 1].isnan()
    assert torch.equal(data.y_train[known, 0], data.y_train[known, 1])
    assert 0 < int(known.sum()) < len(known)
    survival = load(FitConfig(dataset=table, time="t", event="y", drop=("z",)))
    assert "seen for 33.3%" in str(survival)


@pytest.mark.parametrize("kinds", [["0", "1"], ["no", "yes"], ["cat", "dog", "cow"], ["1", "2", "3"]])
def test_rows_without_a_target_are_left_out_with_a_word(kinds: list[str], tmp_path: Path) -> None:
    y = [kinds[row % len(kinds)] for row in range(60)]
    for row in (2, 30, 31):
        y[row] = ""
    table = careless(tmp_path, y=y)
    with pytest.warns(UserWarning, match="'y' has no value in 3 of 60 rows, the first of them row 2: they are neither"):
        data = load(FitConfig(dataset=table, target=("y",)))
    assert data.train.num_examples + data.test.num_examples == 57
    assert bool((data.y_train >= 0).all())  # neither NaN nor -1


def test_what_is_refused_is_named_by_its_row_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = np.arange(60) / 10
    values[53] = np.inf
    table = careless(tmp_path, a=values)
    words = refusal(capsys, "train", "--dataset", table, "--target", "y", "--out", str(tmp_path / "run"))
    assert "'a' has inf in row 53" in words


def test_an_index_of_pandas_is_no_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = careless(tmp_path)
    indexed = str(tmp_path / "indexed.csv")
    pd.read_csv(table).sample(frac=1.0, random_state=0).to_csv(indexed)
    with pytest.warns(UserWarning, match="'Unnamed: 0' has no name of its own and numbers the rows"):  # once per file
        data = load(FitConfig(dataset=indexed, target=("y",)))
    assert data.encoder is not None
    assert data.encoder.columns == ("a", "b")
    run("train", "--dataset", indexed, "--target", "y", *SHORT, "--out", str(tmp_path / "run"))
    assert "of 12 examples, 4 of them positive" in capsys.readouterr().out
    for new in (indexed, table):
        run("predict", str(tmp_path / "run"), new, "--out", str(tmp_path / "scores.csv"))
        out = capsys.readouterr().out
        assert "with probabilities of y = 1" in out
        assert "ignored" not in out


def test_a_file_in_the_place_of_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert "my.csv is no option: did you mean --dataset my.csv?" in refusal(capsys, "train", "my.csv")


def test_a_word_among_numbers_is_told(tmp_path: Path) -> None:
    values = [str(row / 10) for row in range(60)]
    values[5] = "many"
    table = careless(tmp_path, a=values)
    with pytest.warns(UserWarning, match="column 'a' has numbers, but also 'many' in row 5"):
        load(FitConfig(dataset=table, target=("y",)))


def test_words_that_look_like_numbers_stay_words(tmp_path: Path) -> None:
    """A row's score must not depend on which other rows stand in the file."""
    codes = np.array(["007", "12", "1.50", "A1"] * 60)
    frame = pd.DataFrame({"code": codes, "b": np.arange(240) % 7, "id": [f"{row:04}" for row in range(240)]})
    frame["y"] = ((codes == "007") | (codes == "1.50")).astype(int)
    table = written(frame, tmp_path / "t.csv", frame.columns)
    run("train", "--dataset", table, "--target", "y", "--drop", "id", *SHORT, "--out", str(tmp_path / "run"))
    digits = written(frame[codes != "A1"], tmp_path / "new.csv", frame.columns)
    for name, data in (("all", table), ("few", digits)):
        run("predict", str(tmp_path / "run"), data, "--out", str(tmp_path / f"{name}.csv"))
    scores = {row["id"]: row["score"] for row in rows_of(tmp_path / "all.csv")}
    found = rows_of(tmp_path / "few.csv")
    assert [row["id"] for row in found] == frame["id"][codes != "A1"].tolist()
    assert all(scores[row["id"]] == row["score"] for row in found)


def test_predicting_never_writes_over_the_data(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = written(patients(), tmp_path / "new.csv", FEATURES)
    before = Path(table).read_bytes()
    assert "--out must not be the data file" in refusal(capsys, "predict", str(trained), table, "--out", table)
    assert "is a folder" in refusal(capsys, "predict", str(trained), table, "--out", str(tmp_path))
    assert Path(table).read_bytes() == before


def test_the_word_among_new_numbers_is_named(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = patients()
    new["age"] = new["age"].astype(object)
    new.loc[3, "age"] = "old"
    table = written(new, tmp_path / "new.csv", FEATURES)
    assert "got a string, 'old', in row 3" in refusal(capsys, "predict", str(trained), table)


@pytest.mark.parametrize(
    ("column", "flags"),
    [
        ("died", ("--target", "died", "--group", "site")),
        ("site", ("--target", "died", "--group", "site")),
        ("list", ("--target", "relevance", "--query", "list")),
    ],
)
def test_a_row_without_class_group_or_query_is_named(
    column: str, flags: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = patients()
    frame.loc[[7, 90, 91, 200], column] = None
    table = written(frame, tmp_path / "gaps.csv", ["age", "town", *dict.fromkeys([flags[1], flags[3]])])
    words = refusal(capsys, "train", "--dataset", table, *flags, *SHORT, "--out", str(tmp_path / "run"))
    assert f"{column!r} has no value in row 7" in words


def test_a_refused_fit_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = careless(tmp_path, y=(np.arange(60) < 2).astype(int))
    out = tmp_path / "run"
    assert "must have positives and negatives" in refusal(
        capsys, "train", "--dataset", table, "--target", "y", "--out", str(out)
    )
    assert not out.exists()


# ------------------------------------------------------------------ small parts


def test_calibration_is_by_what_there_is(tmp_path: Path) -> None:
    table = written(patients(), tmp_path / "t.csv", ["age", "event"])
    config = FitConfig(dataset=table, target=("event",), epochs=0.3, batch_size=64, calibrate="isotonic")
    result = fit_in(config, tmp_path / "run")
    assert result.calibration is not None
    assert result.calibration.labels[0] is not None
    assert result.calibration.labels[0].method == "isotonic"
    assert fitting._fewest_positives(result.validation) < fitting.ENOUGH_POSITIVES


def test_a_run_that_still_falls_is_noticed() -> None:
    steep = [{"step": step, "objective": 1.0 - 0.1 * step} for step in range(11)]
    flat = [{"step": step, "objective": 0.5**step} for step in range(21)]
    assert still_falling(steep) == pytest.approx(0.2)
    assert still_falling(flat) < 0.01
    assert still_falling([{"step": 0, "objective": 1.0}, {"step": 5, "objective": 2.0}]) == 0.0

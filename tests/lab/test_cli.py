"""The command line: what it prints, and one clear line with the right exit code where something is wrong."""

from __future__ import annotations

import errno
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fcco
from fcco.lab import app, reporting, runs, texts
from fcco.lab.cli import main
from fcco.lab.config import RATES, RECIPE_NAMES, TrainConfig, recipe_arguments
from fcco.lab.train_command import TrainCommand
from fcco.lab.values import as_values, from_toml

QUICK = ["--method", "msvr-v2", "--hidden", "8", "--samples", "8", "--steps", "3", "--no-tensorboard", "--threads", "1"]
TRAIN = ["train", *QUICK]


def line(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 2) -> str:
    """The one line on standard error of a command that fails."""
    assert main(argv) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert "Traceback" not in error
    return error


@pytest.mark.parametrize(("argv", "expected"), [
    (["trian"], "did you mean 'train'?"),
    (["train", "--methd", "sox"], "did you mean --method?"),
    (["train", "--method", "msvr-v2", "--lr", "fast"], "--lr"),
    (["train", "--dataset", "mnits"], "did you mean 'mnist'?"),
    (["train", "--method", "msrv-v2"], "did you mean 'msvr-v2'?"),
    (["train", "--model", "resnet81"], "did you mean 'resnet18'?"),
    (["train", "--method", "msvr-v2", "--optimizer", "sdg"], "did you mean 'sgd'?"),
    (["train", "--method", "msvr-v2", "--schedule", "cosin"], "did you mean 'cosine'?"),
    (["train", "--precision", "fp16"], "fp16"),
    (["train", "--method", "msvr-v2", "--lr", "-1"], "--lr must be >= 0, got -1"),
    (["train", "--method", "msvr-v2", "--lr", "nan"], "--lr must be >= 0, got nan"),
    (["train", "--method", "msvr-v2", "--alpha", "1.5"], "alpha must be in (0, 1], got 1.5"),
    (["train", "--method", "msvr-v2", "--beta", "0"], "beta must be in (0, 1], got 0"),
    (["train", "--seed", str(2**70)], f"--seed must be below 2^63, got {2**70}"),
    (["train", "--threads", str(2**70)], f"--threads must be below 2^63, got {2**70}"),
    (["train", "--method", "msvr-v2", "--hidden", "4", str(2**70)], f"--hidden must be below 2^63, got {2**70}"),
    (["train", "--method", "soap", "--alpha", "0.5"], "soap has no alpha"),
    (["train", "--method", "msvr-v3", "--lag", "0"], "lag must be 1"),
    (["train", "--method", "msvr-v2", "--blocks", "11"], "blocks must be at most 10"),
    (["train", "--method", "msvr-v2", "--samples", "1"], "samples must be at least 2"),
    (["train", "--method", "msvr-v2", "--samples", "0"], "--samples must be >= 1"),
    (["train", "--method", "msvr-v2", "--total-samples", "0"], "--total-samples must be >= 1"),
    (["train", "--samples-per-block", "8"], "--samples-per-block"),
    (["train", "--method", "soap", "--nesterov"], "soap has no Nesterov momentum"),
    (["train", "--method", "msvr-v2", "--eval-examples", "5"], "--eval-examples 5 are too few"),
    (["train", "--epochs", "0"], "--epochs must be > 0"),
    (["train", "--lr", "0.1"], "--lr applies only to one method"),
    (["train", "--method", "sox", "--metric", "roc_auc"], "--metric applies only to training by a metric"),
    (["train", "--metric", "rocauc"], "did you mean 'roc_auc'?"),
    (["train", "--metric", "ndcg"], "--metric ndcg needs --query"),
    (["train", "--validation", "1"], "--validation must be in (0, 1)"),
    (["train", "--target", "y"], "--target applies only to a table"),
    (["train", "--objective", "PartialAUK"], "did you mean 'PartialAUC'?"),
    (["train", "--objective", "Cox"], "--objective Cox needs --time --event"),
    (["train", "--objective", "MultiInstance"], "use it from Python"),
    (["train", "--method", "sox", "--strength", "2"], "--strength is for --objective GroupDRO"),
    (["train", "--method", "sox", "--amsgrad"], "--amsgrad applies only to adam and adaptive"),
    (["train", "--method", "sox", "--stages", "nowhere.toml"], "nowhere.toml"),
    (["predict", "nowhere", "new.csv"], "no run in nowhere"),
    (["predict"], "missing: RUN, DATA; see `fcco predict --help`"),
    (["predict", "run"], "missing: DATA; see"),
    (["train", "--method", "msvr-v2", "--steps", "0"], "--steps must be >= 1"),
    (["train", "--device", "quantum"], "--device must be auto, cpu, cuda, cuda:1 or the like, got quantum"),
    (["train", "--device", "gpu"], "--device must be auto, cpu, cuda, cuda:1 or the like, got gpu"),
    (["train", "--device", "meta"], "--device meta cannot be used"),
    (["train", "--device", "hpu"], "--device hpu cannot be used here: No module named"),
    (["train", "--threads", "1000000000"], "--threads must be at most 1024"),
    (["train", "--method", "sox", "--epochs", "1e300"], "--epochs must give fewer than 2^63 steps, got 1e+300"),
    (["train", "--image-size", "9000000000000000000"], "--image-size must be at most 65536"),
    (["train", "--method", "sox", "--hidden", "1000000000000000"], "does not fit into memory"),
    (["train", "--hidden", "1000000000000000000", "--model", "mlp"], "does not fit into memory"),
    (["train", "--model", "resnet18", "--stem", "large"], "large"),
    (["train", "--method", "msvr-v2", "--optimizer", "adaptive", "--weight-decay", "-1"], "--weight-decay"),
    (["train", "--config", "nowhere.toml"], "nowhere.toml"),
    (["train", "--resume", "nowhere"], "no run to resume in nowhere"),
    (["demo", "--seeds", "0"], "--seeds must be at least 1, got 0"),
    (["methods", "msvr-v9"], "did you mean 'msvr-v"),
    (["data", "cifar1000"], "did you mean 'cifar100'?"),
    (["report", "nowhere"], "nowhere"),
    (["report"], "RUN"),
])  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(
    argv: list[str], expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in line(capsys, *argv)
    assert not list(tmp_path.rglob("*.json"))  # nothing was begun


@pytest.mark.parametrize(("text", "expected"), [
    ("methd = 'sox'", "methd is an unknown setting (did you mean --method?)"),
    ("lr = 0.1", "lr applies only to one method"),
    ("method = 'sox'\nlr = 'fast'", "lr must be a number, got 'fast'"),
    (f"method = 'sox'\nlr = {'9' * 400}", "lr must be a number, got 999"),
    ("method = 'sox'\nsteps = 1.5", "steps must be a whole number, got 1.5"),
    ("method = 'sox'\ncompile = 1", "compile must be true or false, got 1"),
    ("hidden = [8, 'wide']", "hidden must be a list of a whole number"),
    ("method = 'sox'\nprecision = 'fp16'", "precision must be 'fp32' or 'bf16' or 'fp64', got 'fp16'"),
    ("lr = ", "is not valid TOML"),
])  # fmt: skip
def test_a_wrong_file_is_said_in_one_line(
    text: str, expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    error = line(capsys, "train", "--config", str(file))
    assert expected in error
    assert "run.toml" in error


def test_flags_override_the_file_and_the_file_the_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "run.toml", tmp_path / "run"
    file.write_text("method = 'sox'\nlr = 1\nsamples = 8\nhidden = [8]\nsteps = 9\ntensorboard = false")
    assert main(["train", "--config", str(file), "--steps", "2", "--alpha", "0.25", "--out", str(out)]) == 0
    written = json.loads((out / "config.json").read_text())
    assert (written["method"], written["lr"], written["steps"], written["alpha"]) == ("sox", 1.0, 2, 0.25)
    assert (written["hidden"], written["samples"], written["beta"]) == ([8], 8, 0.5)
    shown = capsys.readouterr().out
    assert "digits: 1442 train" in shown
    assert "AUROC" in shown


def test_every_setting_survives_the_file(tmp_path: Path) -> None:
    config = TrainConfig(dataset="x.csv", target=("a", "b"), gamma=0.5, steps=7, compile=True)
    lines = []
    for name, value in as_values(config).items():
        if value is not None:
            text = json.dumps(list(value) if isinstance(value, tuple) else value)
            lines.append(f"{name} = {text}")
    file = tmp_path / "all.toml"
    file.write_text("\n".join(lines))
    assert from_toml(TrainConfig, file) == config
    assert from_toml(TrainCommand, file).target == ("a", "b")


def test_a_run_goes_on_with_its_own_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main([*TRAIN, "--out", str(out)]) == 0
    capsys.readouterr()
    assert "--lr 0.5 differs" in line(capsys, "train", "--resume", str(out), "--lr", "0.5")
    assert "--out cannot" in line(capsys, "train", "--resume", str(out), "--out", str(tmp_path / "other"))
    assert "--config cannot" in line(capsys, "train", "--resume", str(out), "--config", "x.toml")
    assert "already holds a run" in line(capsys, *TRAIN, "--out", str(out))
    assert main(["train", "--resume", str(out), "--checkpoint-seconds", "5"]) == 0


def test_a_corrupt_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    (tmp_path / "run" / "checkpoint.pt").write_bytes(b"no checkpoint")
    assert "checkpoint.pt is damaged" in line(capsys, "train", "--resume", str(tmp_path / "run"))
    (tmp_path / "run" / "config.json").write_text("{")
    assert "config.json is damaged" in line(capsys, "train", "--resume", str(tmp_path / "run"))


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    assert "file" in line(capsys, *TRAIN, "--out", str(tmp_path / "file" / "run"))

    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path / "run"))

    monkeypatch.setattr(Path, "mkdir", forbidden)
    assert "no permission" in line(capsys, *TRAIN, "--out", str(tmp_path / "run"))


def test_a_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(runs.os, "fsync", full)
    assert "the disk is full" in line(capsys, *TRAIN, "--out", str(tmp_path / "run"))


def test_a_diverged_run_has_a_code_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "smaller --lr" in line(capsys, *TRAIN, "--lr", "1e25", "--out", str(tmp_path / "run"), code=3)


def test_the_lists(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FCCO_DATA", str(tmp_path))
    assert main(["methods"]) == 0
    shown = capsys.readouterr().out
    assert "msvr-v3" in shown
    assert "If you are not sure which to use, take output-memory for rankings" in " ".join(shown.split())
    assert main(["objectives"]) == 0
    assert "MultiTaskAUC" in capsys.readouterr().out
    assert main(["data"]) == 0
    assert "fashion-mnist" in capsys.readouterr().out
    assert main(["data", "digits"]) == 0
    assert "embedded" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(texts.METHODS))
def test_a_method_is_told_in_plain_words(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", name]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert texts.METHODS[name].what in shown
    for argument, parameter in inspect.signature(fcco.METHODS[name]).parameters.items():
        assert f"{argument}={parameter.default}" in shown
        assert f" {argument}: " in shown  # what it means
    for markup in (":class:", ":func:", "``", "::", "'Schedule", "(L"):
        assert markup not in shown


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    shown = capsys.readouterr().out
    for name in (*app.COMMANDS, *app.HANDED_ON):
        assert f"\n  {name} " in shown
    assert set(texts.COMMANDS) == {*app.COMMANDS, *app.HANDED_ON}


def test_the_help_of_a_command_and_completion_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, expected in ((["train", "--help"], "--metric"), (["train", "--method", "sox", "--help"], "--samples"),
                            (["predict", "--help"], "--out"),
                            (["--tyro-print-completion", "bash"], "complete")):  # fmt: skip
        with pytest.raises(SystemExit) as stopped:
            main(argv)
        assert not stopped.value.code
        assert expected in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["--help"], ["methods"], ["objectives"], ["train", "--help"], ["--version"]])
def test_help_and_lists_load_nothing_heavy(argv: list[str]) -> None:
    script = (
        "import sys; from fcco.lab.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'pandas', 'sklearn', 'optuna', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", script, *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_texts_are_of_the_methods_and_objectives_that_there_are() -> None:
    assert set(texts.METHODS) == set(fcco.METHODS)
    for name, text in texts.METHODS.items():
        taken = [rate for rate in (*RATES, "nesterov") if RECIPE_NAMES.get(rate, rate) in recipe_arguments(name)]
        assert set(text.rates) == set(taken) - {"lag"}, name
    ready = {}
    for name in fcco.objectives.__all__:
        kind = getattr(fcco.objectives, name)
        if inspect.isclass(kind) and issubclass(kind, fcco.objectives.OutputObjective):
            parameters = inspect.signature(kind).parameters
            if "data" in parameters:
                ready[name] = parameters["data"].annotation
    assert {name: text.data for name, text in texts.OBJECTIVES.items()} == ready


def test_a_missing_extra_is_one_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("fcco.lab.app", "fcco.lab.commands"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert "pip install 'fcco[lab]'" in line(capsys, "demo")


def test_report_is_written_where_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def page(
        runs: tuple[Path, ...], out: Path, *, title: str, note: str
    ) -> Path:  # test_report_page.py writes a real one
        asked.append((runs, out, title, note))
        return out

    monkeypatch.setattr(reporting, "write", page)
    assert main(["report", "a", "b", "--title", "two"]) == 0
    assert main(["report", "a", "--out", str(tmp_path / "page.html"), "--note", "n"]) == 0
    assert main(["report", "a"]) == 0
    assert asked[0] == ((Path("a"), Path("b")), Path("."), "two", "")  # of two folders: in neither of them
    assert asked[1][1:] == (tmp_path / "page.html", "fcco report", "n")
    assert asked[2][1] == Path("a")
    assert "page.html" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"fcco {fcco.__version__}, torch ")


@pytest.mark.slow
def test_rates_ends_when_it_is_told_to_twice(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "fcco", "rates", "--quick", "--out", str(tmp_path / "rates")]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, start_new_session=True)
    time.sleep(15)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.3)
    _, error = process.communicate(timeout=20)
    assert process.returncode in (130, -signal.SIGINT)  # the second may come when the first was obeyed already
    assert "fcco: stopped\n" in error


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_stopped_it_says_how_to_go_on(tmp_path: Path, number: int, code: int) -> None:
    out = tmp_path / "run"
    argv = [sys.executable, "-m", "fcco", *TRAIN, "--steps", "100000", "--out", str(out)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not (out / "metrics.jsonl").exists() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == code
    assert error.count("\n") == 1
    assert f"fcco train --resume {out}" in error
    assert json.loads((out / "status.json").read_text())["status"] == "interrupted"

"""The training loop: deterministic, resumed bit for bit however it was stopped, nothing lost on failure."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fcco
from fcco.lab import train as loop
from fcco.lab.config import TrainConfig
from fcco.lab.errors import Diverged, Interrupted, LabError
from fcco.lab.evaluate import ranking
from fcco.lab.lengths import steps_within
from fcco.lab.parts import build
from fcco.lab.runs import RunFolder, read_rows
from fcco.lab.train import train
from fcco.lab.weights import load_model
from fcco.objectives import MultiTaskAUC

SMALL = TrainConfig(
    hidden=(16,), samples=16, steps=30, eval_every=7, tensorboard=False, threads=1, method="msvr-v2"
)  # fmt: skip


def figures(path: Path) -> list[dict[str, Any]]:
    """The evaluations without what depends on the clock."""
    return [
        {name: value for name, value in row.items() if name != "seconds"} for row in read_rows(path / "metrics.jsonl")
    ]


def weights(path: Path) -> list[bytes]:
    """Every trained number, as bytes."""
    return [tensor.numpy().tobytes() for tensor in load_model(path).state_dict().values()]


@pytest.mark.parametrize("trained_centers", [True, False])
def test_the_square_loss_of_the_command_line_is_the_pairwise_one(trained_centers: bool) -> None:
    parts = build(replace(SMALL, loss="square", margin=0.7, trained_centers=trained_centers))
    objective = parts.solver.objective
    assert isinstance(objective, MultiTaskAUC)
    x, y = parts.data.x_train, parts.data.y_train
    with torch.no_grad():
        h = objective.model(x).double()
        losses = []
        for t in range(objective.num_tasks):
            high, low = h[y == t, t], h[y != t, t]
            losses.append((0.7 + low.unsqueeze(0) - high.unsqueeze(1)).square().mean())
            if objective.a is not None and objective.b is not None:
                objective.a[t], objective.b[t] = high.mean(), low.mean()
    expected = float(torch.stack(losses).mean())
    assert parts.solver.diagnose().value == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("method", ["sox", "msvr-v3", "bspiderboost", "soap", "scent", "output-memory"])
def test_a_run_leaves_its_folder(tmp_path: Path, method: str) -> None:
    config = replace(SMALL, method=method, steps=12, period=5 if method in ("msvr-v3", "bspiderboost") else None)
    if method == "scent":
        with pytest.raises(LabError, match="log"):
            train(config, tmp_path / "run")
        return
    outcome = train(config, tmp_path / "run")
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert written["method"] == method
    assert written["lr"] is not None
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "finished"
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert {"python", "torch", "platform", "fcco", "commit", "threads", "device", "data"} <= environment.keys()
    assert outcome.rows[0]["step"] == 0
    assert outcome.rows[-1]["step"] == 12
    assert outcome.rows[-1]["objective"] < outcome.rows[0]["objective"]
    assert 0.4 < outcome.rows[-1]["auroc"] <= 1.0


def test_samples_are_counted_as_the_paper_counts(tmp_path: Path) -> None:
    config = replace(SMALL, method="msvr-v3", period=5, steps=12)
    last = train(config, tmp_path / "run").rows[-1]
    parts = build(config)
    m, n, drawn = 10, len(parts.data.x_train), 12 * 5 * 16
    assert last["samples"] == drawn + 3 * m * n  # full passes at t = 1, 6, 11
    assert last["oracle_g"] == last["oracle_j"] == 3 * drawn + 3 * m * n
    assert last["evaluations"] == 3 * drawn + 3 * n  # the tasks share their images


def test_without_a_period_v3_takes_a_pass_per_epoch(tmp_path: Path) -> None:
    rows = train(replace(SMALL, method="msvr-v3", steps=45), tmp_path / "run").rows
    n = 1442
    epoch = -(-n // (5 * 16))  # steps that draw as many samples as a pass evaluates
    assert rows[-1]["samples"] == 45 * 5 * 16 + 3 * 10 * n  # at t = 1, 20, 39
    assert {1, 1 + epoch, 1 + 2 * epoch} <= {row["step"] for row in rows}  # evaluated after every pass


@pytest.mark.parametrize("method", ["sox", "msvr-v3", "bspiderboost"])
def test_a_run_draws_at_most_the_samples_it_was_given(tmp_path: Path, method: str) -> None:
    budget = 32_000
    config = replace(SMALL, method=method, steps=None, total_samples=budget, eval_every=1000)
    last = train(config, tmp_path / "run").rows[-1]
    assert last["samples"] <= budget
    longer = train(replace(config, total_samples=None, steps=last["step"] + 1), tmp_path / "longer").rows[-1]
    assert longer["samples"] > budget


@pytest.mark.parametrize("method", sorted(fcco.METHODS))
def test_another_method_is_another_name(tmp_path: Path, method: str) -> None:
    config = replace(SMALL, method=method, steps=6, radius=100.0)  # single-point methods want a bounded step
    if method == "scent":
        with pytest.raises(LabError, match="log"):
            train(config, tmp_path / "run")
        return
    rows = train(config, tmp_path / "run").rows
    assert rows[-1]["objective"] < rows[0]["objective"]


def test_f_is_evaluated_on_some_examples_where_asked(tmp_path: Path) -> None:
    config = replace(SMALL, eval_examples=300, steps=3)
    parts = build(config)
    assert parts.exact_pass is not None
    assert sum(len(batch) for batch in parts.exact_pass()) == 300
    some = train(config, tmp_path / "some").rows
    whole = train(replace(config, eval_examples=0), tmp_path / "whole").rows
    assert some[-1]["objective"] == pytest.approx(whole[-1]["objective"], rel=0.1)
    assert some[-1]["objective"] != whole[-1]["objective"]
    assert weights(tmp_path / "some") == weights(tmp_path / "whole")


def test_steps_within_a_budget_of_samples() -> None:
    for period, extra in ((None, 0), (1, 3), (4, 20), (7, 1)):
        for budget in range(200):
            t = steps_within(budget, 3, period, extra)
            spent = [t_ * 3 + (0 if period is None else -(-t_ // period) * extra) for t_ in (t, t + 1)]
            assert t == 0 or spent[0] <= budget
            assert spent[1] > budget


def test_the_same_seed_gives_the_same_bits_and_another_gives_others(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(replace(SMALL, steps=8, seed=seed), tmp_path / name)
    assert figures(tmp_path / "a") == figures(tmp_path / "b")
    assert weights(tmp_path / "a") == weights(tmp_path / "b") != weights(tmp_path / "c")


class StopAt:
    """Sends a signal to this process after some step."""

    def __init__(self, step: int, number: int) -> None:
        self.step, self.number = step, number

    def began(self, parts: Any, rows: Any) -> None:
        pass

    def stepped(self, step: int) -> None:
        if step == self.step:
            os.kill(os.getpid(), self.number)

    def evaluated(self, row: Any) -> None:
        pass


@pytest.mark.parametrize("config", [
    replace(SMALL, method="msvr-v3", period=9, optimizer="adam", lr=0.01, schedule="cosine"),
    replace(SMALL, method="bspiderboost", period=6, optimizer="adaptive", lr=0.01),
    replace(SMALL, method="msvr-v1", trained_centers=False, loss="square", schedule="step"),
    replace(SMALL, method="output-memory", importance=0.3, optimizer="adam", lr=0.01),
])  # fmt: skip
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_by_a_signal_and_resumed_it_ends_bit_for_bit_the_same(
    tmp_path: Path, config: TrainConfig, number: int
) -> None:
    train(config, tmp_path / "whole")
    path = tmp_path / "stopped"
    with pytest.raises(Interrupted, match=f"--resume {path}") as stopped:
        train(config, path, watch=StopAt(11, number))
    assert stopped.value.signal == number
    assert json.loads((path / "status.json").read_text())["status"] == "interrupted"
    train(RunFolder(path).read_config(), path, resume=True)
    assert weights(path) == weights(tmp_path / "whole")
    assert figures(path) == figures(tmp_path / "whole")


KILLED = replace(SMALL, steps=120, eval_every=25, checkpoint_seconds=0.02)


def nursery(path: Path, kills: int) -> int:
    """Train in forked processes, each killed at a random moment, then once to the end; how many were killed."""
    draw, killed = random.Random(kills), 0
    for attempt in range(kills + 1):
        child = os.fork()
        if child == 0:
            resume = (path / "config.json").exists()
            train(RunFolder(path).read_config() if resume else KILLED, path, resume=resume)
            os._exit(0)
        if attempt < kills:
            time.sleep(draw.uniform(0.05, 1.0))
            os.kill(child, signal.SIGKILL)
        killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
    return killed


@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_killed_at_any_moment_and_resumed_it_ends_bit_for_bit_the_same(tmp_path: Path, kills: int) -> None:
    path = tmp_path / "killed"
    worker = subprocess.run([sys.executable, __file__, path, str(kills)], check=True, stdout=subprocess.PIPE, text=True)
    assert int(worker.stdout) >= 1
    train(KILLED, tmp_path / "whole")
    assert weights(path) == weights(tmp_path / "whole")
    assert figures(path) == figures(tmp_path / "whole")


def test_a_used_folder_is_refused(tmp_path: Path) -> None:
    train(replace(SMALL, steps=2), tmp_path)
    before = weights(tmp_path)
    with pytest.raises(LabError, match="already holds a run"):
        train(replace(SMALL, steps=3), tmp_path)
    assert weights(tmp_path) == before


def test_two_processes_cannot_train_in_one_folder(tmp_path: Path) -> None:
    first = RunFolder(tmp_path)
    first.lock()
    with pytest.raises(LabError, match="another process"):
        RunFolder(tmp_path).lock()
    first.release()
    second = RunFolder(tmp_path)
    second.lock()
    second.release()


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(SMALL, checkpoint_seconds=1e-9)
    calls = []

    def full(path: Path, **parts: Any) -> None:
        calls.append(parts)
        if len(calls) == 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(path, **parts)

    save = fcco.save
    monkeypatch.setattr(fcco, "save", full)
    with pytest.raises(LabError, match="disk is full") as failed:
        train(config, tmp_path / "full")
    assert "\n" not in str(failed.value)
    train(RunFolder(tmp_path / "full").read_config(), tmp_path / "full", resume=True)
    train(SMALL, tmp_path / "whole")
    assert weights(tmp_path / "full") == weights(tmp_path / "whole")
    assert figures(tmp_path / "full") == figures(tmp_path / "whole")


def test_a_run_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    """A table replaced by another of the same shape, under the same name."""
    table = tmp_path / "mine.csv"

    def write(shift: float) -> None:
        rows = [f"{number % 7 + shift},{number % 5},{'abc'[number % 3]}" for number in range(60)]
        table.write_text("\n".join(["p,q,y", *rows]) + "\n")

    write(0.0)
    config = replace(SMALL, dataset=str(table), target=("y",), steps=2, samples=4)
    run = tmp_path / "run"
    train(config, run)
    before = weights(run)
    write(0.5)
    with pytest.raises(LabError, match=r"the data have changed since the run in .* \(.*mine.csv"):
        train(RunFolder(run).read_config(), run, resume=True)
    write(0.0)
    train(RunFolder(run).read_config(), run, resume=True)
    assert weights(run) == before


@pytest.mark.parametrize("kept", [0, 1, -1])
def test_a_run_does_not_go_on_where_evaluations_are_lost(kept: int, tmp_path: Path) -> None:
    """A metrics.jsonl that was cut or emptied after the checkpoint: its curve would have a hole, or no end."""
    train(SMALL, tmp_path)
    metrics = RunFolder(tmp_path).metrics
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:kept]))
    with pytest.raises(LabError, match=r"metrics.jsonl lacks the evaluations of steps .* put the file back"):
        train(SMALL, tmp_path, resume=True)
    for damaged in (b"[1]\n", b"{}\n", b"3\n", b'{"step": "x"}\n', b"\xff\n"):
        metrics.write_bytes(damaged)
        with pytest.raises(LabError, match=r"metrics.jsonl lacks the evaluations of steps 0"):
            train(SMALL, tmp_path, resume=True)
    metrics.write_text("".join(lines))
    train(SMALL, tmp_path, resume=True)
    assert metrics.read_text() == "".join(lines)


def test_a_corrupt_checkpoint_is_refused_and_left_alone(tmp_path: Path) -> None:
    train(replace(SMALL, steps=2), tmp_path)
    checkpoint = tmp_path / "checkpoint.pt"
    damaged = checkpoint.read_bytes()[:-500]
    checkpoint.write_bytes(damaged)
    rows = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(fcco.CheckpointError, match="damaged"):
        train(RunFolder(tmp_path).read_config(), tmp_path, resume=True)
    assert checkpoint.read_bytes() == damaged
    assert (tmp_path / "metrics.jsonl").read_bytes() == rows


def test_a_diverged_run_is_recorded_as_such(tmp_path: Path) -> None:
    with pytest.raises(Diverged, match="smaller --lr"):
        train(replace(SMALL, lr=1e20), tmp_path)
    assert json.loads((tmp_path / "status.json").read_text())["status"] == "diverged"


def test_an_unexpected_failure_is_recorded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no luck")

    monkeypatch.setattr(loop, "judge", broken)
    with pytest.raises(RuntimeError, match="no luck"):
        train(SMALL, tmp_path)
    assert json.loads((tmp_path / "status.json").read_text()) == {
        "status": "failed",
        "message": "RuntimeError: no luck",
    }


def test_half_a_line_of_metrics_is_dropped(tmp_path: Path) -> None:
    train(replace(SMALL, steps=3), tmp_path)
    metrics = tmp_path / "metrics.jsonl"
    rows = read_rows(metrics)
    metrics.write_text(metrics.read_text() + '{"step": 9, "obj')
    assert read_rows(metrics) == rows
    assert RunFolder(tmp_path).keep_rows(1) == [row for row in rows if row["step"] <= 1]


def test_bf16_and_compile_are_flags(tmp_path: Path) -> None:
    last = train(replace(SMALL, precision="bf16", steps=6), tmp_path / "bf16").rows[-1]
    assert last["objective"] < 0.6


def test_tensorboard_events_are_written(tmp_path: Path) -> None:
    train(replace(SMALL, steps=2, tensorboard=True), tmp_path)
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_ranking_equals_scikit_learn() -> None:
    from sklearn.metrics import average_precision_score, roc_auc_score

    generator = torch.Generator().manual_seed(0)
    y = torch.randint(4, (300,), generator=generator)
    h = torch.randn(300, 4, generator=generator) * 60 + 3 * torch.nn.functional.one_hot(y, 4)
    h = h.round()  # ties, and scores that a sigmoid would squash together
    one_hot = torch.nn.functional.one_hot(y, 4).numpy()
    found = ranking(h, y)
    assert found.auroc == pytest.approx(roc_auc_score(one_hot, h.numpy(), average="macro"), abs=1e-6)
    assert found.ap == pytest.approx(average_precision_score(one_hot, h.numpy(), average="macro"), abs=1e-6)


def test_ranking_leaves_out_missing_labels_and_tasks_without_both_classes() -> None:
    nan = float("nan")
    y = torch.tensor([[1.0, nan, 1.0], [0.0, 1.0, 1.0], [nan, 0.0, 1.0], [1.0, 1.0, 1.0]])
    h = torch.tensor([[2.0, 9.0, 0.0], [1.0, 1.0, 0.0], [5.0, 2.0, 0.0], [3.0, 3.0, 0.0]])
    assert ranking(h, y).auroc == pytest.approx((1.0 + 0.5) / 2)
    assert ranking(h[:, 2:], y[:, 2:]).auroc != ranking(h[:, 2:], y[:, 2:]).auroc  # nan


def test_your_own_table_trains(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 3, generator=generator)
    lines = ["a,b,c,kind"] + [f"{a:.4f},{b:.4f},{c:.4f},{'yes' if a > 0 else 'no'}" for a, b, c in x.tolist()]
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    config = replace(SMALL, dataset=str(tmp_path / "mine.csv"), target=("kind",), positive="yes", lr=0.1)
    last = train(config, tmp_path / "run").rows[-1]
    assert last["auroc"] > 0.9
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert "user-provided" in environment["data"]
    assert environment["data_sha256"]


if __name__ == "__main__":
    sys.stdout.write(str(nursery(Path(sys.argv[1]), int(sys.argv[2]))))

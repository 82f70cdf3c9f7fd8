"""Ranks under ``torchrun --max-restarts`` that are killed at random moments: does the run end as if nothing had happened?

    python benchmarks/elastic.py [--kills 20] [--out FOLDER]

One undisturbed run of two ranks first. Then, as often as asked for, the same run with one rank killed (SIGKILL) at a
moment drawn uniformly from its steps: within steps, reductions, saves or loads. torchrun starts both ranks again,
they load the last checkpoint and go on; the end is compared bit for bit with the undisturbed one. Beside every such run
a control without fcco: the same reductions, killed in the same way. Where it does not come to its end either, the
failure is torchrun's own (or gloo's, which cannot always join again).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import fcco

STEPS = 90
EVERY = 3  # steps between checkpoints
RESTARTS = 8  # more than kills: gloo sometimes needs several to join again
PATIENCE = 900  # seconds for a whole run


# ------------------------------------------------------------------ a rank


@dataclass(frozen=True)
class Kill:
    """Which rank is killed in its first attempt, and when.

    Args:
        rank: of the two.
        after: steps, and a part of one: how fast the machine is does not matter.
    """

    rank: int
    after: float

    def arm(self, folder: Path, pace: float) -> None:
        """Have this process killed within the step that now begins, from a thread, wherever it is then.

        Args:
            folder: of the run.
            pace: seconds that a step has taken so far.
        """

        def kill() -> None:
            time.sleep(pace * (self.after % 1.0))
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=kill, daemon=True).start()


def rank_of_torchrun(mode: str, folder: Path, kill: Kill | None) -> None:
    """What every rank does, from its start to its end."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    run = trained(folder) if mode == "fcco" else reduced(folder)
    began = time.perf_counter()
    for taken, _ in enumerate(run, 1):
        if kill is not None and attempt == 0 and dist.get_rank() == kill.rank and taken == int(kill.after):
            kill.arm(folder, (time.perf_counter() - began) / taken)
    if dist.get_rank() == 0:
        (folder / "restarts").write_text(str(attempt))
    dist.destroy_process_group()


def trained(folder: Path) -> Iterator[None]:
    """A run that goes on from its checkpoint, where there is one."""
    # Python's and numpy's random states are part of a checkpoint, too.
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    x = torch.randn(200, 8, dtype=torch.float64)
    y = (x[:, 0] + torch.randn(200, dtype=torch.float64) > 1.0).long()
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1)).double()
    objective = fcco.objectives.PartialAUC(model, fcco.data.Points(x, y))
    optimizer = torch.optim.Adam(objective.parameters(), lr=1e-2)
    solver = fcco.Solver(objective, optimizer, fcco.msvr_v2(alpha=0.1, beta=0.1))
    loader = solver.loader(blocks=4, samples=16, seed=0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    parts: dict[str, Any] = {"solver": solver, "loader": loader, "scheduler": scheduler}
    path = folder / "run.pt"
    with contextlib.suppress(FileNotFoundError):  # on every rank alike
        fcco.load(path, **parts)
    while solver.t < STEPS:
        for batch in loader:
            solver.step(batch)
            scheduler.step()
            yield
            if solver.t % EVERY == 0:
                fcco.save(path, **parts)
            if solver.t == STEPS:
                break
    state = [part.state_dict() for part in parts.values()]
    if dist.get_rank() == 0:
        torch.save(state, folder / "end.pt")


def reduced(folder: Path) -> Iterator[None]:
    """Plain training with reductions, for as long as a run takes.

    With an optimizer: torch's own loads modules when it is made which keep the process group alive to the very end.
    """
    model = nn.Linear(8, 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        time.sleep(0.005)
        yield
    if dist.get_rank() == 0:
        (folder / "end.pt").touch()


# ------------------------------------------------------------------ torchrun


@dataclass(frozen=True)
class Ended:
    """How a run under torchrun ended."""

    whole: bool
    killed: bool
    restarts: int | None
    seconds: float
    said: str

    def __str__(self) -> str:
        words = "did not end"
        if self.said == "out of time":
            words = "out of time"
        if self.whole:
            words = f"ended after {self.restarts} restarts"
        # What ended a process besides our own SIGKILL and torchrun's SIGTERM to the others.
        others = sorted(set(re.findall(r"exitcode: (-?\d+)\)", self.said)) - {"-9", "-15"})
        if others:
            words += f" (exit codes {', '.join(others)}, too)"
        return words


def launched(mode: str, folder: Path, kill: Kill | None = None) -> Ended:
    """Two ranks under torchrun, to their end."""
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [f"--max-restarts={RESTARTS}", "--monitor-interval=0.1", __file__]
    command += ["--rank-of", mode, "--folder", str(folder)]
    if kill is not None:
        command += ["--kill-rank", str(kill.rank), "--kill-after", str(kill.after)]
    path = os.pathsep.join([str(Path(fcco.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    began = time.monotonic()
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
        said = done.stderr
    except subprocess.TimeoutExpired:
        said = "out of time"
    restarts = None
    if (folder / "restarts").exists():
        restarts = int((folder / "restarts").read_text())
    whole = restarts is not None and (folder / "end.pt").exists()
    return Ended(whole, (folder / "killed").exists(), restarts, time.monotonic() - began, said)


def same(a: Any, b: Any) -> bool:
    """Bit for bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and bool(a == b)


@dataclass(frozen=True)
class Trial:
    """One kill, and what came of it."""

    seed: int
    rank: int
    after: float
    run: Ended
    is_same: bool
    control: Ended | None

    @property
    def verdict(self) -> str:
        if not self.run.killed:
            return "not killed"
        if self.run.whole:
            return "the same bits" if self.is_same else "OTHER BITS"
        if self.control is not None and not self.control.whole:
            return "torchrun's own failure"
        return "DID NOT END"


def trial(seed: int, folder: Path, wanted: Any, *, control: bool) -> Trial:
    """Kill once, at a moment that the seed says.

    Args:
        seed: of the moment and of the rank.
        folder: for its files.
        wanted: the state at the end of an undisturbed run.
        control: whether the same is tried without fcco, too.
    """
    draws = random.Random(seed)
    kill = Kill(draws.randrange(2), draws.uniform(1.0, STEPS))
    ended = launched("fcco", folder / "fcco", kill)
    is_same = ended.whole and same(torch.load(folder / "fcco" / "end.pt", weights_only=True), wanted)
    beside = None
    if control or not ended.whole:
        beside = launched("control", folder / "control", kill)
    return Trial(seed, kill.rank, kill.after, ended, is_same, beside)


def undisturbed(folder: Path) -> Any:
    """The state at the end of a run that nobody kills."""
    ended = launched("fcco", folder)
    if not ended.whole:
        raise RuntimeError(f"a run that nobody kills does not come to its end: {ended.said[-2000:]}")
    return torch.load(folder / "end.pt", weights_only=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--out", type=Path, help="a folder for elastic.json")
    parser.add_argument("--rank-of", choices=["fcco", "control"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--kill-rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--kill-after", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank_of is not None:
        kill = None
        if given.kill_rank is not None:
            kill = Kill(given.kill_rank, given.kill_after)
        rank_of_torchrun(given.rank_of, given.folder, kill)
        return
    found: list[Trial] = []
    with tempfile.TemporaryDirectory() as folder:
        wanted = undisturbed(Path(folder) / "undisturbed")
        print(f"a run: {STEPS} steps, {STEPS // EVERY} checkpoints\n")
        print("| kill | rank | in step | with fcco | control | verdict |\n|---|---|---|---|---|---|")
        for seed in range(given.kills):
            one = trial(seed, Path(folder) / str(seed), wanted, control=True)
            found.append(one)
            print(f"| {seed} | {one.rank} | {one.after:.2f} | {one.run} | {one.control} | {one.verdict} |", flush=True)
    verdicts = [one.verdict for one in found]
    print("\n" + ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts)))
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        rows = []
        for one in found:
            row = asdict(one) | {"verdict": one.verdict}
            for ended in (row["run"], row["control"]):
                if ended is not None:
                    del ended["said"]  # it names folders of this machine
            rows.append(row)
        (given.out / "elastic.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""A run's folder: config.json, environment.json, metrics.jsonl, status.json, checkpoint.pt; never half-written."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Literal, final

import torch

import fcco
from fcco.lab.config import DataConfig, TrainConfig
from fcco.lab.errors import LabError, writing
from fcco.lab.files import finite, read_json, read_rows, step_of, write_aside, write_json
from fcco.lab.values import as_values, from_values

__all__ = [
    "RunFolder",
    "environment",
    "finite",
    "fresh_folder",
    "read_json",
    "read_rows",
    "write_aside",
    "write_json",
]

Status = Literal["running", "finished", "interrupted", "diverged", "failed"]


@final
class RunFolder:
    """The files of one run.

    Args:
        path: the folder; made where it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.status = path / "status.json"
        self.checkpoint = path / "checkpoint.pt"
        self._lock: IO[str] | None = None

    @property
    def used(self) -> bool:
        """Whether a run was started here."""
        return self.config.exists()

    def start(self, config: DataConfig, environment: Mapping[str, Any]) -> None:
        """Begin a run; a folder where one was begun before is an error."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self.lock()
        if self.used:
            raise LabError(
                f"{self.path} already holds a run; continue it with --resume {self.path}, or choose another --out"
            )
        write_json(self.environment, environment)
        write_json(self.config, as_values(config))

    def lock(self) -> None:
        """Keep other processes out; the system opens the lock again when this process ends, however it ends."""
        try:
            import fcntl
        except ImportError:  # not on this system
            return
        with writing(self.path):
            self._lock = open(self.path / ".lock", "w")  # noqa: SIM115
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            raise LabError(f"another process is training in {self.path}") from error

    def check_data(self, sha256: Mapping[str, str]) -> None:
        """Refuse to go on with other files than the run was begun with: the names say nothing of what is in them."""
        if not self.environment.exists():
            raise LabError(f"{self.path} has no environment.json, which records the data that the run was started with")
        before = read_json(self.environment).get("data_sha256")
        if before == dict(sha256):
            return
        if not isinstance(before, dict):
            before = {}
        changed = [name for name in sorted(set(before) | set(sha256)) if before.get(name) != sha256.get(name)]
        raise LabError(
            f"the data have changed since the run in {self.path} was started ({', '.join(changed)}): put the old files "
            "back, or start a new run"
        )

    def forget(self) -> None:
        """Remove every trace of a run that was refused before its first step."""
        for file in (self.config, self.environment, self.status, self.path / ".lock"):
            file.unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def release(self) -> None:
        """Let other processes in."""
        if self._lock is not None:
            with contextlib.suppress(OSError):  # nothing was written, and the lock goes with the process
                self._lock.close()
            self._lock = None

    def read_config(self) -> TrainConfig:
        """Return the configuration that the run was started with."""
        if not self.used:
            raise LabError(f"there is no run to resume in {self.path} (it has no config.json)")
        return from_values(TrainConfig, read_json(self.config), str(self.config))

    def append(self, row: Mapping[str, Any]) -> None:
        """Append an evaluation."""
        with writing(self.metrics), open(self.metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps(finite(row), allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def keep_rows(self, last_step: int) -> list[dict[str, Any]]:
        """Drop evaluations after ``last_step`` (they will come again) and a half-written line; the rest."""
        rows = [row for row in read_rows(self.metrics) if 0 <= step_of(row) <= last_step]
        write_aside(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))
        return rows

    def end(self, status: Status, message: str = "") -> None:
        """Write down how the run stands."""
        write_json(self.status, {"status": status, "message": message})


def environment(device: torch.device, data: str, sha256: Mapping[str, str]) -> dict[str, Any]:
    """Describe where a run takes place, and on which data."""
    name = "cpu"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "fcco": fcco.__version__,
        "commit": _commit(),
        "threads": torch.get_num_threads(),
        "device": name,
        "data": data,
        "data_sha256": dict(sha256),
    }


@lru_cache(maxsize=1)
def _commit() -> str | None:
    """Return the commit that fcco runs from, with '+' where files were changed since; None outside of a checkout."""
    package = Path(fcco.__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        commit = git("rev-parse", "HEAD")
        if git("status", "--porcelain", "--", "."):
            commit += "+"
        return commit
    except (OSError, subprocess.SubprocessError):
        return None


def fresh_folder(parent: Path, stem: str) -> Path:
    """Make parent/stem-1, or the first number after it that is free, and return it; nobody else can take it then."""
    number = 1
    with writing(parent):
        parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                path = parent / f"{stem}-{number}"
                path.mkdir()
                return path
            except FileExistsError:
                number += 1

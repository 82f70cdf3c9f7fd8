"""What goes on alongside the steps of a run: watchers, the tally, signals that ask it to stop, and TensorBoard."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, final

import torch

from fcco import Report
from fcco.lab.errors import writing
from fcco.lab.evaluate import Row

if TYPE_CHECKING:
    from fcco.lab.parts import Parts

MANY = 256  # reports that are kept before their estimates are read


class Watch(Protocol):
    """Who is told how a run goes."""

    def began(self, parts: Parts, rows: list[dict[str, Any]]) -> None:
        """Called at the start, with the evaluations of an earlier part of the run."""

    def stepped(self, step: int) -> None:
        """Called after every step."""

    def evaluated(self, row: Row) -> None:
        """Called after every evaluation."""


@final
class Silent:
    """Tells nobody."""

    def began(self, parts: Parts, rows: list[dict[str, Any]]) -> None:
        pass

    def stepped(self, step: int) -> None:
        pass

    def evaluated(self, row: Row) -> None:
        pass


@final
class Tally:
    """What a run adds up by itself; part of its checkpoint.

    Attributes:
        seconds: spent on steps.
        uncounted: samples that the paper counts for full passes beyond the evaluations that the solver counts.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds = 0.0
        self.uncounted = 0
        self._steps = 0
        self._reports: list[Report] = []  # whose estimates were not read yet
        self._total = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, report: Report, seconds: float) -> None:
        """Add a step's time and its estimate of F, which is read later: a captured step would have to wait."""
        self.seconds += seconds
        self._reports.append(report)
        if len(self._reports) >= MANY:
            self._read()

    def _read(self) -> None:
        for report in self._reports:
            f = report.f
            if f is not None:
                self._total += f.mean()
                self._steps += 1
        self._reports = []

    def take(self) -> float | None:
        """Return the mean of the estimates of F since the last call; None: there were no steps."""
        self._read()
        if self._steps == 0:
            return None
        mean = float(self._total) / self._steps
        self._total.zero_()
        self._steps = 0
        return mean

    def state_dict(self) -> dict[str, Any]:
        self._read()
        return {
            "seconds": self.seconds,
            "uncounted": self.uncounted,
            "steps": self._steps,
            "total": self._total.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seconds = state["seconds"]
        self.uncounted = state["uncounted"]
        self._steps = state["steps"]
        self._total.copy_(state["total"])
        self._reports = []


@final
class Board:
    """TensorBoard events next to the metrics, where asked for and installed.

    Args:
        path: the run's folder.
        wanted: whether to write any.
        step: the step that the run goes on from; later events of an earlier part are dropped.
    """

    def __init__(self, path: Path, wanted: bool, step: int) -> None:
        self._writer: Any = None
        if not wanted:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        purge_step = None
        if step > 0:
            purge_step = step + 1
        with writing(path):
            self._writer = SummaryWriter(str(path / "tensorboard"), purge_step=purge_step)

    def add(self, row: Row) -> None:
        """Write an evaluation."""
        if self._writer is None:
            return
        for name, value in asdict(row).items():
            if name != "step" and value is not None:
                self._writer.add_scalar(name, value, row.step)

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()

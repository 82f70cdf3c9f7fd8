"""A study is one curve: points of a grid, halved rung by rung at a seed of its own, then the best point on the reported
seeds. Everything here is a function of the rows that exist: what is done is never asked for again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from benchmarks.figures.runs import Row, Run
from fcco.lab.config import TrainConfig

TUNING_SEED = 1000

#: A point of a grid: (setting, value) pairs, of a configuration or of the run itself.
Point = tuple[tuple[str, object], ...]
Rows = Mapping[str, Row]


@dataclass(frozen=True)
class Rung:
    """A round of halving: so many points get this share of the steps."""

    share: float
    points: int


@dataclass(frozen=True)
class Study:
    """One curve.

    Args:
        name: figure/panel/label.
        base: the reported run, rates and seed still open.
        seeds: those reported.
        grid: points to choose from.
        rungs: of the halving; each has fewer points and more steps than the one before.
        from_study: take the first rung's points from that study's ranking, in place of a grid; with no rungs its
            best point.
    """

    name: str
    base: Run
    seeds: tuple[int, ...]
    grid: tuple[Point, ...] = ()
    rungs: tuple[Rung, ...] = ()
    from_study: str | None = None

    @property
    def figure(self) -> str:
        return self.name.split("/")[0]

    @property
    def panel(self) -> str:
        return self.name.split("/")[1]

    @property
    def label(self) -> str:
        return self.name.split("/")[2]


def at(run: Run, point: Point) -> Run:
    """The run at a point."""
    known = {field.name for field in fields(TrainConfig)}
    settings = dict(point)
    of_config = {name: value for name, value in settings.items() if name in known}
    of_run = {name: value for name, value in settings.items() if name not in known}
    config = replace(run.config, **of_config)  # type: ignore[arg-type]
    return replace(run, config=config, **of_run)  # type: ignore[arg-type]


def tuning_run(study: Study, point: Point, share: float) -> Run:
    """The run that a point gets in a rung."""
    run = at(study.base, point)
    config = replace(run.config, steps=max(1, round(share * run.steps)), seed=TUNING_SEED)
    # At alpha = 1 both are z = G: the cheaper one serves both, so that no pair of equal runs is made.
    if config.alpha == 1.0 and config.method in ("msvr-v2", "variant-v2") and config.zeta is None:
        config = replace(config, method=config.method.replace("-v2", "-v1"))
    return replace(run, config=config, points=max(1, round(12 * share)), whole=False)


def reported_runs(study: Study, point: Point) -> list[Run]:
    """The runs behind the curve."""
    run = at(study.base, point)
    return [replace(run, config=replace(run.config, seed=seed)) for seed in study.seeds]


def value(row: Row) -> float:
    """What is tuned: F at the end, on the examples that it was drawn on."""
    if row["status"] != "finished" or row["f"] is None:
        return math.inf
    return float(row["f"])


def promoted(values: Mapping[Point, float], count: int, spread: bool) -> list[Point]:
    """The best points, best first.

    Args:
        values: F of each.
        count: how many.
        spread: the best point of each learning rate comes along, where that takes half of the places at most: after
            few steps large rates look better than they are.
    """
    ordered = sorted(values, key=lambda point: values[point])
    rates = {dict(point).get("lr") for point in ordered}
    if not spread or 2 * len(rates) > count:
        return ordered[:count]
    chosen = []
    met = set()
    for point in ordered:
        lr = dict(point).get("lr")
        if lr not in met and math.isfinite(values[point]):
            met.add(lr)
            chosen.append(point)
    for point in ordered:
        if len(chosen) < count and point not in chosen:
            chosen.append(point)
    return sorted(chosen, key=lambda point: values[point])


class Progress:
    """Where studies stand, by the rows that exist.

    Args:
        studies: all of them; a study may ask for the ranking of another.
        rows: key -> row.
    """

    def __init__(self, studies: Sequence[Study], rows: Rows) -> None:
        self._studies = {study.name: study for study in studies}
        self._rows = rows
        self._keys: dict[tuple[str, Point, float], str] = {}

    def _row(self, study: Study, point: Point, share: float) -> Row | None:
        """Of a tuning run; keys are remembered, since they are asked for after every run."""
        place = (study.name, point, share)
        if place not in self._keys:
            self._keys[place] = tuning_run(study, point, share).key
        return self._rows.get(self._keys[place])

    def has(self, study: Study, point: Point, share: float) -> bool:
        """Whether a tuning run is there."""
        return self._row(study, point, share) is not None

    def rung_points(self, study: Study, number: int) -> list[Point] | None:
        """The points of a rung; None: earlier runs must be made first."""
        rung = study.rungs[number]
        if number > 0:
            values = self._values(study, number - 1)
            if values is None:
                return None
            return promoted(values, rung.points, spread=number == 1)
        if study.from_study is None:
            return list(study.grid[: rung.points])
        ranking = self.ranking(self._studies[study.from_study])
        if ranking is None:
            return None
        return ranking[: rung.points]

    def _values(self, study: Study, number: int) -> dict[Point, float] | None:
        """F of each point of a rung; None: not all are there."""
        points = self.rung_points(study, number)
        if points is None:
            return None
        values = {}
        for point in points:
            row = self._row(study, point, study.rungs[number].share)
            if row is None:
                return None
            values[point] = value(row)
        return values

    def first_round(self, study: Study) -> dict[Point, float] | None:
        """F of each point of the first rung; None: there is none, or not all of its runs are there."""
        if not study.rungs:
            return None
        return self._values(study, 0)

    def ranking(self, study: Study) -> list[Point] | None:
        """All points, those that came furthest first, then by F; None: tuning is not over."""
        if not study.rungs:
            if study.from_study is None:
                return list(study.grid)
            return self.ranking(self._studies[study.from_study])
        found: dict[Point, None] = {}
        for number in reversed(range(len(study.rungs))):
            values = self._values(study, number)
            if values is None:
                return None
            found.update(dict.fromkeys(sorted(values, key=lambda point: values[point])))
        return list(found)

    def best(self, study: Study) -> Point | None:
        """The point that is reported; None: not known yet."""
        ranking = self.ranking(study)
        if not ranking:
            return None
        return ranking[0]

    def tuned_value(self, study: Study) -> float | None:
        """F of the best point at the tuning seed, where the study has rungs of its own."""
        best = self.best(study)
        if best is None or not study.rungs:
            return None
        row = self._row(study, best, study.rungs[-1].share)
        if row is None:
            return None
        return value(row)

    def open_runs(self, study: Study) -> list[Run]:
        """What can be run now; none: it is done, or waits for another."""
        for number, rung in enumerate(study.rungs):
            points = self.rung_points(study, number)
            if points is None:
                return []
            missing = [point for point in points if self._row(study, point, rung.share) is None]
            if missing:
                return [tuning_run(study, point, rung.share) for point in missing]
        best = self.best(study)
        if best is None:
            return []
        return [run for run in reported_runs(study, best) if run.key not in self._rows]

    def reported(self, study: Study) -> list[Row]:
        """The rows behind the curve, as far as they are there."""
        best = self.best(study)
        if best is None:
            return []
        keys = [run.key for run in reported_runs(study, best)]
        return [self._rows[key] for key in keys if key in self._rows]

    def counts(self, study: Study) -> tuple[int, int]:
        """Runs done, and runs in all; a study that waits counts what it will need."""
        done = 0
        total = len(study.seeds)
        for number, rung in enumerate(study.rungs):
            points = self.rung_points(study, number)
            if points is None:
                total += rung.points
                continue
            total += len(points)
            done += sum(self._row(study, point, rung.share) is not None for point in points)
        return done + len(self.reported(study)), total

"""Which runs belong together (they differ in their seed alone), and what the groups are called."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from .runs import Run, natural

PROBLEM = ("dataset", "objective", "model")  # what is not compared: another problem is another chart
UNNAMED = "problem unknown"  # a run without a configuration
NOT_COMPARED = {  # the seed, where a run lies, and what changes no number
    *("seed", "name", "run", "run_name", "out", "output", "folder", "directory", "path", "resume"),
    *("run_dir", "run_folder", "output_dir", "out_dir", "checkpoint_seconds", "tensorboard"),
}


@final
@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone.

    Attributes:
        label: the method, and what else tells the group from the others.
        problem: the problem's name.
        runs: the group's runs.
        config: what their configurations share.
    """

    label: str
    problem: str
    runs: tuple[Run, ...]
    config: dict[str, Any]

    @property
    def full(self) -> tuple[Run, ...]:
        """The sound runs that came as far as the furthest of them; the final values are theirs. None may be sound."""
        sound = [run for run in self.runs if run.tone != "bad"]
        furthest = max((run.last_step for run in sound), default=0.0)
        return tuple(run for run in sound if run.last_step == furthest)


def group_runs(runs: Sequence[Run], by: Sequence[str] = ()) -> list[Group]:
    """The groups of the runs that have an evaluation, in natural order of problem and label.

    Args:
        runs: the runs.
        by: names of the configuration that tell groups apart; none: all but the seed and where the run lies.
    """
    usable = [run for run in runs if run.length]
    unknown = [name for name in by if not any(name in run.config for run in runs)]
    if unknown:
        raise ValueError(f"by names {unknown[0]!r}, which no configuration has")
    parts = [name for name in PROBLEM if name not in by]
    members: dict[tuple[str, str], list[Run]] = {}
    for run in usable:
        chosen = {name: run.config.get(name) for name in by} if by else _identity(run)
        members.setdefault((_text(run, parts), json.dumps(chosen, sort_keys=True, default=str)), []).append(run)
    shown = _differing(parts, [run for run in usable if run.config])
    groups = []
    for (problem, _), together in members.items():
        rivals = [other for (name, _), others in members.items() if name == problem for other in others]
        name = _text(together[0], shown or parts) or ("" if len(members) == 1 else UNNAMED)
        groups.append(
            Group(_label(together, rivals, parts, by), name, tuple(together), shared(r.config for r in together))
        )
    return sorted(
        _distinct(groups), key=lambda group: (group.problem == UNNAMED, natural(group.problem), natural(group.label))
    )


def _identity(run: Run) -> dict[str, Any]:
    """What must agree within a group; a run without a configuration stands alone."""
    if not run.config:
        return {"run": run.name}
    return {name: value for name, value in run.config.items() if name not in NOT_COMPARED}


def _text(run: Run, names: Iterable[str]) -> str:
    return " · ".join(show(run.config[name]) for name in names if run.config.get(name) is not None)


def _label(together: Sequence[Run], rivals: Sequence[Run], parts: Sequence[str], by: Sequence[str]) -> str:
    """The method, then what tells this group from the others of the same method."""
    run = together[0]
    method = run.config.get("method")
    if method is None and not by:
        return run.name
    same = [other for other in rivals if other.config.get("method") == method]
    candidates = set(by or {name for other in same for name in other.config} - NOT_COMPARED - set(parts)) - {"method"}
    names = sorted(_differing(candidates, same), key=natural)
    parts = [f"{name}={show(run.config.get(name))}" for name in names]
    if method is not None and (not by or "method" in by):
        parts.insert(0, show(method))
    return " ".join(parts) or "all runs"


def _distinct(groups: Sequence[Group]) -> list[Group]:
    """The groups with a number after a label that comes twice in one problem."""
    count: dict[tuple[str, str], int] = {}
    result = []
    for group in groups:
        key = (group.problem, group.label)
        count[key] = count.get(key, 0) + 1
        label = group.label if count[key] == 1 else f"{group.label} ({count[key]})"
        result.append(Group(label, group.problem, group.runs, group.config))
    return result


def _differing(names: Iterable[str], runs: Sequence[Run]) -> list[str]:
    """Those of `names` that do not have one value in all runs, in the given order where it has one."""
    return [name for name in names if len({show(run.config.get(name)) for run in runs}) > 1]


def shared(configs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What all configurations agree on.

    >>> shared([{"lr": 0.1, "seed": 0}, {"lr": 0.1, "seed": 1}])
    {'lr': 0.1}
    """
    first, *others = [dict(config) for config in configs] or [{}]
    return {
        name: value
        for name, value in first.items()
        if all(name in other and show(other[name]) == show(value) for other in others)
    }


def show(value: object) -> str:
    """A configuration's value as a reader wants it: no quotes, no trailing digits.

    >>> show(0.1), show(None), show([1, 2]), show("sox")
    ('0.1', 'none', '[1, 2]', 'sox')
    """
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value, default=str, ensure_ascii=False)

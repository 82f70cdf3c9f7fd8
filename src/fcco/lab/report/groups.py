"""Which runs belong together (they differ in their seed alone), and what the groups are called."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
        """The runs that did not fail and came as far as the furthest of them; the final values are theirs."""
        sound = [run for run in self.runs if run.tone != "bad"]
        if not sound:
            return ()
        furthest = max(run.last_step for run in sound)
        return tuple(run for run in sound if run.last_step == furthest)


def group_runs(runs: Sequence[Run], by: Sequence[str] = ()) -> list[Group]:
    """Group the runs that have an evaluation; the groups come in natural order of problem and label.

    Args:
        runs: the runs.
        by: names of the configuration that tell groups apart; none: all but the seed and where the run lies.
    """
    _check_names(by, runs)
    usable = [run for run in runs if run.length]
    problem_names = [name for name in PROBLEM if name not in by]
    members: dict[tuple[str, str], list[Run]] = {}
    rivals: dict[str, list[Run]] = {}  # all runs of a problem
    for run in usable:
        problem = _text(run, problem_names)
        members.setdefault((problem, _identity(run, by)), []).append(run)
        rivals.setdefault(problem, []).append(run)

    # A title names only what differs between the problems; where nothing does, it names everything.
    configured = [run for run in usable if run.config]
    title_names = _differing(problem_names, configured) or problem_names
    unnamed = UNNAMED
    if len(members) == 1:
        unnamed = ""
    groups = []
    for (problem, _), together in members.items():
        label = _label(together[0], rivals[problem], problem_names, by)
        title = _text(together[0], title_names) or unnamed
        config = shared([run.config for run in together])
        groups.append(Group(label, title, tuple(together), config))
    return sorted(_distinct(groups), key=_order)


def _check_names(by: Sequence[str], runs: Sequence[Run]) -> None:
    for name in by:
        if not any(name in run.config for run in runs):
            raise ValueError(f"by contains {name!r}, which no configuration has")


def _identity(run: Run, by: Sequence[str]) -> str:
    """Return what must agree within a group, as a text; a run without a configuration stands alone."""
    chosen: dict[str, Any] = {}
    if by:
        for name in by:
            chosen[name] = run.config.get(name)
    elif not run.config:
        chosen["run"] = run.name
    else:
        for name, value in run.config.items():
            if name not in NOT_COMPARED:
                chosen[name] = value
    return json.dumps(chosen, sort_keys=True, default=str)


def _order(group: Group) -> tuple[bool, list[tuple[float, str]], list[tuple[float, str]]]:
    """Return the sorting key of a group; the unnamed problem comes last."""
    return group.problem == UNNAMED, natural(group.problem), natural(group.label)


def _text(run: Run, names: Iterable[str]) -> str:
    values = [run.config.get(name) for name in names]
    return " · ".join(show(value) for value in values if value is not None)


def _label(run: Run, rivals: Sequence[Run], problem_names: Sequence[str], by: Sequence[str]) -> str:
    """Return the method, then what tells the group of this run from the others of the same method."""
    method = run.config.get("method")
    if method is None and not by:
        return run.name
    same_method = [rival for rival in rivals if rival.config.get("method") == method]
    candidates = set(by)
    if not by:
        for rival in same_method:
            candidates.update(rival.config)
        candidates -= NOT_COMPARED.union(problem_names)
    candidates.discard("method")

    words = []
    if method is not None and (not by or "method" in by):
        words.append(show(method))
    for name in sorted(_differing(candidates, same_method), key=natural):
        words.append(f"{name}={show(run.config.get(name))}")
    return " ".join(words) or "all runs"


def _distinct(groups: Sequence[Group]) -> list[Group]:
    """Return the groups, with a number after a label that comes twice in one problem."""
    count: Counter[tuple[str, str]] = Counter()
    result = []
    for group in groups:
        key = (group.problem, group.label)
        count[key] += 1
        if count[key] > 1:
            group = replace(group, label=f"{group.label} ({count[key]})")
        result.append(group)
    return result


def _differing(names: Iterable[str], runs: Sequence[Run]) -> list[str]:
    """Return those of `names` that do not have the same value in all runs, in the order given."""
    differing = []
    for name in names:
        values = {show(run.config.get(name)) for run in runs}
        if len(values) > 1:
            differing.append(name)
    return differing


def shared(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what all configurations agree on.

    >>> shared([{"lr": 0.1, "seed": 0}, {"lr": 0.1, "seed": 1}])
    {'lr': 0.1}
    """
    if not configs:
        return {}
    agreed = {}
    for name, value in configs[0].items():
        text = show(value)
        if all(name in config and show(config[name]) == text for config in configs):
            agreed[name] = value
    return agreed


def show(value: object) -> str:
    """Return a configuration's value as text for a reader, without quotes or trailing digits.

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

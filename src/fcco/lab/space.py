"""Search spaces: the paper's grid, or any from a TOML file."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, final

from fcco.lab.config import RATES, TrainConfig, check, takes_rate
from fcco.lab.errors import LabError, nearest
from fcco.lab.values import from_values, read_toml

#: The grid of the paper's experiments (Section 5).
PAPER: dict[str, tuple[Any, ...]] = {
    "lr": (1e-4, 1e-3, 2e-3, 5e-3, 1e-2),
    "alpha": (0.1, 0.5, 0.9, 1.0),
    "beta": (0.1, 0.5, 0.9, 1.0),
}


@final
@dataclass(frozen=True)
class Range:
    """Numbers from low to high."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    whole: bool = False


Space = Mapping[str, tuple[Any, ...] | Range]


def read_space(path: Path) -> Space:
    """Read a space from TOML: ``name = [values]``, or ``name = {low = ..., high = ..., log = true, step = ...}``."""
    known = {field.name for field in fields(TrainConfig)}
    space: dict[str, tuple[Any, ...] | Range] = {}
    for name, values in read_toml(path).items():
        if name not in known:
            raise LabError(f"{path}: unknown setting {name!r}{nearest(name, known)}")
        space[name] = _choices(values, f"{path}: {name}", name)
    if not space:
        raise LabError(f"{path} names no setting to search over")
    return space


def _choices(values: Any, where: str, name: str) -> tuple[Any, ...] | Range:
    """Return what one setting may be: the values of a list, or a range."""
    if isinstance(values, list) and values:
        return _listed(values, where, name)
    if isinstance(values, dict) and {"low", "high"} <= values.keys() <= {"low", "high", "log", "step"}:
        numbers = [values["low"], values["high"], values.get("step", 1)]
        if all(isinstance(number, (int, float)) and not isinstance(number, bool) for number in numbers):
            for number in numbers:
                _check_finite(where, number)
            low, high, step = numbers
            _check_range(where, low, high, step, log=bool(values.get("log", False)))
            return Range(**values, whole=all(isinstance(number, int) for number in numbers))
    raise LabError(f"{where} must be a list of values, or {{low = ..., high = ..., log = true, step = ...}}")


def _listed(values: list[Any], where: str, name: str) -> tuple[Any, ...]:
    """Return the values as the configuration holds them, each checked against the setting's type."""
    choices = []
    for value in values:
        from_values(TrainConfig, {name: value}, where)
        _check_finite(where, value)
        if isinstance(value, list):
            value = tuple(value)
        choices.append(value)
    return tuple(choices)


def _check_finite(where: str, value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise LabError(f"{where} must be finite, got {value}")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise LabError(f"{where} must be below 2^63, got {value}")


def _check_range(where: str, low: float, high: float, step: float, *, log: bool) -> None:
    if not low < high:
        raise LabError(f"{where}: low must be below high, got {low} and {high}")
    if log and low <= 0:
        raise LabError(f"{where}: low must be above 0 with log = true, got {low}")
    if step <= 0:
        raise LabError(f"{where}: step must be above 0, got {step}")


def is_grid(space: Space) -> bool:
    """Return whether every setting has a list of values."""
    return not any(isinstance(values, Range) for values in space.values())


def points(space: Space, base: TrainConfig) -> Iterator[dict[str, Any]]:
    """Yield every point of a grid once, without the rates that the point's method does not take."""
    seen = set()
    lists = [values for values in space.values() if not isinstance(values, Range)]
    for values in itertools.product(*lists):
        named = dict(zip(space, values, strict=True))
        point = trimmed(named, base)
        key = tuple(sorted(point.items(), key=lambda item: item[0]))
        if key not in seen:
            seen.add(key)
            yield point


def trimmed(point: Mapping[str, Any], base: TrainConfig) -> dict[str, Any]:
    """Return a point without the rates that its method does not take."""
    method = point.get("method", base.method)
    kept = {}
    for name, value in point.items():
        if name not in RATES or takes_rate(method, name):
            kept[name] = value
    return kept


def at(base: TrainConfig, point: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration at a point."""
    return check(replace(base, **trimmed(point, base)))

"""Configurations from plain values and TOML files, and back."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fcco._support import checks
from fcco.lab.errors import LabError, in_words, nearest

Config = TypeVar("Config")
LARGE = 2**1023  # whole numbers from here on are no floats
TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false"}  # "text" for all others


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file; names may be written with - or _."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LabError(in_words(error, path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LabError(f"{path} is not valid TOML: {error}") from error
    return {name.replace("-", "_"): value for name, value in content.items()}


def from_toml(kind: type[Config], path: Path) -> Config:
    """Return a configuration from a TOML file, which has the same names as the flags."""
    return from_values(kind, read_toml(path), str(path))


def from_values(kind: type[Config], values: Mapping[str, Any], where: str) -> Config:
    """Return a configuration from plain values; an unknown name or a wrong type is an error that names it."""
    hints = get_type_hints(kind)
    known = [field.name for field in fields(kind) if field.init]  # type: ignore[arg-type]
    for name, value in values.items():
        if name not in known:
            raise LabError(f"{where}: unknown setting {name!r}{nearest(name, known)}")
        if not _fits(value, hints[name]):
            raise LabError(f"{where}: {name} must be {_named(hints[name])}, got {checks.shown(value)}")
    typed = {name: _as(hints[name], value) for name, value in values.items()}
    return kind(**typed)


def _as(hint: Any, value: Any) -> Any:
    """Return the value as the type that the hint asks for: a tuple for a list, a float for a whole number."""
    kinds = _kinds(hint)
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, str) and Path in kinds:
        return Path(value)
    if float in kinds and int not in kinds and _is_integer(value):
        return float(value)
    return value


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)  # True is an int to Python, but not to a user


def _kinds(hint: Any) -> tuple[Any, ...]:
    """Return the alternatives of a hint such as `int | None`."""
    if get_origin(hint) in (Union, UnionType):
        return get_args(hint)
    return (hint,)


def _fits(value: Any, hint: Any) -> bool:
    return any(_fits_one(value, kind) for kind in _kinds(hint))


def _fits_one(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is tuple:
        item_hint = get_args(kind)[0]
        return isinstance(value, (list, tuple)) and all(_fits(item, item_hint) for item in value)
    if kind is NoneType:
        return value is None
    if kind is int:
        return _is_integer(value)
    if kind is float:
        return isinstance(value, float) or (_is_integer(value) and abs(value) < LARGE)
    if kind is Path:
        return isinstance(value, str)
    return isinstance(value, kind)


def _named(hint: Any) -> str:
    """Return the type in words, for an error message."""
    names = []
    for kind in _kinds(hint):
        if get_origin(kind) is Literal:
            names.append(" or ".join(map(repr, get_args(kind))))
        elif get_origin(kind) is tuple:
            names.append(f"a list of {_named(get_args(kind)[0])}")
        elif kind is not NoneType:
            names.append(TYPE_NAMES.get(kind, "text"))
    return " or ".join(names)


def as_values(config: Any) -> dict[str, Any]:
    """Return a configuration as a flat dictionary of plain values."""
    values = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Path):
            value = str(value)
        values[field.name] = value
    return values


def to_toml(config: Any) -> str:
    """Return a configuration as TOML; what is None is left out."""
    text = ""
    for name, value in as_values(config).items():
        if value is not None:
            text += f"{name} = {json.dumps(value)}\n"
    return text

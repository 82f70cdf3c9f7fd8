"""The reference has every public name, and every public callable says what its arguments are."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fcco

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"

# Modules that the command line is made of: `fcco COMMAND --help` describes them.
OF_THE_COMMAND_LINE = {"fcco.lab.bench", "fcco.lab.rates", "fcco.lab.runs", "fcco.lab.datasets.errors"}


def public_modules() -> list[ModuleType]:
    """Every module with an `__all__`, but for those whose path has a part that begins with an underscore."""
    found: list[ModuleType] = [fcco]
    for info in pkgutil.walk_packages(fcco.__path__, "fcco."):
        if "._" in info.name or info.name in OF_THE_COMMAND_LINE:
            continue
        module = importlib.import_module(info.name)
        if hasattr(module, "__all__"):
            found.append(module)
    return found


def public_names() -> Iterator[tuple[str, Any]]:
    """Every public object by its first name."""
    seen: set[int] = set()
    for module in public_modules():
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, ModuleType) or id(value) in seen:
                continue
            seen.add(id(value))
            yield f"{module.__name__}.{name}", value


def named_in_the_reference() -> dict[str, Any]:
    found = {}
    for page in REFERENCE.glob("*.md"):
        for path in re.findall(r"^\.\. (?:auto\w+|py:data):: ([\w.]+)$", page.read_text(), flags=re.MULTILINE):
            assert path not in found, f"{path} stands in the reference twice"
            module = fcco
            if "." in path.removeprefix("fcco."):
                module = importlib.import_module(path.rpartition(".")[0])
            found[path] = getattr(module, path.rpartition(".")[2])
    return found


def test_every_public_name_stands_in_the_reference() -> None:
    there = {id(value) for value in named_in_the_reference().values()}
    missing = [name for name, value in public_names() if id(value) not in there]
    assert missing == []


def test_the_reference_names_nothing_else() -> None:
    public = {id(value) for _, value in public_names()}
    others = [name for name, value in named_in_the_reference().items() if id(value) not in public]
    assert others == []


# ---------------------------------------------------------------- arguments


def function_of(member: Any) -> Any:
    if isinstance(member, (classmethod, staticmethod)):
        return member.__func__
    return member


def arguments_told(text: str) -> set[str]:
    """The names before a colon, alone or with others, in the sections of arguments."""
    told: set[str] = set()
    inside = False
    for line in text.splitlines():
        heading = re.fullmatch(r" *(\w+):", line)
        if heading is not None:
            inside = heading.group(1) in ("Args", "Attributes")
        entry = re.match(r" +([\w*, ]+): ", line)
        if inside and entry is not None:
            told |= {name.strip(" *") for name in entry.group(1).split(",")}
    return told


def text_of_class(cls: type) -> str:
    texts = []
    for base in cls.__mro__:
        if base.__module__.startswith("fcco"):
            texts.append(base.__dict__.get("__doc__") or "")
    return "\n".join(texts)


def text_of_method(cls: type, name: str) -> str:
    """The docstrings of a method and of those that it takes the place of."""
    texts = []
    for base in cls.__mro__:
        member = function_of(base.__dict__.get(name))
        if member is not None and base.__module__.startswith("fcco"):
            texts.append(getattr(member, "__doc__", None) or "")
    return "\n".join(texts)


def takes_the_place_of_another_library(cls: type, name: str) -> bool:
    """Whether torch, Lightning or Transformers have documented the method already."""
    return any(name in vars(base) and not base.__module__.startswith("fcco") for base in cls.__mro__)


def callables() -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Every public function, class and method, with what its docstrings say."""
    for path, value in public_names():
        if inspect.isfunction(value):
            yield path, value, value.__doc__ or ""
        if not inspect.isclass(value):
            continue
        if not issubclass(value, (Exception, Enum)) and not getattr(value, "_is_protocol", False):
            yield path, value, text_of_class(value)
        for name, member in vars(value).items():
            function = function_of(member)
            if name.startswith("_") or not inspect.isfunction(function):
                continue
            if not takes_the_place_of_another_library(value, name):
                yield f"{path}.{name}", function, text_of_method(value, name)


CALLABLES = list(callables())


@pytest.mark.parametrize(("function", "text"), [each[1:] for each in CALLABLES], ids=[each[0] for each in CALLABLES])
def test_every_argument_is_told(function: Callable[..., Any], text: str) -> None:
    assert text.strip(), "no docstring"
    names = set(inspect.signature(function).parameters) - {"self", "cls"}
    assert names - arguments_told(text) == set()


def test_there_is_something_to_check() -> None:
    assert len(CALLABLES) > 400
    text = "One line.\n\n    Args:\n        x: (N,).\n        a, b: two.\n        *data: more\n            lines.\n"
    told = arguments_told(text + "    Returns:\n        c: no argument.\n")
    assert told == {"x", "a", "b", "data"}


@pytest.mark.parametrize("name", sorted(set(fcco.__all__)))
def test_every_name_at_the_front_door_has_a_docstring(name: str) -> None:
    value = getattr(fcco, name)
    if isinstance(value, dict) or not hasattr(value, "__name__"):
        return  # a value says nothing of itself; the reference does
    assert (value.__doc__ or "").strip()

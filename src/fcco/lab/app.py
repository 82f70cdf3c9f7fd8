"""From the arguments of a command line to what they ask for; every failure to one line and an exit code."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
import tyro
from rich.console import Console

from fcco import __version__
from fcco.checkpoint import CheckpointError
from fcco.lab import commands
from fcco.lab.bench import BenchCommand, run_bench
from fcco.lab.datasets import DataError, DataMissing
from fcco.lab.demo import DemoConfig, run_demo
from fcco.lab.errors import Diverged, Interrupted, LabError, in_words, nearest, one_line
from fcco.lab.reproduce import ReproduceCommand, run_reproduce
from fcco.lab.sweeping import SweepCommand, run_sweep
from fcco.lab.training import TrainCommand, file_defaults, run_train, train_defaults

Defaults = Callable[[Sequence[str]], Any]


@final
@dataclass(frozen=True)
class Command:
    """A command: its typed arguments, what it does, and where its defaults come from (a file that a flag names)."""

    kind: type
    run: Callable[[Any, Console], object]
    defaults: Defaults | None = None


COMMANDS: dict[str, Command] = {
    "demo": Command(DemoConfig, run_demo),
    "train": Command(TrainCommand, run_train, train_defaults),
    "sweep": Command(SweepCommand, run_sweep, partial(file_defaults, SweepCommand)),
    "reproduce": Command(ReproduceCommand, run_reproduce),
    "report": Command(commands.ReportCommand, commands.run_report),
    "methods": Command(commands.MethodsCommand, commands.run_methods),
    "objectives": Command(commands.ObjectivesCommand, commands.run_objectives),
    "data": Command(commands.DataCommand, commands.run_data),
    "bench": Command(BenchCommand, run_bench),
}
#: These parse their own arguments.
HANDED_ON: dict[str, Callable[[list[str]], int]] = {"rates": commands.run_rates}


def run(argv: list[str]) -> int:
    """Run a command; returns the exit code: 2 for what the user can mend, 3 for a run that diverged, 128 + signal."""
    try:
        with _one_line_warnings():
            return _run(argv)
    except DataMissing as error:  # lists the files, one per line
        return _fail(str(error), 2)
    except (LabError, DataError, CheckpointError) as error:
        return _fail(one_line(error), 2)
    except Diverged as error:
        return _fail(one_line(error), 3)
    except Interrupted as error:
        return _fail(one_line(error), 128 + error.signal)
    except KeyboardInterrupt:
        return _fail("stopped", 130)
    except BrokenPipeError:  # whoever read our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        return _fail(in_words(error), 2)


def _run(argv: list[str]) -> int:
    if not argv:
        argv = ["--help"]
    name = argv[0]
    if name == "--version":
        sys.stdout.write(f"fcco {__version__}, torch {torch.__version__}\n")
        return 0
    if name in HANDED_ON:
        return HANDED_ON[name](argv[1:])
    if not name.startswith("-") and name not in COMMANDS:
        known = [*COMMANDS, *HANDED_ON]
        raise LabError(f"unknown command {name!r}{nearest(name, known)}; known: {', '.join(known)}")
    if name.startswith("-"):
        name, chosen = _all_commands(argv)
    else:
        chosen = _parsed(name, argv[1:])
    COMMANDS[name].run(chosen, Console())
    return 0


def _parsed(name: str, argv: Sequence[str]) -> Any:
    command = COMMANDS[name]
    options: dict[str, Any] = {}
    if command.defaults is not None:
        options["default"] = command.defaults(argv)
    return _one_line_errors(lambda: tyro.cli(command.kind, prog=f"fcco {name}", args=argv, **options))


def _all_commands(argv: list[str]) -> tuple[str, Any]:
    """All commands at once: for --help and for shell completion."""
    handed = {name: _described(function) for name, function in HANDED_ON.items()}
    kinds: dict[str, Any] = {name: command.kind for name, command in COMMANDS.items()} | handed
    chosen = _one_line_errors(
        lambda: tyro.extras.subcommand_cli_from_dict(kinds, prog="fcco", description=DESCRIPTION, args=argv)
    )
    return next((name for name, kind in kinds.items() if isinstance(chosen, kind)), "demo"), chosen


DESCRIPTION = """Finite-sum coupled compositional optimization: train, compare, reproduce.

Shell completion: fcco --tyro-print-completion bash (or zsh, tcsh) prints the script to source."""


def _described(function: Callable[[list[str]], int]) -> type:
    """A stand-in for a command that parses its own arguments, so that the help lists it."""
    return dataclass(frozen=True)(type("Handed", (), {"__doc__": function.__doc__, "__annotations__": {}}))


def _one_line_errors(parse: Callable[[], Any]) -> Any:
    """What tyro says of wrong arguments, without its box."""
    caught = io.StringIO()
    try:
        with contextlib.redirect_stderr(caught):
            return parse()
    except SystemExit as stop:
        if stop.code in (None, 0):
            raise
        raise LabError(_unboxed(caught.getvalue())) from None


def _unboxed(text: str) -> str:
    """One line from tyro's box: its message, and the first suggestion.

    Example:
        >>> _unboxed("╭─ Value error ─╮\\n│ Error parsing --lr: │\\n│ no number │\\n│ ──── │\\n│ more │\\n╰───╯")
        'Error parsing --lr: no number'
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    boxed = "│" in plain
    lines = [line.strip("│ ") for line in plain.splitlines() if line.startswith("│") or not boxed]
    parts: list[list[str]] = [[]]
    for line in lines:
        if re.fullmatch("[-─]{4,}", line):
            parts.append([])
        elif line:
            parts[-1].append(line)
    if not boxed:  # without a border the title stands inside
        parts = parts[1:] or parts
    message = " ".join(parts[0]).split(" Got errors:")[0]
    if not message:
        message = "the command line could not be read"
    for part in parts:
        if part and part[0].startswith("Perhaps you meant"):
            return f"{message} (did you mean {part[1].split()[0]}?)"
    return message


@contextlib.contextmanager
def _one_line_warnings() -> Iterator[None]:
    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        say("warning: " + " ".join(str(message).split()))

    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("default")
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            warnings.showwarning = show
        yield


def _fail(message: str, code: int) -> int:
    say(message)
    return code


def say(message: str) -> None:
    """A line on standard error."""
    sys.stderr.write(f"fcco: {message}\n")
    sys.stderr.flush()

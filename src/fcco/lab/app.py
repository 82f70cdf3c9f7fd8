"""From the arguments of a command line to what they ask for; every failure to one line and an exit code."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import tyro
from rich.console import Console

from fcco import __version__
from fcco.lab import texts
from fcco.lab.errors import DataError, DataMissing, Diverged, Interrupted, LabError, in_words, nearest, one_line


@final
@dataclass(frozen=True)
class Command:
    """A command by the names of its parts, which are loaded when it is asked for.

    Args:
        kind: "module:class" of its typed arguments; where that is a function, it picks the class by the arguments.
        run: "module:function" of what it does; or the function.
        defaults: "module:function" from arguments to defaults (a file that a flag names).
    """

    kind: str
    run: str | Callable[[Any, Console], object]
    defaults: str | None = None


COMMANDS: dict[str, Command] = {
    "train": Command(
        "fcco.lab.train_command:train_kind", "fcco.lab.training:run_train", "fcco.lab.train_command:train_defaults"
    ),
    "predict": Command("fcco.lab.train_command:PredictCommand", "fcco.lab.predicting:run_predict"),
    "demo": Command("fcco.lab.demo.command:DemoConfig", "fcco.lab.demo.command:run_demo"),
    "data": Command("fcco.lab.commands:DataCommand", "fcco.lab.commands:run_data"),
    "methods": Command("fcco.lab.commands:MethodsCommand", "fcco.lab.commands:run_methods"),
    "objectives": Command("fcco.lab.commands:ObjectivesCommand", "fcco.lab.commands:run_objectives"),
    "report": Command("fcco.lab.commands:ReportCommand", "fcco.lab.commands:run_report"),
    "sweep": Command(
        "fcco.lab.sweeping:SweepCommand", "fcco.lab.sweeping:run_sweep", "fcco.lab.sweeping:sweep_defaults"
    ),
    "reproduce": Command("fcco.lab.reproduce:ReproduceCommand", "fcco.lab.reproduce:run_reproduce"),
    "bench": Command("fcco.lab.bench:BenchCommand", "fcco.lab.bench:run_bench"),
}
#: These parse their own arguments.
HANDED_ON: dict[str, str] = {"rates": "fcco.lab.commands:run_rates"}


_TOO_LARGE = "this does not fit into memory: take a smaller network, smaller images or smaller batches"
#: How torch says so.
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "Storage size calculation overflowed")


def run(argv: list[str]) -> int:
    """Run a command and return the exit code: 2 for what the user can mend, 3 for divergence, 128 + signal."""
    try:
        with _one_line_warnings():
            return _run(argv)
    except DataMissing as error:  # lists the files, one per line
        return _fail(str(error), 2)
    except (LabError, DataError) as error:
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
    except ValueError as error:
        if not _is_checkpoint_error(error):
            raise
        return _fail(one_line(error), 2)
    except MemoryError:
        return _fail(_TOO_LARGE, 2)
    except RuntimeError as error:
        if not any(words in str(error) for words in _OUT_OF_MEMORY):
            raise
        return _fail(_TOO_LARGE, 2)


def _is_checkpoint_error(error: Exception) -> bool:
    from fcco.checkpoint import CheckpointError

    return isinstance(error, CheckpointError)


def _run(argv: list[str]) -> int:
    name = "--help"
    if argv:
        name = argv[0]
    if name in ("--help", "-h"):
        sys.stdout.write(texts.overview() + "\n")
        return 0
    if name == "--version":
        sys.stdout.write(_version())
        return 0
    if name in HANDED_ON:
        return int(loaded(HANDED_ON[name])(argv[1:]))
    if not name.startswith("-") and name not in COMMANDS:
        known = [*COMMANDS, *HANDED_ON]
        raise LabError(f"unknown command {name!r}{nearest(name, known)}; known: {', '.join(known)}")
    if name.startswith("-"):
        name, chosen = _all_commands(argv)
    else:
        chosen = _parsed(name, argv[1:])
    loaded(COMMANDS[name].run)(chosen, Console())
    return 0


def _version() -> str:
    from importlib.metadata import version

    return f"fcco {__version__}, torch {version('torch')}\n"


def loaded(name: Any) -> Any:
    """Return what "module:attribute" names."""
    if not isinstance(name, str):
        return name
    module, attribute = name.split(":")
    return getattr(importlib.import_module(module), attribute)


def _parsed(name: str, argv: Sequence[str]) -> Any:
    command = COMMANDS[name]
    options: dict[str, Any] = {}
    if command.defaults is not None:
        options["default"] = loaded(command.defaults)(argv)
    kind = loaded(command.kind)
    if not isinstance(kind, type):
        kind = kind(argv)
    return _one_line_errors(lambda: tyro.cli(kind, prog=f"fcco {name}", args=argv, **options))


def _all_commands(argv: list[str]) -> tuple[str, Any]:
    """Parse all commands at once, for shell completion; return the command's name and settings."""
    kinds: dict[str, Any] = {}
    for name, command in COMMANDS.items():
        kind = loaded(command.kind)
        if not isinstance(kind, type):
            kind = kind([])
        kinds[name] = kind
    for name in HANDED_ON:
        kinds[name] = _described(texts.COMMANDS[name])
    chosen = _one_line_errors(lambda: tyro.extras.subcommand_cli_from_dict(kinds, prog="fcco", args=argv))
    for name, kind in kinds.items():
        if isinstance(chosen, kind):
            return name, chosen
    return "demo", chosen


def _described(what: str) -> type:
    """Return a stand-in for a command that parses its own arguments, so that completion lists it."""
    return dataclass(frozen=True)(type("Handed", (), {"__doc__": what, "__annotations__": {}}))


def _one_line_errors(parse: Callable[[], Any]) -> Any:
    """Parse, and raise what tyro says of wrong arguments as one line without its box."""
    caught = io.StringIO()
    try:
        with contextlib.redirect_stderr(caught):
            return parse()
    except SystemExit as stop:
        if stop.code in (None, 0):
            raise
        raise LabError(_unboxed(caught.getvalue())) from None


def _unboxed(text: str) -> str:
    """Return one line from tyro's box: its message, and the first suggestion.

    Example:
        >>> _unboxed("╭─ Value error ─╮\\n│ Error parsing --lr: │\\n│ no number │\\n│ ──── │\\n│ more │\\n╰───╯")
        'Error parsing --lr: no number'
    """
    parts = _parts_of_box(re.sub(r"\x1b\[[0-9;]*m", "", text))
    message = " ".join(parts[0]).split(" Got errors:")[0]
    if not message:
        message = "the command line could not be read"
    missing = re.match(r"Missing from (fcco [\w-]+): ", message)
    if missing is not None:
        names = re.findall(r"(\S+) .*?\(required\)", message[missing.end() :])
        return f"missing: {', '.join(names)}; see `{missing.group(1)} --help`"
    for part in parts:
        if part and part[0].startswith("Perhaps you meant"):
            return f"{message} (did you mean {part[1].split()[0]}?)"
    return message


def _parts_of_box(text: str) -> list[list[str]]:
    """Return the lines of tyro's box between its rules."""
    boxed = "│" in text
    parts: list[list[str]] = [[]]
    for raw in text.splitlines():
        if boxed and not raw.startswith("│"):
            continue
        line = raw.strip("│ ")
        if re.fullmatch("[-─]{4,}", line):
            parts.append([])
        elif line:
            parts[-1].append(line)
    if not boxed and len(parts) > 1:  # without a border the title stands inside
        return parts[1:]
    return parts


@contextlib.contextmanager
def _one_line_warnings() -> Iterator[None]:
    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        words = str(message).split()
        say(f"warning: {' '.join(words)}")

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
    """Write a line on standard error."""
    sys.stderr.write(f"fcco: {message}\n")
    sys.stderr.flush()

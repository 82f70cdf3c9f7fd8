"""`fcco predict`: scores and probabilities of new data, by a run's model."""

from __future__ import annotations

import csv
import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from rich.console import Console
from torch import Tensor

from fcco.fitting import load_result
from fcco.lab.datasets.folder import read_folder
from fcco.lab.datasets.npz import as_examples, open_npz
from fcco.lab.datasets.table import Table, read_table, row_numbers
from fcco.lab.errors import LabError, refusing
from fcco.lab.evaluate import scores
from fcco.lab.files import read_json, write_aside
from fcco.lab.machine import thread_count
from fcco.lab.train_command import PredictCommand
from fcco.lab.weights import Inputs, load_model, read_inputs


@final
@dataclass(frozen=True, eq=False)
class New:
    """New data.

    Args:
        x: (N, ...) as the network takes them.
        named: columns that say which row is which, by name; they go into the table of scores.
        ignored: columns that the training table did not have.
    """

    x: Tensor
    named: dict[str, list[Any]]
    ignored: list[str]


def run_predict(command: PredictCommand, console: Console) -> None:
    """Write a table of scores."""
    if not command.run.is_dir():
        raise LabError(f"there is no run in {command.run}: give the folder that `fcco train` wrote")
    _check_finished(command.run)
    if command.out.is_dir():
        raise LabError(f"--out must be a file, but {command.out} is a folder")
    if command.out.exists() and command.data.exists() and command.out.samefile(command.data):
        raise LabError(f"--out must not be the data file, got {command.out} for both")
    inputs = read_inputs(command.run)
    with refusing(), thread_count(0, small=True):
        new = read_new(inputs, command.data)
        columns = predicted(command.run, inputs, new.x)
    if new.ignored:
        console.print(f"ignored, since the training table had no such column: {', '.join(new.ignored)}", soft_wrap=True)
    write_table(command.out, new.named | columns)
    probabilities = "without probabilities: the run was not calibrated"
    if any(name.startswith("probability") for name in columns):
        probabilities = f"with probabilities{_of_what(inputs)}"
    console.print(f"{len(new.x)} rows scored, {probabilities}  ->  {command.out}", highlight=False, soft_wrap=True)


def _of_what(inputs: Inputs) -> str:
    """Of which class the one probability is; nothing where columns of several say so."""
    described = inputs.described
    if described["negative"] is None:
        return ""
    if described["roles"]:
        return f" of {described['roles'][0]} = {described['outputs'][0]}"
    return f" of {described['outputs'][0]}"


def _check_finished(run: Path) -> None:
    if not (run / "config.json").exists():
        return
    status = run / "status.json"
    if not status.exists() or read_json(status).get("status") not in ("finished", None):
        raise LabError(f"the run in {run} is not finished; resume it with: fcco train --resume {run}")


# ------------------------------------------------------------------ new data


def read_new(inputs: Inputs, path: Path) -> New:
    """Read data as the run's network takes them."""
    if not path.exists():
        raise LabError(f"{path} does not exist")
    if inputs.encoder is not None:
        words = {levels.name for levels in inputs.encoder.categories} | set(inputs.described["drop"])
        with warnings.catch_warnings():
            # A word among numbers is an error of its own here, or stands in a column that is not looked at.
            warnings.filterwarnings("ignore", message=".*is read as words")
            table = read_table(path, words)
        return _from_table(inputs, table)
    shape = tuple(inputs.described["in_shape"])
    if path.is_dir():
        if not inputs.described["images"]:
            raise LabError(f"{path} is a folder, but the run was trained on arrays of shape {shape}: pass an .npz")
        files, x = read_folder(path, size=(shape[1], shape[2]), channels=shape[0])
        return New(x, {"file": files}, [])
    if path.suffix != ".npz":
        raise LabError(f"{path} must be a folder of images or an .npz with an array x")
    return New(_from_npz(path, shape), {}, [])


def _from_npz(path: Path, shape: tuple[int, ...]) -> Tensor:
    """Read the array x, or else x_test, whose examples must have this shape."""
    arrays = open_npz(path)
    if "x" in arrays:
        key = "x"
    elif "x_test" in arrays:
        key = "x_test"
    else:
        raise LabError(f"{path} must hold an array x, got {', '.join(arrays)}")
    x = as_examples(arrays[key], f"{path.name}: {key}")
    if tuple(x.shape[1:]) != shape:
        raise LabError(f"{path.name}: {key} must hold examples of shape {shape}, got {tuple(x.shape[1:])}")
    return x


def _from_table(inputs: Inputs, table: Table) -> New:
    assert inputs.encoder is not None
    x = inputs.encoder.transform(table.columns, ignore_extra=True)
    known = {*inputs.encoder.columns, *inputs.described["roles"], *inputs.described["drop"], *row_numbers(table)}
    ignored = [name for name in table.columns if name not in known]
    named = {}
    for name in inputs.described["drop"]:
        if name in table.columns:
            named[name] = table.columns[name].tolist()
    return New(x, named, ignored)


# ------------------------------------------------------------------ scores


def predicted(run: Path, inputs: Inputs, x: Tensor) -> dict[str, list[Any]]:
    """Return the columns of scores, and of probabilities where the run was calibrated."""
    probabilities = None
    if (run / "model.safetensors").exists():
        result = load_result(run, inputs.model)
        found = result.predict(x)
        if result.calibration is not None:
            probabilities = result.calibration(found)
    else:
        found = scores(load_model(run), x)
    names = inputs.described["outputs"]
    columns = _columns("score", names, found)
    if probabilities is not None:
        columns |= _columns("probability", names, probabilities)
    return columns


def _columns(what: str, names: list[str], values: Tensor) -> dict[str, list[Any]]:
    """Return one column per output; a single one is not named after its output."""
    matrix = values.detach().cpu()
    if matrix.dim() == 1:
        matrix = matrix.unsqueeze(1)
    if not bool(torch.isfinite(matrix).all()) and what == "score":
        raise LabError("the model returned scores that are not finite")
    if matrix.shape[1] == 1:
        return {what: matrix[:, 0].tolist()}
    if matrix.shape[1] != len(names):
        names = [str(place) for place in range(matrix.shape[1])]
    return {f"{what} {name}": matrix[:, place].tolist() for place, name in enumerate(names)}


def write_table(path: Path, columns: dict[str, list[Any]]) -> None:
    """Write a CSV file, whole or not at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    if path.parent != Path():
        path.parent.mkdir(parents=True, exist_ok=True)
    write_aside(path, text.getvalue())

"""FitResult: the model that a fit chose, and what may be done with it."""

from __future__ import annotations

import copy
import json
import math
import os
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from fcco.data import Points, Structure
from fcco.data._pass import cast
from fcco.data._source import _flat, source_of
from fcco.fitting._calibration import Calibration, calibrated
from fcco.fitting._data import Reading, as_structure, check_finite, check_shape
from fcco.fitting._goal import Goal
from fcco.fitting._scoring import dtype_of, score
from fcco.fitting._search import Choice, Search
from fcco.fitting._trial import Trial, Weights

FORMAT = "fcco fit"
VERSION = 1
WEIGHTS_FILE = "model.safetensors"
DESCRIPTION_FILE = "fit.json"


@final
@dataclass
class FitResult:
    """A trained model, and how it was found.

    Attributes:
        model: the chosen network, in evaluation mode.
        metric: what it was chosen by, in words.
        value: the metric on the validation data; NaN if there were none.
        interval: its 95 % bootstrap interval, not corrected for choosing the model on the same data.
        plain_value: the metric of the best plain-loss model, which was among the candidates.
        chosen: the name of what was chosen.
        setting: its setting, on one line.
        trials: one row per trial: name, setting, examples, value, whether it was chosen.
        history: one row per validation: trial, examples, value, loss.
        examples: the number that went through the network in training, over all trials; with BatchNorm also
            those that renewed its statistics for averaged weights.
        validation: the validation data.
        calibration: from scores to probabilities, after :meth:`calibrate`.
        precision: the precision of the network, "fp32" or "bf16".
        goal: the metric, as :class:`Goal`.
        plain_weights: weights of the best plain-loss model.
        labels: how the training labels were read; :meth:`evaluate` and :meth:`calibrate` read others in the same way.
    """

    model: nn.Module = field(repr=False)
    metric: str
    value: float
    interval: tuple[float, float]
    plain_value: float
    chosen: str
    setting: str
    trials: list[dict[str, Any]] = field(repr=False)
    history: list[dict[str, Any]] = field(repr=False)
    examples: int
    precision: str = "fp32"
    goal: Goal | None = field(default=None, repr=False)
    validation: Structure | None = field(default=None, repr=False)
    calibration: Calibration | None = field(default=None, repr=False)
    plain_weights: Weights = field(default_factory=dict, repr=False)
    labels: Reading = field(default_factory=Reading, repr=False)

    @property
    def classes(self) -> tuple[Any, ...] | None:
        """The names of the classes; None: y had none."""
        return self.labels.classes or None

    def predict(self, x: Any, *, num_workers: int = 0) -> Tensor:
        """Score new examples, (N,) or (N, T). Higher means more likely positive (or more relevant, or earlier).

        Args:
            x: as in training: tensors, arrays, a tuple or a dict of them, or a data set. NaN is refused, as there.
            num_workers: processes that fetch from a data set.
        """
        source = source_of(x)
        if source.size == 0:
            raise ValueError("x must hold at least one example, got none")
        check_finite(source)
        outputs = score(self.model, source, precision=self.precision, num_workers=num_workers)
        if outputs.dim() == 2 and outputs.shape[1] == 1:
            return outputs.squeeze(1)
        return outputs

    def calibrate(self, method: Literal["isotonic", "platt"] = "isotonic", *, data: Any = None) -> FitResult:
        """Learn on the validation data how scores become probabilities, for :meth:`predict_proba`.

        Args:
            method: "isotonic" (any increasing function; needs a few hundred positives), or "platt" (a sigmoid).
            data: (x, y) or Points to learn from. None: the validation data.
        """
        labelled = self.validation
        if data is not None:
            labelled = as_structure(data, Goal("roc_auc"), self.labels)
        if not isinstance(labelled, Points):
            raise ValueError("there are no labels to calibrate on: pass data=(x, y)")
        outputs = self._scored(labelled)
        found = calibrated(outputs, labelled, method)
        if all(label is None for label in found.labels):
            raise ValueError("data must have positives and negatives of at least one label to calibrate on")
        self.calibration = found
        return self

    def predict_proba(self, x: Any, *, num_workers: int = 0) -> Tensor:
        """Probabilities of the positive label (N,), of each label (N, T), or of each class (N, C).

        Args:
            x: as of :meth:`predict`.
            num_workers: processes that fetch from a data set.
        """
        if self.calibration is None:
            raise RuntimeError("probabilities need result.calibrate() first")
        return self.calibration(self.predict(x, num_workers=num_workers))

    def evaluate(self, data: Any, *, seed: int = 0) -> tuple[float, tuple[float, float]]:
        """Return the metric on other data, with its 95 % bootstrap interval.

        Args:
            data: the data, in the form that ``fit`` took.
            seed: seed of the bootstrap.
        """
        if self.goal is None:
            raise RuntimeError("this result does not know its metric")
        structure = as_structure(data, self.goal, self.labels)
        outputs = self._scored(structure)
        value = self.goal.value(outputs, structure)
        if math.isnan(value):
            warnings.warn(self.goal.undefined(structure), stacklevel=2)
        return value, self.goal.interval(outputs, structure, seed=seed)

    def _scored(self, data: Structure) -> Tensor:
        """What the model says of data whose labels are like those in training."""
        outputs = score(self.model, data.source, precision=self.precision)
        check_shape(tuple(outputs.shape), data.num_examples, data)
        return outputs

    def plain_model(self) -> nn.Module:
        """The best plain-loss model, for a comparison."""
        model = copy.deepcopy(self.model)
        model.load_state_dict(self.plain_weights)
        return model

    def summary(self) -> str:
        """Return a table of what was tried and what was chosen."""
        lines = [f"{'trial':<12} {'examples':>10} {self.metric:>20}  setting"]
        for row in self.trials:
            mark = ""
            if row["chosen"]:
                mark = "  <- chosen"
            value = f"{row['value']:.4f}"
            if row["failure"]:
                value = "failed"
            lines.append(f"{row['trial']:<12} {row['examples']:>10,} {value:>20}  {row['setting']}{mark}")
        low, high = self.interval
        found = "without a validation part"
        if self.value == self.value:
            value = f"{self.metric} {self.value:.4f} (95 % {low:.4f} to {high:.4f})"
            found = f"{value}; plain loss alone {self.plain_value:.4f}"
        lines.append(f"chosen: {self.chosen}: {found}")
        if self.chosen.startswith("average"):
            lines.append("why: no single trial, the plain ones among them, is better by more than a standard error")
        lines.append(f"{self.examples:,} examples went through the network")
        return "\n".join(lines)

    # ------------------------------------------------------------------ files

    def save(self, folder: str | os.PathLike[str], **more: Any) -> None:
        """Write the weights (safetensors) and a description (JSON) into a folder.

        Args:
            folder: where to write. It is created if it does not exist.
            more: further plain values for the description.
        """
        from safetensors.torch import save_file

        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        tensors = {name: value.detach().cpu().contiguous() for name, value in self.model.state_dict().items()}
        aside = target / f".{WEIGHTS_FILE}.{os.getpid()}"
        save_file(_without_sharing(tensors), aside, metadata={"format": "pt"})
        os.replace(aside, target / WEIGHTS_FILE)
        text = json.dumps(self.describe() | more, indent=1)
        aside = target / f".{DESCRIPTION_FILE}.{os.getpid()}"
        aside.write_text(text + "\n")
        os.replace(aside, target / DESCRIPTION_FILE)

    def describe(self) -> dict[str, Any]:
        """Everything but the weights, as plain values."""
        goal = None
        if self.goal is not None:
            goal = asdict(self.goal)
        calibration = None
        if self.calibration is not None:
            calibration = self.calibration.describe()
        classes = None
        if self.labels.classes is not None:
            classes = [_plain(name) for name in self.labels.classes]
        return {
            "format": FORMAT,
            "version": VERSION,
            "metric": self.metric,
            "goal": goal,
            "value": _number(self.value),
            "interval": [_number(end) for end in self.interval],
            "plain_value": _number(self.plain_value),
            "chosen": self.chosen,
            "setting": self.setting,
            "examples": self.examples,
            "precision": self.precision,
            "classes": classes,
            "positive": _plain(self.labels.positive),
            "label_columns": list(self.labels.columns),
            "trials": [{key: _number(value) for key, value in row.items()} for row in self.trials],
            "history": [{key: _number(value) for key, value in row.items()} for row in self.history],
            "calibration": calibration,
        }

    def export(self, path: str | os.PathLike[str], example: Any) -> None:
        """Write the network for use without fcco: ONNX (``.onnx``) or torch.export (``.pt2``).

        Args:
            path: the file. Its ending chooses the format.
            example: a few rows of x. The number of rows stays free.
        """
        target = Path(path)
        if target.suffix not in (".onnx", ".pt2"):
            raise ValueError(f"path must end in .onnx or .pt2, got {target.name!r}")
        model = copy.deepcopy(self.model).cpu().eval()
        source = source_of(example)
        # Two rows, since torch would take one row for a size that never changes.
        rows_taken = torch.arange(2) % source.size
        inputs = cast(source.take(rows_taken), dtype_of(model))
        rows = torch.export.Dim("rows", min=1)
        arguments: tuple[Tensor, ...] = ()
        named: dict[str, Tensor] = {}
        shapes: Any
        if isinstance(inputs, dict):
            named = inputs
            shapes = {name: {0: rows} for name in named}
        else:
            arguments = tuple(_flat(inputs))
            shapes = tuple({0: rows} for _ in arguments)
        program = torch.export.export(model, arguments, named, dynamic_shapes=shapes)
        if target.suffix == ".pt2":
            torch.export.save(program, target)
        else:
            torch.onnx.export(program, f=target, dynamo=True, external_data=False, verbose=False)


def load_result(folder: str | os.PathLike[str], model: nn.Module) -> FitResult:
    """Read what :meth:`FitResult.save` wrote, without executing anything in the files.

    Args:
        folder: the folder.
        model: a network of the same architecture. Its weights are replaced.
    """
    from safetensors.torch import load_file

    source = Path(folder)
    description = json.loads((source / DESCRIPTION_FILE).read_text())
    if description.get("format") != FORMAT or description.get("version") != VERSION:
        raise ValueError(f"{source} does not hold a fit of this version of fcco")
    try:
        model.load_state_dict(load_file(source / WEIGHTS_FILE))
    except RuntimeError as error:
        said = " ".join(str(error).split())
        raise ValueError(f"model must have the architecture of the one in {source}: {said:.300}") from error
    goal = None
    if description["goal"] is not None:
        goal = Goal(**description["goal"])
    calibration = None
    if description["calibration"] is not None:
        calibration = Calibration.from_description(description["calibration"])
    classes = None
    if description["classes"] is not None:
        classes = tuple(description["classes"])
    low, high = [_or_nan(end) for end in description["interval"]]
    return FitResult(
        model=model.eval(),
        metric=description["metric"],
        value=_or_nan(description["value"]),
        interval=(low, high),
        plain_value=_or_nan(description["plain_value"]),
        chosen=description["chosen"],
        setting=description["setting"],
        trials=[_with_nan(row) for row in description["trials"]],
        history=[_with_nan(row) for row in description["history"]],
        examples=description["examples"],
        precision=description["precision"],
        goal=goal,
        calibration=calibration,
        labels=Reading(classes, description.get("positive"), tuple(description.get("label_columns", ()))),
    )


def result_of(search: Search, choice: Choice) -> FitResult:
    """The result of a search that has settled on something."""
    problem = search.problem
    model = search.network(choice.weights).eval()
    interval = (float("nan"), float("nan"))
    if problem.valid is not None:
        outputs = score(model, problem.valid.source, precision=problem.precision, num_workers=problem.num_workers)
        interval = problem.goal.interval(outputs, problem.valid, seed=problem.seed)
    plain = [trial for trial in search.trials.values() if trial.setting.objective == "plain"]
    best_plain = max(plain, key=lambda trial: trial.value)
    assert best_plain.best is not None
    labels = Reading.of(problem.train)
    return FitResult(
        model=model,
        metric=problem.goal.describe(),
        value=choice.value,
        interval=interval,
        plain_value=best_plain.value,
        chosen=choice.name,
        setting=choice.setting.describe(),
        trials=[_row(trial, choice) for trial in search.trials.values()],
        history=[row for trial in search.trials.values() for row in _history(trial)],
        examples=search.examples,
        precision=problem.precision,
        goal=problem.goal,
        validation=problem.valid,
        plain_weights=best_plain.best,
        labels=labels,
    )


def _row(trial: Trial, choice: Choice) -> dict[str, Any]:
    return {
        "trial": trial.name,
        "setting": trial.setting.describe(),
        "examples": trial.seen,
        "value": trial.value,
        "failure": trial.failure,
        "chosen": trial.name in choice.name.split(),
    }


def _history(trial: Trial) -> list[dict[str, Any]]:
    rows = []
    for check in trial.checks:
        rows.append({"trial": trial.name, **check._asdict()})
    return rows


def _number(value: Any) -> Any:
    """None in the place of what JSON has no word for."""
    if isinstance(value, float) and not -float("inf") < value < float("inf"):
        return None
    return value


def _plain(value: Any) -> Any:
    """A label as JSON takes it: a number of NumPy or torch as Python's own."""
    if hasattr(value, "item"):
        return value.item()
    return value


def _with_nan(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a table as it was, NaN in the place of what JSON had no word for."""
    return {key: _or_nan(value) if key in ("value", "loss") else value for key, value in row.items()}


def _or_nan(value: float | None) -> float:
    if value is None:
        return float("nan")
    return value


def _without_sharing(tensors: Weights) -> Weights:
    """Tied weights as copies: safetensors holds no two tensors of one memory."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        if tensor.data_ptr() in seen:
            tensor = tensor.clone()
        seen.add(tensor.data_ptr())
        apart[name] = tensor
    return apart

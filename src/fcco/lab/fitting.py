"""`fcco.fit` in a folder: data from disk, a test part apart, everything that is needed to go on or to predict."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fcco.data import Groups, Queries, RiskSets, Structure, Tasks
from fcco.fitting import Callback, FitResult, TensorBoard, fit
from fcco.lab.config import FitConfig, check_fit
from fcco.lab.errors import Diverged, Interrupted, LabError, one_line, refusing, writing
from fcco.lab.files import finite, write_aside, write_json
from fcco.lab.loaded import Loaded, load
from fcco.lab.machine import pick_device, thread_count
from fcco.lab.runs import RunFolder, environment
from fcco.lab.weights import INPUTS_FILE, Prepared, describe_inputs, new_model

ENOUGH_POSITIVES = 200  # for an isotonic calibration
METRICS_FILE = "metrics.json"
HISTORY_FILE = "history.jsonl"


def fit_in(config: FitConfig, path: Path, *, resume: bool = False, callbacks: tuple[Callback, ...] = ()) -> FitResult:
    """Carry out `fcco.fit` in a folder.

    Args:
        config: what; where a run is resumed, the one from its folder.
        path: the run's folder.
        resume: go on with the run in it.
        callbacks: told how it goes.

    Raises:
        LabError: where something is the user's to mend.
        Interrupted: after Ctrl-C, once everything is saved.
        Diverged: where no trial gave finite scores.
    """
    check_fit(config)
    with thread_count(config.threads, small=config.model in (None, "linear", "mlp")):
        with refusing():
            data = load(config)
            metric = metric_of(config, data.train)
            device = pick_device(config.device)
            settings = network_settings(config, data)
            torch.manual_seed(config.seed)
            model = new_model(settings, data)
        folder = RunFolder(path)
        try:
            if resume:
                folder.lock()
                folder.check_data(data.sha256)
            else:
                folder.start(config, environment(device, str(data), data.sha256))
            result = _fit(config, folder, data, metric, model, callbacks)
            _keep(config, folder, data, settings, result)
            return result
        finally:
            folder.release()


def metric_of(config: FitConfig, data: Structure) -> str:
    """Return the metric that is named, or that the data are for."""
    natural = "average_precision"
    for kind, name in ((Queries, "ndcg"), (RiskSets, "concordance"), (Groups, "worst_group")):
        if isinstance(data, kind):
            natural = name
    if config.metric is None:
        return natural
    needed = {"ndcg": "--query", "concordance": "--time and --event", "worst_group": "--group"}
    if natural != "average_precision" and config.metric != natural:
        raise LabError(f"--metric {config.metric} is for labels; with {needed[natural]} it is {natural}")
    if natural == "average_precision" and config.metric in needed:
        raise LabError(f"--metric {config.metric} needs {needed[config.metric]}: columns of a table")
    return config.metric


def network_settings(config: FitConfig, data: Loaded) -> dict[str, Any]:
    """Return what the network is made from."""
    model = config.model
    if model is None and data.encoder is not None:
        model = "table"
    elif model is None:
        model = "mlp"
    return {
        "model": model,
        "outputs": data.num_classes,
        "hidden": list(config.hidden),
        "stem": config.stem,
        "dropout": 0.25,
    }


def _fit(
    config: FitConfig,
    folder: RunFolder,
    data: Loaded,
    metric: str,
    model: Prepared,
    callbacks: tuple[Callback, ...],
) -> FitResult:
    folder.status.unlink(missing_ok=True)
    told = list(callbacks)
    if config.tensorboard:
        told.append(TensorBoard(str(folder.path / "tensorboard")))
    try:
        with refusing():
            return fit(
                model,
                data.train,
                metric,
                validation=config.validation,
                max_fpr=config.max_fpr,
                min_tpr=config.min_tpr,
                k=config.k,
                epochs=config.epochs,
                batch_size=config.batch_size,
                seed=config.seed,
                device=pick_device(config.device),
                precision=config.precision,
                callbacks=told,
                progress=False,
                checkpoint=folder.checkpoint,
            )
    except KeyboardInterrupt:
        folder.end("interrupted", "stopped by a signal")
        raise Interrupted(signal.SIGINT, f"stopped and saved; resume with: fcco train --resume {folder.path}") from None
    except LabError as error:
        if folder.checkpoint.exists():
            folder.end("failed", one_line(error))
        else:
            folder.forget()
        raise
    except RuntimeError as error:
        folder.end("diverged", one_line(error))
        raise Diverged(f"the model in {folder.path} gave scores that are not finite: {one_line(error)}") from error


# ------------------------------------------------------------------ what is left behind


def _keep(config: FitConfig, folder: RunFolder, data: Loaded, settings: dict[str, Any], result: FitResult) -> None:
    """Calibrate, test, and write it all down."""
    calibrated = _calibrate(config, result)
    measured = measure(result, data.test)
    measured["calibration"] = calibrated
    measured["chosen"] = result.chosen
    measured["setting"] = result.setting
    with writing(folder.path):
        result.model.cpu()
        result.save(folder.path)
    write_json(folder.path / INPUTS_FILE, describe_inputs(settings, data, config))
    write_json(folder.path / METRICS_FILE, measured)
    rows = [json.dumps(finite(row)) + "\n" for row in result.history]
    write_aside(folder.path / HISTORY_FILE, "".join(rows))
    folder.end("finished", f"{result.examples} examples")


def _calibrate(config: FitConfig, result: FitResult) -> str | None:
    """Learn probabilities where the data have labels, and return by which method."""
    if config.calibrate == "none" or result.goal is None or result.validation is None:
        return None
    if result.goal.metric in ("ndcg", "concordance", "worst_group"):
        return None
    method = config.calibrate
    if method == "auto":
        method = "platt"
        if _fewest_positives(result.validation) >= ENOUGH_POSITIVES:
            method = "isotonic"
    result.calibrate(method)
    return method


def _fewest_positives(data: Any) -> int:
    """Return how many positives the rarest label of the validation part has."""
    y = data.y
    if data.classes is not None:
        counts = y[y >= 0].bincount(minlength=len(data.classes))
    else:
        counts = (y == 1).sum(0)
    return int(counts.min())


def measure(result: FitResult, test: Structure) -> dict[str, Any]:
    """Return the metric on the test part with its interval, and the plain loss's; for labels AUROC and AP too."""
    test = test.to(next(result.model.parameters()).device)
    plain = replace(result, model=result.plain_model())
    measured: dict[str, Any] = {
        "metric": result.metric,
        "test": _measured(result, test),
        "test_plain_loss": _measured(plain, test),
        "validation": {"value": result.value, "interval": list(result.interval)},
        "validation_plain_loss": {"value": result.plain_value},
        "test_examples": test.num_examples,
        "test_positives": _positives(test),
    }
    if isinstance(test, Tasks):
        assert result.goal is not None
        for metric in ("roc_auc", "average_precision"):
            other = replace(result, goal=replace(result.goal, metric=metric))
            measured[f"test_{metric}"] = _measured(other, test)["value"]
    return measured


def _positives(test: Structure) -> int | None:
    """Return how many examples of a single label are positive; None: there are several labels, or none."""
    if not isinstance(test, Tasks) or test.num_tasks != 1:
        return None
    return int((test.y == 1).sum())


def _measured(result: FitResult, test: Structure) -> dict[str, Any]:
    value, interval = result.evaluate(test)
    return {"value": value, "interval": list(interval)}

"""Baselines on the same network, batch size and samples: cross-entropy with SGD, and LibAUC's AUCM with PESG."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.figures.runs import Row, Run, macro_auroc, marks, rounded, scores, surroundings
from fcco.lab.config import TrainConfig
from fcco.lab.datasets import Dataset
from fcco.lab.loaded import load_dataset
from fcco.lab.parts import network_settings
from fcco.lab.weights import Prepared, network, scaling

Loss = Callable[[Tensor, Tensor], Tensor]  # scores (K, m), classes (K,) -> ()


def train_baseline(run: Run) -> Row:
    """Train; ``f`` on the curve is 1 - macro AUROC on the training examples that F is drawn on elsewhere.

    That is what baselines are tuned by: AUCM's own value is that of a saddle, and says little by itself.
    """
    config = run.config
    device = torch.device(config.device)
    data = load_dataset(config.dataset)
    torch.manual_seed(config.seed)
    mean, spread = scaling(data.x_train)
    model = Prepared(network(network_settings(config, data.num_classes), data.in_shape), mean, spread).to(device)
    x = data.x_train.to(device)
    y = data.y_train.to(device)
    loss, optimizer = _parts(run, model, data.num_classes, device)
    part = _part(config, len(x)).to(device)
    curve: dict[str, list[Any]] = {
        name: [] for name in ("step", "samples", "charged_n", "oracle", "network", "seconds", "f")
    }
    batches = _draws(len(x), _batch_size(config), config.seed, device)
    seconds = 0.0
    step = 0
    _append(curve, config, step, seconds, 1.0 - _auroc(run, model, x[part], y[part]))
    for mark in marks(run.steps, run.points, None):
        began = time.perf_counter()
        while step < mark:
            some = next(batches)
            optimizer.zero_grad(set_to_none=True)
            loss(model(x[some]), y[some]).backward()
            optimizer.step()
            step += 1
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds += time.perf_counter() - began
        value = 1.0 - _auroc(run, model, x[part], y[part])
        _append(curve, config, step, seconds, value)
        if not math.isfinite(value):
            break
    return _row(run, curve, model, data, device)


def _row(run: Run, curve: dict[str, list[Any]], model: nn.Module, data: Dataset, device: torch.device) -> Row:
    row: Row = {
        "status": "finished",
        "message": "",
        "curve": curve,
        "f": curve["f"][-1],
        "f_whole": None,
        "f_eval": None,
        "auroc": None,
        "optimum": None,
        "pass_evaluations": 0,
        "environment": surroundings(device, data),
    }
    if row["f"] is None:
        row["status"] = "diverged"
        return row
    row["auroc"] = _auroc(run, model, data.x_test.to(device), data.y_test.to(device))
    return row


def _parts(run: Run, model: nn.Module, classes: int, device: torch.device) -> tuple[Loss, torch.optim.Optimizer]:
    """The loss and its optimizer."""
    config = run.config
    assert config.lr is not None
    momentum = 1.0 - (config.alpha or 1.0)
    if run.trainer == "cross-entropy":
        optimizer = torch.optim.SGD(
            model.parameters(), lr=config.lr, momentum=momentum, weight_decay=config.weight_decay
        )  # fmt: skip
        return nn.functional.cross_entropy, optimizer
    from libauc.losses import MultiLabelAUCMLoss  # an error here is the run's row
    from libauc.optimizers import PESG

    multi_label = MultiLabelAUCMLoss(margin=config.margin, num_labels=classes, device=device)
    pesg = PESG(
        model.parameters(), loss_fn=multi_label, lr=config.lr, momentum=momentum,
        weight_decay=config.weight_decay, epoch_decay=0.0, device=device, verbose=False,
    )  # fmt: skip

    def aucm(h: Tensor, y: Tensor) -> Tensor:
        target = nn.functional.one_hot(y, classes).float()
        value: Tensor = multi_label(h.sigmoid(), target)
        return value

    return aucm, pesg


def _batch_size(config: TrainConfig) -> int:
    return (config.blocks or 1) * config.samples


def _part(config: TrainConfig, n: int) -> Tensor:
    """The examples that the curve is drawn on, by the seed as elsewhere."""
    generator = torch.Generator().manual_seed(config.seed)
    return torch.randperm(n, generator=generator)[: config.eval_examples or n]


def _draws(n: int, size: int, seed: int, device: torch.device) -> Iterator[Tensor]:
    """Batches without replacement, epoch after epoch."""
    generator = torch.Generator(device).manual_seed(seed)
    while True:
        order = torch.randperm(n, generator=generator, device=device)
        for at in range(0, n - size + 1, size):
            yield order[at : at + size]


def _auroc(run: Run, model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Macro AUROC in evaluation mode; nan where scores are not finite."""
    found = scores(model, x)
    if run.trainer == "cross-entropy":
        found = found.softmax(1)  # logits are known up to a number per example
    if not bool(found.isfinite().all()):
        return math.nan
    return macro_auroc(found, y)


def _append(curve: dict[str, list[Any]], config: TrainConfig, step: int, seconds: float, value: float) -> None:
    drawn = step * _batch_size(config)
    point = {
        "step": step,
        "samples": drawn,
        "charged_n": drawn,
        "oracle": 2 * drawn,
        "network": drawn,
        "seconds": round(seconds, 3),
        "f": rounded(value),
    }
    for name, number in point.items():
        curve[name].append(number)

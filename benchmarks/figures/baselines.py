"""Baselines on the same network, batch size and samples: cross-entropy with SGD, and LibAUC's AUCM with PESG."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.figures.runs import Row, Run, macro_auroc, marks, rounded, scores
from fcco.lab.config import TrainConfig
from fcco.lab.parts import load_data
from fcco.lab.runs import environment
from fcco.lab.weights import Prepared, network, scaling

Loss = Callable[[Tensor, Tensor], Tensor]  # scores (K, m), classes (K,) -> ()


def train_baseline(run: Run) -> Row:
    """Train; ``f`` on the curve is the baseline's own loss on the examples that F is drawn on elsewhere."""
    config = run.config
    device = torch.device(config.device)
    data = load_data(config.dataset)
    torch.manual_seed(config.seed)
    mean, spread = scaling(data.x_train)
    model = Prepared(network(config, data.in_shape, data.num_classes), mean, spread).to(device)
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
    _append(curve, config, step, seconds, _own_loss(model, loss, x[part], y[part], _batch_size(config)))
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
        value = _own_loss(model, loss, x[part], y[part], _batch_size(config))
        _append(curve, config, step, seconds, value)
        if not math.isfinite(value):
            break
    return _row(run, curve, model, data, device)


def _row(run: Run, curve: dict[str, list[Any]], model: nn.Module, data: Any, device: torch.device) -> Row:
    row: Row = {
        "status": "finished",
        "message": "",
        "curve": curve,
        "f": curve["f"][-1],
        "f_whole": None,
        "auroc": None,
        "optimum": None,
        "pass_evaluations": 0,
        "environment": environment(device, str(data), data.sha256),
    }
    if row["f"] is None:
        row["status"] = "diverged"
        return row
    found = scores(model, data.x_test.to(device))
    if run.trainer == "cross-entropy":
        found = found.softmax(1)  # logits are known up to a number per example
    row["auroc"] = macro_auroc(found, data.y_test.to(device))
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
    from libauc.losses import AUCM_MultiLabel  # an error here is the run's row
    from libauc.optimizers import PESG

    multi_label = AUCM_MultiLabel(num_classes=classes, device=device)
    pesg = PESG(
        model.parameters(), loss_fn=multi_label, lr=config.lr, momentum=momentum, margin=config.margin,
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


@torch.no_grad()
def _own_loss(model: nn.Module, loss: Loss, x: Tensor, y: Tensor, size: int) -> float:
    """Mean over batches as large as those of training, in evaluation mode."""
    model.eval()
    values = []
    for part, classes in zip(x.split(size), y.split(size), strict=True):
        values.append(loss(model(part), classes) * len(part))
    model.train()
    return float(torch.stack(values).sum()) / len(x)


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

"""LibAUC's average precision step, where LibAUC can be imported."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
from typing import Any

import torch
from torch import Tensor, nn

from fcco.lab.bench.literal import Rates, repeated
from fcco.lab.bench.timing import Steps, quiet


@functools.cache
def there_is_libauc() -> bool:
    """Whether its losses and optimizers can be imported."""
    try:
        _parts()
    except ImportError:
        return False
    return True


@functools.cache
def _parts() -> tuple[Any, Any]:
    """Its losses and its optimizers; it warns and prints on the way."""
    with quiet(), contextlib.redirect_stdout(io.StringIO()):
        return importlib.import_module("libauc.losses"), importlib.import_module("libauc.optimizers")


def libauc_steps(model: nn.Module, y: Tensor, positives: int, others: int, rates: Rates) -> Steps:
    """APLoss and SOAP on batches with a fixed number of positives.

    Args:
        model: maps example numbers (K,) to scores (K,).
        y: (N,) 0/1.
        positives: per batch.
        others: per batch.
        rates: gamma is beta.

    Raises:
        ImportError: where LibAUC is not there.
    """
    losses, optimizers = _parts()
    device = y.device
    generator = torch.Generator(device).manual_seed(0)
    positive = (y == 1).nonzero()[:, 0]
    negative = (y == 0).nonzero()[:, 0]
    target = torch.cat([torch.ones(positives), torch.zeros(others)]).long().to(device)
    loss = losses.AveragePrecisionLoss(data_len=y.shape[0], gamma=rates.beta, device=device)
    optimizer = optimizers.SOAP(model.parameters(), lr=rates.lr, mode="sgd", device=device)

    def step() -> None:
        # On the device, in a few calls: LibAUC's own sampler works on the host.
        own = torch.randint(positive.shape[0], (positives,), generator=generator, device=device)
        other = torch.randint(negative.shape[0], (others,), generator=generator, device=device)
        id = torch.cat([positive[own], negative[other]])
        value = loss(model(id), target, id)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    return repeated(step)

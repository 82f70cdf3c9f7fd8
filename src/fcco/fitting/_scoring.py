"""Scores of a model over any data, in evaluation mode, without a gradient."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fcco.data._batch import Batch
from fcco.data._pass import Plan, fetched
from fcco.data._source import Source
from fcco.objectives._base import called


@contextmanager
def in_precision(device: torch.device, precision: str) -> Iterator[None]:
    """Autocast where the precision is bf16, else nothing."""
    if precision == "bf16":
        with torch.autocast(device.type, torch.bfloat16):
            yield
    else:
        yield


@torch.no_grad()
def score(
    model: nn.Module, source: Source, *, precision: str = "fp32", num_workers: int = 0, chunk: int = 1024
) -> Tensor:
    """The model's outputs (N, ...) for all examples of a source, on the CPU.

    Args:
        model: in any mode; it is left in the mode that it had.
        source: hands out x.
        precision: "fp32" or "bf16".
        num_workers: processes that fetch from a data set.
        chunk: examples at a time.
    """
    device = device_of(model)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    parts = []
    try:
        with in_precision(device, precision):
            for batch in _batches(source, dtype_of(model), chunk, num_workers):
                outputs = called(model, batch.to(device).x)
                _check_rows(outputs, len(batch.id))
                parts.append(outputs.float().cpu() if outputs.dtype == torch.bfloat16 else outputs.cpu())
    finally:
        for module, training in modes:
            module.training = training
    return torch.cat(parts)


def _check_rows(outputs: object, rows: int) -> None:
    if not isinstance(outputs, Tensor):
        raise TypeError(f"the model must return a tensor, or an object with .logits, got {type(outputs).__name__}")
    if outputs.dim() == 0 or outputs.shape[0] != rows:
        raise ValueError(f"the model must return a row per example, {rows} of them, got shape {tuple(outputs.shape)}")


@torch.no_grad()
def renew_statistics(model: nn.Module, source: Source, *, examples: int, chunk: int, precision: str, seed: int) -> int:
    """Set the statistics of BatchNorm layers to those of uniform draws; returns how many examples that took.

    Draws by importance, and averaged weights, both have other statistics than the running ones.
    """
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    if not layers:
        return 0
    device = device_of(model)
    momenta = [layer.momentum for layer in layers]
    was_training = model.training
    model.eval()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # the plain mean over batches
        layer.train()
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(source.size, generator=generator)[:examples]
    try:
        with in_precision(device, precision):
            # Batches of one size: all of them count the same, so a short one would count too much.
            for part in ids.tensor_split(-(-len(ids) // chunk)):
                if len(part) > 1:
                    x = next(_batches(source, dtype_of(model), chunk, 0, part)).to(device).x
                    called(model, x)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        model.train(was_training)
    return len(ids)


def device_of(model: nn.Module) -> torch.device:
    """Where the model's parameters are."""
    for parameter in model.parameters():
        return parameter.device
    return torch.device("cpu")


def dtype_of(model: nn.Module) -> torch.dtype | None:
    """What floating point x is turned into."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            return parameter.dtype
    return None


def _batches(
    source: Source, dtype: torch.dtype | None, chunk: int, num_workers: int, ids: Tensor | None = None
) -> Iterator[Batch]:
    if ids is None:
        ids = torch.arange(source.size)
    ids = ids.to(source.device)
    reader = source.reader(num_workers)
    plans = (Plan(Batch(None, part), number) for number, part in enumerate(ids.split(chunk)))
    for _, batch in fetched(plans, reader, dtype=dtype, keep=False):
        yield batch

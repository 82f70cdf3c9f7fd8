"""Any torch Dataset, taken into memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset

from ._numpy import np
from .dataset import Dataset
from .errors import DataError
from .npz import count_classes
from .split import choose_test


def from_dataset(
    train: TorchDataset[Any],
    test: TorchDataset[Any] | None = None,
    name: str | None = None,
    num_classes: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Make a data set from a map-style torch Dataset whose items are (x, y).

    Args:
        train: items (x, y): x a tensor, array or Pillow image of one shape throughout, (C, H, W) for tensors,
            (H, W) or (H, W, C) for arrays of bytes and images; y a class, or a row of 0, 1 and NaN.
        test: the same for test; without it `test_fraction` of `train` is put aside by `seed`.
        name: the name in reports; the class's own without it.
        num_classes: how many classes; the largest label plus one without it.
        test_fraction: the share put aside where there is no `test`, of every class alike.
        seed: of that draw.

    Returns:
        images (N, C, H, W) uint8, or float32 (N, ...); classes (N,) int64 or labels (N, L) float32.
    """
    x, y = _collect(train, "train")
    if test is None:
        mask = choose_test(y, test_fraction, seed)
        x_test = x[mask]
        y_test = y[mask]
        x = x[~mask]
        y = y[~mask]
    else:
        x_test, y_test = _collect(test, "test")
    if num_classes is None:
        num_classes = count_classes(y, y_test)
    kind = type(train).__name__
    sha256 = {"content": _digest(x, y, x_test, y_test)}
    return Dataset(name or kind, x, y, x_test, y_test, num_classes, f"user-provided torch Dataset {kind}", sha256)


def _collect(data: TorchDataset[Any], argument: str) -> tuple[Tensor, Tensor]:
    """Collect every item in order: x (N, ...), y (N,) or (N, L)."""
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise DataError(f"{argument} must be a map-style Dataset with a length, got {type(data).__name__}")
    if len(data) == 0:
        raise DataError(f"{argument} must hold at least one item, got an empty {type(data).__name__}")
    xs: list[Tensor] = []
    ys: list[Tensor] = []
    for row in range(len(data)):
        where = f"{argument}[{row}]"
        x, y = _pair(data[row], where)
        xs.append(x)
        ys.append(y)
        if x.shape != xs[0].shape or x.dtype != xs[0].dtype or y.shape != ys[0].shape:
            raise DataError(f"{where} differs in shape or dtype from {argument}[0]")
    return torch.stack(xs), torch.stack(ys)


def _pair(item: Any, where: str) -> tuple[Tensor, Tensor]:
    """Return an item's example and label as tensors."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(f"{where} must be a pair (x, y), got {type(item).__name__}")
    x, y = item
    return _convert(_example, x, f"{where}: x"), _convert(_label, y, f"{where}: y")


def _convert(convert: Callable[[Any], Tensor], value: Any, where: str) -> Tensor:
    try:
        return convert(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{where} cannot be read as a tensor ({error})") from error


def _example(given: Any) -> Tensor:
    """Return bytes as (C, H, W), and all else as float32; arrays and Pillow images have channels last."""
    if isinstance(given, Tensor):
        value = given
    else:
        value = torch.from_numpy(np.array(given))
    if value.dtype != torch.uint8 or value.dim() not in (2, 3):
        return value.detach().to("cpu", torch.float32)
    if value.dim() == 2:
        return value[None]
    if isinstance(given, Tensor) or value.shape[-1] not in (1, 3):
        return value
    return value.permute(2, 0, 1)


def _label(value: Any) -> Tensor:
    """Return a whole number as int64 (), a row as float32 (L,)."""
    label = torch.as_tensor(value).detach().cpu()
    if label.dim() == 0 and not label.is_floating_point():
        return label.to(torch.int64)
    if label.dim() == 1:
        return label.to(torch.float32)
    raise ValueError(f"a label is a whole number or a row of 0, 1 and NaN, got {value!r}")


def _digest(*tensors: Tensor) -> str:
    """Return the SHA-256 of the bytes of all tensors, in order."""
    sha256 = hashlib.sha256()
    for tensor in tensors:
        sha256.update(tensor.contiguous().numpy().tobytes())
    return sha256.hexdigest()

"""Dataset: train and test tensors, and where they came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .errors import DataError


@dataclass(frozen=True, eq=False)
class Dataset:
    """Train and test examples in memory.

    Args:
        name: the data set's name, as it stands in reports.
        x_train: images (N, C, H, W) uint8 in 0..255, or a table (N, F) float32.
        y_train: classes (N,) int64 in 0..num_classes-1, or several labels (N, num_classes) float32 of 0, 1
            and NaN (missing).
        x_test: as `x_train`, (M, ...).
        y_test: as `y_train`, (M, ...).
        num_classes: classes, or label columns.
        source: "original files", "embedded", or "user-provided ..." with the file's name.
        sha256: file name -> SHA-256 of every file used.
        classes: names of the classes or label columns; numbers where none are known.
        note: how the data differ from the published set ("" where they do not).
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    num_classes: int
    source: str
    sha256: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        if not self.classes:
            object.__setattr__(self, "classes", tuple(str(k) for k in range(self.num_classes)))
        if len(self.classes) != self.num_classes:
            raise DataError(f"{self.name}: {len(self.classes)} class names for {self.num_classes} classes")
        for split, x, y in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            _check_examples(f"{self.name}: x_{split}", x)
            _check_labels(f"{self.name}: y_{split}", y, len(x), self.num_classes)
        if self.x_train.shape[1:] != self.x_test.shape[1:] or self.x_train.dtype != self.x_test.dtype:
            raise DataError(f"{self.name}: x_train is {_describe(self.x_train)} but x_test is {_describe(self.x_test)}")
        if self.y_train.dim() != self.y_test.dim():
            raise DataError(f"{self.name}: y_train is {_describe(self.y_train)} but y_test {_describe(self.y_test)}")

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Shape of one example: (C, H, W) or (F,)."""
        return tuple(self.x_train.shape[1:])

    @property
    def multilabel(self) -> bool:
        """Whether an example carries several labels."""
        return self.y_train.dim() == 2

    def __str__(self) -> str:
        """One line for logs and reports; user-provided data always come with their hashes."""
        shape = "x".join(map(str, self.in_shape))
        kind = "classes"
        if self.multilabel:
            kind = "labels"
        text = f"{self.name}: {len(self.x_train)} train + {len(self.x_test)} test of {shape}, "
        text += f"{self.num_classes} {kind}; {self.source}"
        if self.source.startswith("user-provided") and self.sha256:
            digests = [f"sha256 {digest}" for digest in self.sha256.values()]
            text += f" ({', '.join(digests)})"
        if self.note:
            text += f"; {self.note}"
        return text

    __repr__ = __str__


def _describe(x: Tensor) -> str:
    return f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}"


def _check_examples(where: str, x: Tensor) -> None:
    """Refuse all but images (N, C, H, W) uint8 and finite float32; there must be at least one example."""
    if x.dim() < 2 or x.numel() == 0:
        raise DataError(f"{where} must hold at least one example with at least one value, got shape {tuple(x.shape)}")
    if x.dtype == torch.uint8:
        if x.dim() != 4 or x.shape[1] not in (1, 3):
            raise DataError(f"{where} must be images (N, C, H, W) with C = 1 or 3, got shape {tuple(x.shape)}")
    elif x.dtype != torch.float32:
        raise DataError(f"{where} must be uint8 images or float32, got {x.dtype}")
    elif not bool(torch.isfinite(x).all()):
        raise DataError(f"{where} must be finite, got NaN or infinity")


def _check_labels(where: str, y: Tensor, count: int, num_classes: int) -> None:
    """Refuse all but (N,) int64 in range and (N, num_classes) float32 of 0, 1 and NaN."""
    if len(y) != count:
        raise DataError(f"{where} has {len(y)} rows for {count} examples")
    if y.dim() == 1 and y.dtype == torch.int64:
        for extreme in (int(y.min()), int(y.max())):
            if not 0 <= extreme < num_classes:
                raise DataError(f"{where} must hold labels in 0..{num_classes - 1}, got {extreme}")
    elif y.dim() == 2 and y.shape[1] == num_classes and y.dtype == torch.float32:
        if not bool(((y == 0) | (y == 1) | y.isnan()).all()):
            raise DataError(f"{where} must hold 0, 1 or NaN (missing)")
    else:
        raise DataError(f"{where} must be (N,) int64 or (N, {num_classes}) float32, got {_describe(y)}")

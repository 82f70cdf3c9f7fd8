"""A plain .npz of four arrays: the way in for data that were prepared by hand."""

from __future__ import annotations

import os
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ._numpy import np
from .dataset import Dataset
from .errors import DataError
from .formats import Array
from .locate import digests
from .registry import Spec

KEYS = ("x_train", "y_train", "x_test", "y_test")


def open_npz(path: Path) -> dict[str, Array]:
    """Read every array of an .npz; pickled objects in it are refused, not loaded."""
    try:
        with path.open("rb") as file:
            content = np.load(file, allow_pickle=False)
            if not isinstance(content, np.lib.npyio.NpzFile):
                raise DataError(f"{path.name} is a single array, not an .npz of named arrays")
            return {key: content[key] for key in content.files}
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, ValueError, NotImplementedError) as error:
        if isinstance(error, DataError | FileNotFoundError):
            raise
        raise DataError(f"{path.name} is truncated, damaged or holds pickled objects ({error})") from error


def from_npz(path: str | os.PathLike[str], name: str | None = None, num_classes: int | None = None) -> Dataset:
    """Make a data set from an .npz with x_train, y_train, x_test and y_test.

    Args:
        path: the file. Images are uint8, (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 or 3; anything
            else numeric is read as float32 (N, ...). Labels are integers (N,), or 0/1/NaN (N, L).
        name: the name in reports; the file's own without it.
        num_classes: how many classes; the largest label plus one without it.
    """
    file = Path(path)
    arrays = _four(file)
    x_train = as_examples(arrays["x_train"], f"{file.name}: x_train")
    x_test = as_examples(arrays["x_test"], f"{file.name}: x_test")
    y_train = as_labels(arrays["y_train"], f"{file.name}: y_train")
    y_test = as_labels(arrays["y_test"], f"{file.name}: y_test")
    if num_classes is None:
        num_classes = count_classes(y_train, y_test)
    source = f"user-provided {file.name}"
    sha256 = {file.name: digests(file)[1]}
    return Dataset(name or file.stem, x_train, y_train, x_test, y_test, num_classes, source, sha256)


def named_npz(path: Path, spec: Spec) -> Dataset:
    """Read a user's NAME.npz in place of a published set: channels and labels must fit, sizes may differ."""
    given = from_npz(path, spec.name, len(spec.classes))
    if given.multilabel or len(given.in_shape) != 3 or given.x_train.dtype != torch.uint8:
        raise DataError(f"{path.name} must hold uint8 images and one label each, got {given}")
    if given.in_shape[0] != spec.shape[0]:
        raise DataError(f"{path.name} must hold images of {spec.shape[0]} channels, got {given.in_shape[0]}")
    return replace(given, name=spec.name, classes=spec.classes, note=_difference(given, spec))


def _difference(given: Dataset, spec: Spec) -> str:
    """Say how the sizes differ from the published set's; "" where they do not."""
    parts = []
    if given.in_shape != spec.shape:
        parts.append("images {}x{}x{}, published {}x{}x{}".format(*given.in_shape, *spec.shape))
    for split, count, published in (
        ("train", len(given.x_train), spec.train),
        ("test", len(given.x_test), spec.test),
    ):
        if count != published:
            parts.append(f"{split} holds {count} of the published {published}")
    return ", ".join(parts)


def _four(path: Path) -> dict[str, Array]:
    if not path.is_file():
        raise DataError(f"path must be an .npz file, got {str(path)!r}")
    arrays = open_npz(path)
    absent = [key for key in KEYS if key not in arrays]
    if absent:
        raise DataError(f"{path.name} must hold {', '.join(KEYS)}; {absent[0]} is missing")
    return arrays


def as_examples(x: Array, where: str) -> Tensor:
    """Return images as (N, C, H, W) uint8, other numbers as float32 of the same shape."""
    if x.dtype.kind not in "fiub":
        raise DataError(f"{where} must be numeric, got {x.dtype}")
    if x.dtype != np.uint8 or x.ndim < 3:
        return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    if x.ndim == 3:
        return torch.from_numpy(np.array(x[:, None], order="C"))
    channels_first = x.ndim == 4 and x.shape[1] in (1, 3)
    channels_last = x.ndim == 4 and x.shape[-1] in (1, 3)
    if channels_first == channels_last:
        raise DataError(f"{where} must be images with 1 or 3 channels, first or last, got shape {x.shape}")
    if channels_last:
        x = x.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.array(x, order="C"))


def as_labels(y: Array, where: str) -> Tensor:
    """Return integers (N,) as int64, and 0/1/NaN (N, L) as float32."""
    if y.ndim == 1 and y.dtype.kind in "iub":
        return torch.from_numpy(y.astype(np.int64))
    if y.ndim == 2 and y.dtype.kind in "fiub":
        return torch.from_numpy(y.astype(np.float32))
    raise DataError(f"{where} must be integers (N,) or 0/1/NaN (N, L), got shape {y.shape} {y.dtype}")


def count_classes(*labels: Tensor) -> int:
    """Return the number of label columns, or the largest class plus one."""
    if labels[0].dim() == 2:
        return int(labels[0].shape[1])
    return 1 + max(int(y.max()) for y in labels if len(y))

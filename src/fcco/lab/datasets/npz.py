"""A plain .npz of four arrays: the way in for data that were prepared by hand."""

from __future__ import annotations

import os
import zipfile
import zlib
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
    """Every array of an .npz; pickled objects in it are refused, not loaded."""
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
    """A data set from an .npz with x_train, y_train, x_test and y_test.

    Args:
        path: the file. Images are uint8, (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 or 3; anything
            else numeric is read as float32 (N, ...). Labels are integers (N,), or 0/1/NaN (N, L).
        name: the name in reports; the file's own without it.
        num_classes: how many classes; the largest label plus one without it.
    """
    file = Path(path)
    arrays = _four(file)
    x_train, x_test = (as_examples(arrays[key], f"{file.name}: {key}") for key in ("x_train", "x_test"))
    y_train, y_test = (as_labels(arrays[key], f"{file.name}: {key}") for key in ("y_train", "y_test"))
    if num_classes is None:
        num_classes = count_classes(y_train, y_test)
    source, sha256 = f"user-provided {file.name}", {file.name: digests(file)[1]}
    return Dataset(name or file.stem, x_train, y_train, x_test, y_test, num_classes, source, sha256)


def named_npz(path: Path, spec: Spec) -> Dataset:
    """A user's NAME.npz in place of a published set: channels and labels must fit, sizes may differ."""
    given = from_npz(path, spec.name, len(spec.classes))
    if given.multilabel or len(given.in_shape) != 3 or given.x_train.dtype != torch.uint8:
        raise DataError(f"{path.name} must hold uint8 images and one label each, got {given}")
    if given.in_shape[0] != spec.shape[0]:
        raise DataError(f"{path.name} must hold images of {spec.shape[0]} channels, got {given.in_shape[0]}")
    return Dataset(
        spec.name, given.x_train, given.y_train, given.x_test, given.y_test, given.num_classes,
        given.source, given.sha256, spec.classes, _difference(given, spec),
    )  # fmt: skip


def _difference(given: Dataset, spec: Spec) -> str:
    """In words, how the sizes differ from the published set's."""
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
    """Images as (N, C, H, W) uint8, other numbers as float32 of the same shape."""
    if x.dtype.kind not in "fiub":
        raise DataError(f"{where} must be numeric, got {x.dtype}")
    if x.dtype != np.uint8 or x.ndim < 3:
        return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    elif x.ndim != 4 or x.shape[1] not in (1, 3) or x.shape[-1] in (1, 3):
        raise DataError(f"{where} must be images with 1 or 3 channels, first or last, got shape {x.shape}")
    return torch.from_numpy(np.array(x, order="C"))


def as_labels(y: Array, where: str) -> Tensor:
    """Integers (N,) as int64; 0/1/NaN (N, L) as float32."""
    if y.ndim == 1 and y.dtype.kind in "iub":
        return torch.from_numpy(y.astype(np.int64))
    if y.ndim == 2 and y.dtype.kind in "fiub":
        return torch.from_numpy(y.astype(np.float32))
    raise DataError(f"{where} must be integers (N,) or 0/1/NaN (N, L), got shape {y.shape} {y.dtype}")


def count_classes(*labels: Tensor) -> int:
    """Label columns, or the largest class plus one."""
    if labels[0].dim() == 2:
        return int(labels[0].shape[1])
    return 1 + max(int(y.max()) for y in labels if len(y))

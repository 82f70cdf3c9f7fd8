"""`load`: a data set by its name."""

from __future__ import annotations

import difflib
import hashlib
import os
from pathlib import Path

import torch

from ._numpy import np
from .dataset import Dataset
from .errors import DataError, require
from .locate import cache_folder, data_folder, digests, download, find_npz, find_release, missing
from .npz import named_npz
from .registry import DIGITS, SPECS, Arrays, Release, Spec

NAMES: tuple[str, ...] = ("digits", *SPECS)


def load(name: str, root: str | os.PathLike[str] | None = None, download: bool = True) -> Dataset:
    """A data set by name, from its original files.

    Looked for in `root` (or $FCCO_DATA), then in the user's cache folder, each time in FOLDER/NAME before
    FOLDER: first the original files, whose checksums must match, then a plain NAME.npz, which is reported as
    user-provided. What is nowhere is downloaded into the cache.

    Args:
        name: one of digits, mnist, fashion-mnist, cifar10, cifar100 (fine labels), svhn, stl10.
        root: the folder to look in; $FCCO_DATA without it.
        download: whether to fetch what is not at hand.

    Returns:
        images (N, C, H, W) uint8 in 0..255 and labels (N,) int64 of both splits.

    Raises:
        DataMissing: nothing at hand; lists the files, their checksums and where to put them.
        DataError: a file is damaged, or not what its name says.

    Example:
        >>> data = load("digits")
        >>> tuple(data.x_train.shape), tuple(data.x_test.shape)
        ((1442, 1, 8, 8), (355, 1, 8, 8))
    """
    if name == "digits":
        return load_digits()
    if name not in SPECS:
        close = difflib.get_close_matches(str(name), NAMES, 1, 0.4)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise DataError(f"name must be one of {', '.join(NAMES)}, got {name!r}{hint}")
    return load_spec(SPECS[name], root, download)


def load_spec(spec: Spec, root: str | os.PathLike[str] | None = None, fetch: bool = True) -> Dataset:
    """A data set by its description; `load` looks the description up."""
    first = data_folder(root)
    if first is not None and (found := _at_hand(spec, first)):
        return found
    cache = cache_folder()
    if found := _at_hand(spec, cache):
        return found
    folders = [cache] if first is None else [first, cache]
    if not fetch:
        raise missing(spec, folders, "download=False")
    return _from_originals(spec, *download(spec, folders, cache))


def _at_hand(spec: Spec, folder: Path) -> Dataset | None:
    if originals := find_release(spec, [folder]):
        return _from_originals(spec, *originals)
    npz = find_npz(spec, [folder])
    return named_npz(npz, spec) if npz else None


def _from_originals(spec: Spec, release: Release, paths: dict[str, Path]) -> Dataset:
    arrays = release.read(paths)
    _check_sizes(spec, arrays)
    sha256 = {name: digests(path)[1] for name, path in paths.items()}
    x_train, y_train, x_test, y_test = (torch.from_numpy(np.array(a, order="C")) for a in arrays)
    return Dataset(
        spec.name, x_train, y_train, x_test, y_test, len(spec.classes), "original files", sha256, spec.classes
    )


def _check_sizes(spec: Spec, arrays: Arrays) -> None:
    """The originals must have exactly the published sizes."""
    for split, x, count in (("train", arrays.x_train, spec.train), ("test", arrays.x_test, spec.test)):
        if x.shape != (count, *spec.shape):
            raise DataError(f"{spec.name}: x_{split} has shape {x.shape}, expected {(count, *spec.shape)}")


def load_digits() -> Dataset:
    """scikit-learn's embedded digits: 8x8, grey levels 0..16 stretched to 0..255.

    The split is fixed and needs no seed: of every class each fifth image is a test image.
    """
    sklearn = require("sklearn.datasets", "the digits data set")
    content = sklearn.load_digits()
    levels, labels = np.asarray(content.images), np.asarray(content.target, dtype=np.int64)
    x = torch.from_numpy(np.rint(levels * (255 / 16)).astype(np.uint8)[:, None])
    y = torch.from_numpy(labels)
    rank = torch.zeros_like(y)  # how many images of the same class came before
    for k in range(10):
        rank[y == k] = torch.arange(int((y == k).sum()))
    test = rank % 5 == 4
    digest = hashlib.sha256(levels.astype(np.uint8).tobytes() + labels.astype(np.uint8).tobytes()).hexdigest()
    return Dataset("digits", x[~test], y[~test], x[test], y[test], 10, "embedded", {"digits": digest}, DIGITS)

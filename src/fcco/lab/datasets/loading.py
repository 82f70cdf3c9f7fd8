"""`load`: a data set by its name."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch

from ._numpy import np
from .dataset import Dataset
from .errors import DataError, nearest, require
from .locate import cache_folder, data_folder, digests, download, find_npz, find_release, missing
from .npz import named_npz
from .registry import DIGITS, SPECS, Arrays, Release, Spec

NAMES: tuple[str, ...] = ("digits", *SPECS)


def load(name: str, root: str | os.PathLike[str] | None = None, download: bool = True) -> Dataset:
    """Load a data set by name, from its original files.

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
        hint = nearest(str(name), NAMES, cutoff=0.4)
        raise DataError(f"name must be one of {', '.join(NAMES)}, got {name!r}{hint}")
    return load_spec(SPECS[name], root, download)


def load_spec(spec: Spec, root: str | os.PathLike[str] | None = None, fetch: bool = True) -> Dataset:
    """Load a data set by its description; `load` looks the description up."""
    own = data_folder(root)
    if own is not None:
        found = _at_hand(spec, own)
        if found is not None:
            return found
    cache = cache_folder()
    found = _at_hand(spec, cache)
    if found is not None:
        return found
    folders = [cache]
    if own is not None:
        folders = [own, cache]
    if not fetch:
        raise missing(spec, folders, "download=False")
    release, paths = download(spec, folders, cache)
    return _from_originals(spec, release, paths)


def _at_hand(spec: Spec, folder: Path) -> Dataset | None:
    """Return the data set from the files in a folder; None where they are not there."""
    originals = find_release(spec, [folder])
    if originals is not None:
        release, paths = originals
        return _from_originals(spec, release, paths)
    npz = find_npz(spec, [folder])
    if npz is not None:
        return named_npz(npz, spec)
    return None


def _from_originals(spec: Spec, release: Release, paths: dict[str, Path]) -> Dataset:
    arrays = release.read(paths)
    _check_sizes(spec, arrays)
    sha256 = {name: digests(path)[1] for name, path in paths.items()}
    x_train, y_train, x_test, y_test = (torch.from_numpy(np.array(array, order="C")) for array in arrays)
    return Dataset(
        spec.name, x_train, y_train, x_test, y_test, len(spec.classes), "original files", sha256, spec.classes
    )


def _check_sizes(spec: Spec, arrays: Arrays) -> None:
    """Refuse originals whose sizes are not the published ones."""
    for split, x, count in (("train", arrays.x_train, spec.train), ("test", arrays.x_test, spec.test)):
        if x.shape != (count, *spec.shape):
            raise DataError(f"{spec.name}: x_{split} has shape {x.shape}, expected {(count, *spec.shape)}")


def load_digits() -> Dataset:
    """Return scikit-learn's embedded digits: 8x8, grey levels 0..16 stretched to 0..255.

    The split is fixed and needs no seed: of every class each fifth image is a test image.
    """
    sklearn = require("sklearn.datasets", "the digits data set")
    content = sklearn.load_digits()
    levels = np.asarray(content.images)
    labels = np.asarray(content.target, dtype=np.int64)
    stretched = np.rint(levels * (255 / 16)).astype(np.uint8)
    x = torch.from_numpy(stretched[:, None])
    y = torch.from_numpy(labels)
    rank = torch.zeros_like(y)  # how many images of the same class came before
    for k in range(10):
        rank[y == k] = torch.arange(int((y == k).sum()))
    test = rank % 5 == 4
    content_bytes = levels.astype(np.uint8).tobytes() + labels.astype(np.uint8).tobytes()
    digest = hashlib.sha256(content_bytes).hexdigest()
    return Dataset("digits", x[~test], y[~test], x[test], y[test], 10, "embedded", {"digits": digest}, DIGITS)

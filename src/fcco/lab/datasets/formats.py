"""Readers of the original distribution formats: IDX, CIFAR's and STL-10's binary archives, SVHN's .mat.

Each reader takes paths and returns arrays: images (N, C, H, W) uint8 and labels (N,) int64 from 0. Nothing is
unpacked to disk and nothing in the files is executed. What does not fit is a `DataError` that names the file.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ._numpy import np
from .errors import DataError, require

Array = np.ndarray[Any, np.dtype[Any]]

IDX_UINT8 = 0x08
TRUNCATED = (EOFError, zlib.error, OSError)


def read_idx(path: Path, ndim: int) -> Array:
    """Read one gzip-compressed IDX file of bytes with `ndim` dimensions (3: images, 1: labels).

    The magic number is 00 00 08 ndim; big-endian sizes follow, then exactly their product of bytes.
    """
    try:
        data = gzip.decompress(path.read_bytes())
    except TRUNCATED as error:
        raise DataError(f"{path.name} is truncated or not a gzip file ({error})") from error
    magic = bytes([0, 0, IDX_UINT8, ndim])
    if data[:4] != magic:
        raise DataError(f"{path.name} has the wrong magic number {data[:4].hex()}, expected {magic.hex()}")
    start = 4 + 4 * ndim
    if len(data) < start:
        raise DataError(f"{path.name} is truncated: it ends inside its header")
    shape = tuple(int(size) for size in np.frombuffer(data, ">u4", ndim, 4))
    expected = int(np.prod(shape, dtype=object))
    if len(data) - start != expected:
        raise DataError(f"{path.name} holds {len(data) - start} bytes of data, but its header says {expected}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def read_tar(path: Path, wanted: Iterable[str]) -> dict[str, bytes]:
    """Return the bytes of the members `wanted` of a .tar.gz, in one pass that stops at the last of them."""
    left = set(wanted)
    found = {}
    try:
        with tarfile.open(path, "r|gz") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if name in left and member.isfile():
                    found[name] = _member_bytes(archive, member)
                    left.remove(name)
                if not left:
                    break
    except (tarfile.TarError, *TRUNCATED) as error:
        raise DataError(f"{path.name} is truncated or not a .tar.gz archive ({error})") from error
    if left:
        raise DataError(f"{path.name} has no member {sorted(left)[0]}")
    return found


def _member_bytes(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    data = b""
    if stream is not None:
        data = stream.read()
    if len(data) != member.size:
        raise EOFError(f"{member.name} ends after {len(data)} of {member.size} bytes")
    return data


def split_records(data: bytes, size: int, where: str) -> Array:
    """Return bytes as records of `size` bytes, (N, size) uint8."""
    if not data or len(data) % size:
        raise DataError(f"{where} has {len(data)} bytes, not a positive multiple of {size}")
    return np.frombuffer(data, np.uint8).reshape(-1, size)


def read_cifar_binary(path: Path, members: Iterable[str], label_bytes: int) -> tuple[Array, Array]:
    """Read CIFAR's binary release: records of `label_bytes` labels (the last one is meant) and 3x32x32 pixels."""
    names = list(members)
    data = read_tar(path, names)
    size = label_bytes + 3 * 32 * 32
    records = np.concatenate([split_records(data[name], size, f"{path.name}: {name}") for name in names])
    pixels = records[:, label_bytes:].reshape(-1, 3, 32, 32)
    labels = records[:, label_bytes - 1].astype(np.int64)
    return pixels, labels


def read_svhn(path: Path) -> tuple[Array, Array]:
    """Read SVHN's cropped digits: X (32, 32, 3, N) uint8 and y (N, 1) in 1..10, where 10 is the digit 0."""
    x, y = _read_mat(path)
    if x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8:
        raise DataError(f"{path.name}: X must be (32, 32, 3, N) uint8, got {x.shape} {x.dtype}")
    if y.shape != (x.shape[3], 1) or y.dtype.kind not in "uif" or (y != np.rint(y)).any():
        raise DataError(f"{path.name}: y must be ({x.shape[3]}, 1) integers, got {y.shape} {y.dtype}")
    labels = _labels_from_one(y[:, 0], 10, path.name) + 1
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), labels % 10


def _read_mat(path: Path) -> tuple[Array, Array]:
    """Return the variables X and y of a MATLAB file."""
    with path.open("rb") as file:
        magic = file.read(19)
    if magic != b"MATLAB 5.0 MAT-file":
        raise DataError(f"{path.name} has the wrong magic number {magic!r}, expected b'MATLAB 5.0 MAT-file'")
    loadmat = require("scipy.io", "reading SVHN").loadmat
    try:
        content = loadmat(str(path), variable_names=["X", "y"])
    except Exception as error:  # scipy has no one class for a damaged file
        raise DataError(f"{path.name} is truncated or damaged ({error})") from error
    if "X" not in content or "y" not in content:
        raise DataError(f"{path.name} must hold the variables X and y")
    return content["X"], content["y"]


def read_stl10(path: Path, split: str) -> tuple[Array, Array]:
    """Read one labelled split of STL-10's archive: images (N, 3, 96, 96) stored column by column, labels 1..10."""
    images = f"stl10_binary/{split}_X.bin"
    labels = f"stl10_binary/{split}_y.bin"
    data = read_tar(path, (images, labels))
    x = split_records(data[images], 3 * 96 * 96, f"{path.name}: {images}").reshape(-1, 3, 96, 96)
    y = np.frombuffer(data[labels], np.uint8)
    if len(y) != len(x):
        raise DataError(f"{path.name}: {labels} holds {len(y)} labels for {len(x)} images")
    return np.ascontiguousarray(x.transpose(0, 1, 3, 2)), _labels_from_one(y, 10, f"{path.name}: {labels}")


def _labels_from_one(y: Array, count: int, where: str) -> Array:
    """Return labels 1..count as 0..count-1."""
    labels = y.astype(np.int64)
    bad = labels[(labels < 1) | (labels > count)]
    if len(bad):
        raise DataError(f"{where} must hold labels in 1..{count}, got {bad[0]}")
    return labels - 1

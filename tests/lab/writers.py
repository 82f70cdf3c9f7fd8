"""Small files in the original formats, written byte by byte, and specs that expect them."""

import dataclasses
import gzip
import hashlib
import io
import struct
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from scipy.io import savemat

from fcco.lab.datasets.registry import IDX_NAMES, SPECS, Release, Spec

TRAIN, TEST = 20, 10


def images(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def labels(count: int, classes: int) -> np.ndarray:
    return (np.arange(count) % classes).astype(np.uint8)


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_tar(path: Path, members: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def python2_pickle(entries: Mapping[str, object]) -> bytes:
    """A dictionary as Python 2 and its numpy pickled it: byte strings, lists of numbers, uint8 arrays."""
    out = b"\x80\x02}(" + b"".join(_pickled(k.encode()) + _pickled(v) for k, v in entries.items())
    return out + b"u."


def _pickled(value: object) -> bytes:
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(map(_pickled, value)) + b"e"
    assert isinstance(value, np.ndarray)
    dtype = b"cnumpy\ndtype\n" + _pickled(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + _pickled(b"|") + b"NNN" + _pickled(-1) + _pickled(-1) + b"K\x00tb"
    shape = b"(" + b"".join(map(_pickled, value.shape)) + b"t"
    start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + _pickled(b"b") + b"\x87R"
    columns = not value.flags.c_contiguous and value.flags.f_contiguous  # numpy pickles such arrays by columns
    data = _pickled(value.tobytes(order="F" if columns else "C"))
    return start + b"(K\x01" + shape + dtype + (b"\x88" if columns else b"\x89") + data + b"tb"


def write_idx_set(folder: Path) -> tuple[np.ndarray, ...]:
    arrays = (images(TRAIN, 28, 28), labels(TRAIN, 10), images(TEST, 28, 28, seed=1), labels(TEST, 10))
    for name, array in zip(IDX_NAMES, arrays, strict=True):
        (folder / name).write_bytes(gzip.compress(idx(array)))
    return arrays


def cifar_arrays(classes: int) -> tuple[np.ndarray, ...]:
    x, t = images(TRAIN, 3, 32, 32), images(TEST, 3, 32, 32, seed=1)
    return x, labels(TRAIN, classes), t, labels(TEST, classes)


def _records(x: np.ndarray, *columns: np.ndarray) -> bytes:
    return np.concatenate([*(c[:, None] for c in columns), x.reshape(len(x), -1)], axis=1).tobytes()


def write_cifar10_binary(folder: Path) -> tuple[np.ndarray, ...]:
    x, y, t, s = cifar_arrays(10)
    members = {
        f"cifar-10-batches-bin/data_batch_{k + 1}.bin": _records(x[4 * k :][:4], y[4 * k :][:4]) for k in range(5)
    }
    members = {"cifar-10-batches-bin/batches.meta.txt": b"airplane\n", **members}
    members["cifar-10-batches-bin/test_batch.bin"] = _records(t, s)
    write_tar(folder / "cifar-10-binary.tar.gz", members)
    return x, y, t, s


def write_cifar10_python(folder: Path) -> tuple[np.ndarray, ...]:
    x, y, t, s = cifar_arrays(10)
    flat = x.reshape(TRAIN, -1)
    members = {
        f"cifar-10-batches-py/data_batch_{k + 1}": python2_pickle(
            {"batch_label": b"training batch", "labels": y[4 * k :][:4].tolist(), "data": flat[4 * k :][:4]}
        )
        for k in range(5)
    }
    members["cifar-10-batches-py/test_batch"] = python2_pickle({"labels": s.tolist(), "data": t.reshape(TEST, -1)})
    write_tar(folder / "cifar-10-python.tar.gz", members)
    return x, y, t, s


def write_cifar100_binary(folder: Path) -> tuple[np.ndarray, ...]:
    x, y, t, s = cifar_arrays(100)
    members = {
        "cifar-100-binary/train.bin": _records(x, y // 5 + 7, y),
        "cifar-100-binary/test.bin": _records(t, s, s),
    }
    write_tar(folder / "cifar-100-binary.tar.gz", members)
    return x, y, t, s


def write_cifar100_python(folder: Path) -> tuple[np.ndarray, ...]:
    x, y, t, s = cifar_arrays(100)
    members = {
        f"cifar-100-python/{split}": python2_pickle(
            {"coarse_labels": [0] * len(b), "fine_labels": b.tolist(), "data": np.asfortranarray(a.reshape(len(a), -1))}
        )
        for split, a, b in (("train", x, y), ("test", t, s))
    }
    write_tar(folder / "cifar-100-python.tar.gz", members)
    return x, y, t, s


def write_svhn(folder: Path) -> tuple[np.ndarray, ...]:
    x, y, t, s = cifar_arrays(10)
    for split, a, b in (("train", x, y), ("test", t, s)):
        ones = np.where(b == 0, 10, b).astype(np.uint8)[:, None]  # digit 0 is written as 10
        savemat(folder / f"{split}_32x32.mat", {"X": a.transpose(2, 3, 1, 0), "y": ones}, do_compression=True)
    return x, y, t, s


def write_stl10(folder: Path) -> tuple[np.ndarray, ...]:
    x, y, t, s = (
        images(TRAIN, 3, 96, 96),
        labels(TRAIN, 10),
        images(TEST, 3, 96, 96, seed=1),
        labels(TEST, 10),
    )
    members = {}
    for split, a, b in (("test", t, s), ("train", x, y)):
        columns = b"".join(np.asfortranarray(channel).tobytes(order="F") for image in a for channel in image)
        members |= {f"stl10_binary/{split}_X.bin": columns, f"stl10_binary/{split}_y.bin": (b + 1).tobytes()}
    write_tar(folder / "stl10_binary.tar.gz", {**members, "stl10_binary/unlabeled_X.bin": b"\0" * 100})
    return x, y, t, s


def expecting(folder: Path, name: str, release: int = 0, train: int = TRAIN, test: int = TEST) -> Spec:
    """The spec of `name` with the checksums of the files in `folder` (where there) and small sizes."""
    spec = SPECS[name]
    kept = spec.releases[release]
    files = tuple(
        dataclasses.replace(file, md5=hashlib.md5((folder / file.name).read_bytes()).hexdigest())
        if (folder / file.name).exists()
        else file
        for file in kept.files
    )
    releases = (Release(files, kept.read),)
    return dataclasses.replace(spec, train=train, test=test, releases=releases)

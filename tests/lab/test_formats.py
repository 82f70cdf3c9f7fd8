"""What the readers of the original formats refuse, byte by byte; a malicious pickle is not executed."""

import gzip
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from fcco.lab.datasets import DataError
from fcco.lab.datasets.cifar_pickle import unpickle_arrays
from fcco.lab.datasets.formats import read_idx, read_stl10, read_svhn, read_tar
from fcco.lab.datasets.loading import load_spec
from tests.lab import writers


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\0\0\x08\x01" + bytes(4), "wrong magic number 00000801, expected 00000803"),
        (b"\0\0\x09\x03" + bytes(12), "wrong magic number 00000903"),
        (b"\0\0\x08\x03\0\0", "ends inside its header"),
        (writers.idx(np.zeros((2, 3, 3), np.uint8))[:-1], "holds 17 bytes of data, but its header says 18"),
        (writers.idx(np.zeros((2, 3, 3), np.uint8)) + b"\0", "holds 19 bytes of data, but its header says 18"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "holds 0 bytes"),
    ],
)
def test_idx_refusals(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=rf"images.gz.*{message}"):
        read_idx(path, 3)


def test_labels_out_of_range(tmp_path: Path) -> None:
    x, _, t, s = writers.cifar_arrays(10)
    record = np.concatenate([np.full((len(x), 1), 10, np.uint8), x.reshape(len(x), -1)], axis=1).tobytes()
    members = {f"cifar-10-batches-bin/data_batch_{k}.bin": record for k in range(1, 6)}
    members["cifar-10-batches-bin/test_batch.bin"] = writers._records(t, s)
    writers.write_tar(tmp_path / "cifar-10-binary.tar.gz", members)
    with pytest.raises(DataError, match=r"cifar10: y_train must hold labels in 0..9, got 10"):
        load_spec(writers.expecting(tmp_path, "cifar10", train=100), tmp_path, fetch=False)


@pytest.mark.parametrize("label", [0, 11])
def test_labels_from_one(tmp_path: Path, label: int) -> None:
    path = tmp_path / "train_32x32.mat"
    savemat(path, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [label]], np.uint8)})
    with pytest.raises(DataError, match=rf"labels in 1..10, got {label}"):
        read_svhn(path)
    archive = tmp_path / "stl10_binary.tar.gz"
    members = {"stl10_binary/train_X.bin": bytes(27648), "stl10_binary/train_y.bin": bytes([label])}
    writers.write_tar(archive, members)
    with pytest.raises(DataError, match=rf"labels in 1..10, got {label}"):
        read_stl10(archive, "train")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"X": np.zeros((32, 32, 3, 2), np.uint8)}, "variables X and y"),
        ({"X": np.zeros((2, 32, 32, 3), np.uint8), "y": np.ones((2, 1))}, r"X must be \(32, 32, 3, N\)"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((3, 1), np.uint8)}, r"y must be \(2, 1\)"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.full((2, 1), 1.5)}, r"y must be \(2, 1\) integers"),
    ],
)
def test_svhn_shapes(tmp_path: Path, content: dict[str, np.ndarray], message: str) -> None:
    savemat(tmp_path / "train_32x32.mat", content)
    with pytest.raises(DataError, match=rf"train_32x32.mat.*{message}"):
        read_svhn(tmp_path / "train_32x32.mat")


def test_archive_shapes(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    writers.write_tar(path, {"cifar-10-batches-bin/data_batch_1.bin": bytes(3072)})
    with pytest.raises(DataError, match=r"a.tar.gz has no member cifar-10-batches-bin/test_batch.bin"):
        read_tar(path, ["cifar-10-batches-bin/test_batch.bin"])
    writers.write_cifar10_binary(tmp_path)
    spec = writers.expecting(tmp_path, "cifar10")
    members = {f"cifar-10-batches-bin/data_batch_{k}.bin": bytes(3072) for k in range(1, 6)}
    writers.write_tar(tmp_path / "cifar-10-binary.tar.gz", members)
    spec = writers.expecting(tmp_path, "cifar10")
    with pytest.raises(DataError, match=r"data_batch_1.bin has 3072 bytes, not a positive multiple of 3073"):
        load_spec(spec, tmp_path, fetch=False)


class _Payload:
    """Would write a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch '{self.path}'",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_malicious_pickle_is_not_executed(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "executed"
    payload = pickle.dumps({"data": _Payload(trace), "labels": [0]}, protocol)
    members = {f"cifar-10-batches-py/data_batch_{k}": payload for k in range(1, 6)}
    writers.write_tar(tmp_path / "cifar-10-python.tar.gz", {**members, "cifar-10-batches-py/test_batch": payload})
    spec = writers.expecting(tmp_path, "cifar10", release=1)
    with pytest.raises(DataError, match=r"data_batch_1 is refused: it contains .*system, but only arrays are read"):
        load_spec(spec, tmp_path, fetch=False)
    assert not trace.exists()
    pickle.loads(payload)  # the payload is a real one
    assert trace.exists()


@pytest.mark.parametrize(
    "stream",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"(S'1'\nibuiltins\neval\n.",
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.",
        b"cnumpy\nload\n.",
        b"cnumpy.core.multiarray\nscalar\n.",
        b"\x80\x02cnumpy\nndarray\n}S'__module__'\nS'x'\nsb.",  # would set attributes of a class
        b"\x80\x02cnumpy\nndarray\n(N}S'numpy'\nS'x'\nstb.",
        b"P1\n.",
        b"",
        b"}",
        b"].",
        b"cnumpy\nndarray\n.",
    ],
)
def test_other_streams_are_refused(stream: bytes) -> None:
    with pytest.raises(DataError, match="batch"):
        unpickle_arrays(stream, "batch")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"labels": [1]}, "must hold an array 'data'"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [1, 2]}, "for 2 labels"),
        ({"data": np.zeros((1, 3071), np.uint8), "labels": [1]}, r"shape \(1, 3071\)"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [b"1"]}, "integer labels"),
    ],
)
def test_python_batches_are_checked(tmp_path: Path, entries: dict[str, object], message: str) -> None:
    path = tmp_path / "cifar-100-python.tar.gz"
    content = writers.python2_pickle(entries)
    content = content.replace(b"labels", b"fine_labels").replace(b"T\x06\0\0\0fine", b"T\x0b\0\0\0fine")
    writers.write_tar(path, {"cifar-100-python/train": content, "cifar-100-python/test": content})
    with pytest.raises(DataError, match=message):
        load_spec(writers.expecting(tmp_path, "cifar100", release=1), tmp_path, fetch=False)

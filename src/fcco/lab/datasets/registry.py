"""The published data sets: their files, checksums, sizes, and which reader takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .cifar_pickle import read_cifar_python
from .formats import Array, read_cifar_binary, read_idx, read_stl10, read_svhn


class Arrays(NamedTuple):
    """Images (N, C, H, W) uint8 and labels (N,) int64 of both splits."""

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array


@dataclass(frozen=True)
class File:
    """One distributed file; `url` is its published home."""

    name: str
    md5: str
    url: str


@dataclass(frozen=True)
class Release:
    """Files that together make a data set, and the function that reads them (given name -> path)."""

    files: tuple[File, ...]
    read: Callable[[Mapping[str, Path]], Arrays]


@dataclass(frozen=True)
class Spec:
    """A published data set: one image's (C, H, W), how many there are, its releases, preferred first."""

    name: str
    shape: tuple[int, int, int]
    train: int
    test: int
    classes: tuple[str, ...]
    releases: tuple[Release, ...]


DIGITS = tuple("0123456789")
CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
STL10 = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
CIFAR100 = tuple(str(k) for k in range(100))

IDX_NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def _read_idx_set(paths: Mapping[str, Path]) -> Arrays:
    x_train_name, y_train_name, x_test_name, y_test_name = IDX_NAMES
    return Arrays(
        x_train=read_idx(paths[x_train_name], 3)[:, None],
        y_train=read_idx(paths[y_train_name], 1).astype("int64"),
        x_test=read_idx(paths[x_test_name], 3)[:, None],
        y_test=read_idx(paths[y_test_name], 1).astype("int64"),
    )


def _read_cifar10_binary(paths: Mapping[str, Path]) -> Arrays:
    (path,) = paths.values()
    folder = "cifar-10-batches-bin"
    members = [f"{folder}/data_batch_{k}.bin" for k in range(1, 6)]
    x_train, y_train = read_cifar_binary(path, members, 1)
    x_test, y_test = read_cifar_binary(path, [f"{folder}/test_batch.bin"], 1)
    return Arrays(x_train, y_train, x_test, y_test)


def _read_cifar10_python(paths: Mapping[str, Path]) -> Arrays:
    (path,) = paths.values()
    folder = "cifar-10-batches-py"
    members = [f"{folder}/data_batch_{k}" for k in range(1, 6)]
    x_train, y_train = read_cifar_python(path, members, b"labels")
    x_test, y_test = read_cifar_python(path, [f"{folder}/test_batch"], b"labels")
    return Arrays(x_train, y_train, x_test, y_test)


def _read_cifar100_binary(paths: Mapping[str, Path]) -> Arrays:
    (path,) = paths.values()
    # a record is the coarse label, the fine label, and the pixels
    x_train, y_train = read_cifar_binary(path, ["cifar-100-binary/train.bin"], 2)
    x_test, y_test = read_cifar_binary(path, ["cifar-100-binary/test.bin"], 2)
    return Arrays(x_train, y_train, x_test, y_test)


def _read_cifar100_python(paths: Mapping[str, Path]) -> Arrays:
    (path,) = paths.values()
    x_train, y_train = read_cifar_python(path, ["cifar-100-python/train"], b"fine_labels")
    x_test, y_test = read_cifar_python(path, ["cifar-100-python/test"], b"fine_labels")
    return Arrays(x_train, y_train, x_test, y_test)


def _read_svhn_set(paths: Mapping[str, Path]) -> Arrays:
    x_train, y_train = read_svhn(paths["train_32x32.mat"])
    x_test, y_test = read_svhn(paths["test_32x32.mat"])
    return Arrays(x_train, y_train, x_test, y_test)


def _read_stl10_set(paths: Mapping[str, Path]) -> Arrays:
    (path,) = paths.values()
    x_train, y_train = read_stl10(path, "train")
    x_test, y_test = read_stl10(path, "test")
    return Arrays(x_train, y_train, x_test, y_test)


def _release(read: Callable[[Mapping[str, Path]], Arrays], home: str, md5s: Mapping[str, str]) -> Release:
    files = [File(name, md5, home + name) for name, md5 in md5s.items()]
    return Release(tuple(files), read)


_MNIST = _release(
    _read_idx_set,
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
)
_FASHION = _release(
    _read_idx_set,
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
)
_CIFAR_HOME = "https://www.cs.toronto.edu/~kriz/"
_CIFAR10 = (
    _release(_read_cifar10_binary, _CIFAR_HOME, {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"}),
    _release(_read_cifar10_python, _CIFAR_HOME, {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"}),
)
_CIFAR100 = (
    _release(_read_cifar100_binary, _CIFAR_HOME, {"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"}),
    _release(_read_cifar100_python, _CIFAR_HOME, {"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"}),
)
_SVHN = _release(
    _read_svhn_set,
    "http://ufldl.stanford.edu/housenumbers/",
    {
        "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
        "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
    },
)
_STL10 = _release(
    _read_stl10_set,
    "http://ai.stanford.edu/~acoates/stl10/",
    {"stl10_binary.tar.gz": "91f7769df0f17e558f3565bffb0c7dfb"},
)

SPECS: dict[str, Spec] = {
    "mnist": Spec("mnist", (1, 28, 28), 60000, 10000, DIGITS, (_MNIST,)),
    "fashion-mnist": Spec("fashion-mnist", (1, 28, 28), 60000, 10000, CLOTHES, (_FASHION,)),
    "cifar10": Spec("cifar10", (3, 32, 32), 50000, 10000, CIFAR10, _CIFAR10),
    "cifar100": Spec("cifar100", (3, 32, 32), 50000, 10000, CIFAR100, _CIFAR100),
    "svhn": Spec("svhn", (3, 32, 32), 73257, 26032, DIGITS, (_SVHN,)),
    "stl10": Spec("stl10", (3, 96, 96), 5000, 8000, STL10, (_STL10,)),
}

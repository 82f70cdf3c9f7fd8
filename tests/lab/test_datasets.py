"""Readers of the original formats, and where `load` looks for them."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fcco.lab import datasets
from fcco.lab.datasets import DataError, DataMissing, Dataset, load
from fcco.lab.datasets.loading import load_spec
from fcco.lab.datasets.registry import IDX_NAMES, SPECS
from tests.lab import writers

CASES: list[tuple[str, int, Callable[[Path], tuple[np.ndarray, ...]]]] = [
    ("mnist", 0, writers.write_idx_set),
    ("fashion-mnist", 0, writers.write_idx_set),
    ("cifar10", 0, writers.write_cifar10_binary),
    ("cifar10", 1, writers.write_cifar10_python),
    ("cifar100", 0, writers.write_cifar100_binary),
    ("cifar100", 1, writers.write_cifar100_python),
    ("svhn", 0, writers.write_svhn),
    ("stl10", 0, writers.write_stl10),
]
IDS = [f"{name}-{write.__name__}" for name, _, write in CASES]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees, or fills, the user's cache."""
    monkeypatch.setattr("fcco.lab.datasets.loading.cache_folder", lambda: tmp_path_factory.getbasetemp() / "cache")


@pytest.mark.parametrize(("name", "release", "write"), CASES, ids=IDS)
@pytest.mark.parametrize("nested", [False, True])
def test_original_format(
    tmp_path: Path, name: str, release: int, write: Callable[[Path], tuple[np.ndarray, ...]], nested: bool
) -> None:
    folder = tmp_path / name if nested else tmp_path
    folder.mkdir(exist_ok=True)
    x, y, x_test, y_test = write(folder)
    data = load_spec(writers.expecting(folder, name, release), tmp_path, fetch=False)
    shape = SPECS[name].shape
    assert data.x_train.dtype == torch.uint8
    assert data.y_train.dtype == torch.int64
    np.testing.assert_array_equal(data.x_train.numpy(), x.reshape(-1, *shape))
    np.testing.assert_array_equal(data.x_test.numpy(), x_test.reshape(-1, *shape))
    np.testing.assert_array_equal(data.y_train.numpy(), y)
    np.testing.assert_array_equal(data.y_test.numpy(), y_test)
    assert data.source == "original files"
    assert data.in_shape == shape
    assert set(data.sha256) == {file.name for file in SPECS[name].releases[release].files}


@pytest.mark.parametrize(("name", "release", "write"), CASES, ids=IDS)
def test_wrong_checksum(
    tmp_path: Path, name: str, release: int, write: Callable[[Path], tuple[np.ndarray, ...]]
) -> None:
    write(tmp_path)
    file = SPECS[name].releases[release].files[0]
    with pytest.raises(DataError, match=f"{file.name} has the wrong checksum: md5 .* expected {file.md5}"):
        load(name, tmp_path, download=False)


@pytest.mark.parametrize(("name", "release", "write"), CASES, ids=IDS)
def test_truncated(tmp_path: Path, name: str, release: int, write: Callable[[Path], tuple[np.ndarray, ...]]) -> None:
    """Even with a checksum that fits, a file cut in half is refused by name."""
    write(tmp_path)
    path = tmp_path / SPECS[name].releases[release].files[0].name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=f"{path.name} is truncated"):
        load_spec(writers.expecting(tmp_path, name, release), tmp_path, fetch=False)


@pytest.mark.parametrize(("name", "release", "write"), CASES, ids=IDS)
def test_wrong_magic(tmp_path: Path, name: str, release: int, write: Callable[[Path], tuple[np.ndarray, ...]]) -> None:
    write(tmp_path)
    path = tmp_path / SPECS[name].releases[release].files[0].name
    path.write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(DataError, match=f"{path.name} (has the wrong magic|is truncated or not a)"):
        load_spec(writers.expecting(tmp_path, name, release), tmp_path, fetch=False)


@pytest.mark.parametrize(("name", "release", "write"), CASES, ids=IDS)
def test_wrong_count(tmp_path: Path, name: str, release: int, write: Callable[[Path], tuple[np.ndarray, ...]]) -> None:
    write(tmp_path)
    with pytest.raises(DataError, match=rf"{name}: x_test has shape \(10, .*expected \(11, "):
        load_spec(writers.expecting(tmp_path, name, release, test=11), tmp_path, fetch=False)


def test_absent_and_offline_lists_files(tmp_path: Path) -> None:
    with pytest.raises(DataMissing) as caught:
        load("cifar10", tmp_path, download=False)
    message = str(caught.value)
    for release in SPECS["cifar10"].releases:
        for file in release.files:
            assert f"{file.name}  md5 {file.md5}  {file.url}" in message
    assert str(tmp_path / "cifar10") in message
    assert "cifar10.npz" in message


def test_failed_download_lists_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def retrieve(*_: object, **__: object) -> str:
        raise OSError("no route to host\nand more")

    monkeypatch.setattr("pooch.retrieve", retrieve)
    with pytest.raises(DataMissing, match=r"svhn is not at hand \(.*train_32x32.mat could not be fetched: no route"):
        load("svhn", tmp_path)


def test_download_fetches_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three files at hand, one fetched: by its published address, with its checksum, into the cache."""
    home, here, cache = tmp_path / "home", tmp_path / "here", tmp_path / "cache"
    for folder in (home, here):
        folder.mkdir()
        writers.write_idx_set(folder)
    spec = writers.expecting(home, "mnist")
    (here / IDX_NAMES[1]).unlink()
    asked = []

    def retrieve(url: str, known_hash: str, fname: str, path: Path) -> str:
        asked.append((url, known_hash, path))
        path.mkdir(parents=True)
        return str(shutil.copy(home / fname, path / fname))

    monkeypatch.setattr("pooch.retrieve", retrieve)
    monkeypatch.setattr("fcco.lab.datasets.loading.cache_folder", lambda: cache)
    data = load_spec(spec, here)
    file = spec.releases[0].files[1]
    assert asked == [(file.url, f"md5:{file.md5}", cache / "mnist")]
    assert len(data.x_train) == writers.TRAIN
    (here / IDX_NAMES[0]).rename(cache / "mnist" / IDX_NAMES[0])
    with pytest.raises(DataMissing):
        load_spec(spec, cache, fetch=False)


def test_same_names_of_another_set_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MNIST's files in the data folder do not stand in the way of Fashion-MNIST's in its own."""
    writers.write_idx_set(tmp_path)
    monkeypatch.setitem(SPECS, "mnist", writers.expecting(tmp_path, "mnist"))
    assert load("mnist", tmp_path, download=False).name == "mnist"
    with pytest.raises(DataMissing):
        load("fashion-mnist", tmp_path, download=False)


def _write_npz(path: Path, **changes: np.ndarray) -> None:
    x, y, t, s = writers.cifar_arrays(10)
    arrays = {
        "x_train": x.transpose(0, 2, 3, 1),
        "y_train": y,
        "x_test": t.transpose(0, 2, 3, 1),
        "y_test": s,
    }
    np.savez(path, **{**arrays, **changes})


def test_named_npz_is_reported_as_user_provided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_npz(tmp_path / "cifar10.npz")
    monkeypatch.setenv("FCCO_DATA", str(tmp_path))
    data = load("cifar10", download=False)
    np.testing.assert_array_equal(data.x_train.numpy(), writers.cifar_arrays(10)[0])
    assert data.source == "user-provided cifar10.npz"
    assert data.classes[0] == "airplane"
    assert data.note == "train holds 20 of the published 50000, test holds 10 of the published 10000"
    assert data.sha256["cifar10.npz"] in str(data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": np.full(20, 10)}, r"y_train must hold labels in 0..9, got 10"),
        ({"y_test": np.full(10, -1)}, r"y_test must hold labels in 0..9, got -1"),
        ({"y_train": np.zeros(19, int)}, "y_train has 19 rows for 20 examples"),
        ({"y_train": np.zeros(20)}, "must be integers"),
        ({"x_test": np.zeros((10, 3, 31, 32), np.uint8)}, "x_train is .* but x_test is"),
        ({"x_train": np.zeros((20, 8, 8, 2), np.uint8)}, "1 or 3 channels"),
        (
            {"x_train": np.zeros((20, 8, 8), np.uint8), "x_test": np.zeros((10, 8, 8), np.uint8)},
            "of 3 channels, got 1",
        ),
        ({"x_train": np.zeros((20, 5)), "x_test": np.zeros((10, 5))}, "must hold uint8 images"),
        ({"x_train": np.array([object] * 20)}, "holds pickled objects"),
    ],
)
def test_named_npz_refusals(tmp_path: Path, changes: dict[str, np.ndarray], message: str) -> None:
    _write_npz(tmp_path / "cifar10.npz", **changes)
    with pytest.raises(DataError, match=message):
        load("cifar10", tmp_path, download=False)


def test_damaged_npz(tmp_path: Path) -> None:
    path = tmp_path / "cifar10.npz"
    _write_npz(path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"not an npz", b""):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"cifar10.npz is truncated, damaged or holds pickled objects"):
            load("cifar10", tmp_path, download=False)
    np.savez(path, x_train=np.zeros(3))
    with pytest.raises(DataError, match=r"cifar10.npz must hold .*; y_train is missing"):
        load("cifar10", tmp_path, download=False)


def test_digits_are_fixed() -> None:
    first, second = load("digits"), load("digits")
    assert (len(first.x_train), len(first.x_test)) == (1442, 355)
    assert first.in_shape == (1, 8, 8)
    assert int(first.x_train.max()) == 255
    assert first.y_test.bincount(minlength=10).min() >= 34
    assert torch.equal(first.x_test, second.x_test)
    assert first.source == "embedded"
    assert len(first.sha256["digits"]) == 64


def test_bad_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"name must be one of digits, .*got 'cifar-10' \(did you mean 'cifar10'\?\)"):
        load("cifar-10")
    with pytest.raises(DataError, match="root must be a folder, got"):
        load("mnist", tmp_path / "absent")
    monkeypatch.setenv("FCCO_DATA", str(tmp_path / "absent"))
    with pytest.raises(DataError, match="FCCO_DATA must be a folder, got"):
        load("mnist")


def test_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"the digits data set needs scikit-learn: pip install 'fcco\[lab\]'"):
        load("digits")


SIZES = {  # what may lie in $FCCO_DATA: per set (train, test) counts that are known, and the image sizes
    "mnist": ({(60000, 10000)}, {(1, 28, 28)}),
    "fashion-mnist": ({(60000, 10000)}, {(1, 28, 28)}),
    "cifar10": ({(50000, 10000)}, {(3, 32, 32)}),
    "cifar100": ({(50000, 10000), (25000, 10000)}, {(3, 32, 32)}),
    "svhn": ({(73257, 26032), (25000, 5000)}, {(3, 32, 32)}),
    "stl10": ({(5000, 8000)}, {(3, 96, 96), (3, 32, 32)}),
}


@pytest.mark.data
@pytest.mark.parametrize("name", SIZES)
def test_sets_at_hand(name: str) -> None:
    try:
        data = load(name, download=False)
    except DataMissing:
        pytest.skip(f"{name} is not in FCCO_DATA")
    counts, shapes = SIZES[name]
    assert (len(data.x_train), len(data.x_test)) in counts
    assert data.in_shape in shapes
    assert data.num_classes == len(data.classes) == (100 if name == "cifar100" else 10)
    _check_every_class(data)
    published = (SPECS[name].train, SPECS[name].test, SPECS[name].shape)
    assert (data.note == "") == ((len(data.x_train), len(data.x_test), data.in_shape) == published)


def _check_every_class(data: Dataset) -> None:
    train, test = (y.bincount(minlength=data.num_classes) for y in (data.y_train, data.y_test))
    assert bool((train > 0).all())
    assert bool((test > 0).all())
    if data.name in ("fashion-mnist", "cifar10", "stl10"):  # balanced, both splits
        assert len(train.unique()) == len(test.unique()) == 1
    if data.name == "mnist":
        assert train.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def test_public_names() -> None:
    assert datasets.NAMES == ("digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "svhn", "stl10")
    assert all(hasattr(datasets, name) for name in datasets.__all__)

"""Ways in for the user's own data: folders of images, tables, .npz files, torch Datasets."""

import lzma
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

from fcco.lab.datasets import DataError, from_dataset, from_folder, from_npz, from_table, read_labelled
from fcco.tables import TableEncoder
from fcco.tables._columns import read_columns


def _write_images(folder: Path, count: int = 5, size: tuple[int, int] = (6, 4), classes: str = "ab") -> None:
    """Images of one colour: class a is red, b is blue; height x width = `size`."""
    for k, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for n in range(count):
            pixels = np.zeros((*size, 3), np.uint8)
            pixels[..., 2 * (k % 2)] = 200 + n
            Image.fromarray(pixels).save(folder / name / f"{n}.png")


def test_folder(tmp_path: Path) -> None:
    _write_images(tmp_path / "pets")
    (tmp_path / "pets" / "a" / "notes.txt").write_text("not an image")
    data = from_folder(tmp_path / "pets")
    assert data.classes == ("a", "b")
    assert tuple(data.x_train.shape) == (8, 3, 6, 4)
    assert tuple(data.x_test.shape) == (2, 3, 6, 4)
    assert data.y_test.tolist() == [0, 1]
    assert bool((data.x_train[data.y_train == 0][:, 0] >= 200).all())
    assert bool((data.x_train[data.y_train == 1][:, 2] >= 200).all())
    assert (data.name, data.source) == ("pets", "user-provided folder pets")
    assert torch.equal(from_folder(tmp_path / "pets").x_test, data.x_test)
    assert from_folder(tmp_path / "pets").sha256 == data.sha256
    assert from_folder(tmp_path / "pets", size=3, channels=1).in_shape == (1, 3, 3)


def test_folder_with_train_and_test(tmp_path: Path) -> None:
    _write_images(tmp_path / "train")
    _write_images(tmp_path / "test", count=2)
    Image.fromarray(np.full((6, 4), 7, np.uint8)).save(tmp_path / "train" / "a" / "grey.jpeg")
    data = from_folder(tmp_path)
    assert data.y_train.tolist() == [0] * 6 + [1] * 5
    assert data.y_test.tolist() == [0, 0, 1, 1]


def test_folder_refusals(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="path must be a folder of class sub-folders"):
        from_folder(tmp_path / "absent")
    _write_images(tmp_path / "x")
    with pytest.raises(DataError, match="channels must be 1 or 3, got 4"):
        from_folder(tmp_path / "x", channels=4)
    with pytest.raises(DataError, match="size must be positive, got 0"):
        from_folder(tmp_path / "x", size=0)
    with pytest.raises(DataError, match=r"test_fraction must be in \(0, 1\), got 1.5"):
        from_folder(tmp_path / "x", test_fraction=1.5)
    with pytest.raises(DataError, match=r"test_fraction 0.01 of 10 examples leaves no test example"):
        from_folder(tmp_path / "x", test_fraction=0.01)
    Image.fromarray(np.zeros((5, 5, 3), np.uint8)).save(tmp_path / "x" / "b" / "z.png")
    with pytest.raises(DataError, match=r"z.png is 5x5, the first image 6x4: pass size= \(--image-size\) to resize"):
        from_folder(tmp_path / "x")
    image = tmp_path / "x" / "b" / "z.png"
    image.write_bytes(image.read_bytes()[:40])
    with pytest.raises(DataError, match=r"z.png is truncated or not an image"):
        from_folder(tmp_path / "x")
    (tmp_path / "x" / "c").mkdir()
    with pytest.raises(DataError, match=r"class 'c' in .* has no PNG or JPEG image"):
        from_folder(tmp_path / "x")


def test_folder_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_images(tmp_path / "x")
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match="from_folder needs Pillow: pip install pillow"):
        from_folder(tmp_path / "x")


def test_folder_test_images_must_fit(tmp_path: Path) -> None:
    _write_images(tmp_path / "train")
    _write_images(tmp_path / "test", size=(5, 5))
    with pytest.raises(DataError, match=r"0.png is 5x5, the first image 6x4"):
        from_folder(tmp_path)
    assert from_folder(tmp_path, size=(7, 3)).in_shape == (3, 7, 3)


def test_folder_classes_must_agree(tmp_path: Path) -> None:
    _write_images(tmp_path / "train")
    _write_images(tmp_path / "test", classes="abc")
    with pytest.raises(DataError, match="has the class 'c', which train does not have"):
        from_folder(tmp_path)
    with pytest.raises(DataError, match="at least two class sub-folders, got 0"):
        from_folder(tmp_path / "train" / "a")


CSV = "height,weight,kind,id\n" + "".join(f"{k},{k / 4},{'cat' if k % 2 else 'dog'},n{k}\n" for k in range(20))


def test_csv_with_words_as_classes(tmp_path: Path) -> None:
    (tmp_path / "pets.csv").write_text(CSV)
    data = from_table(tmp_path / "pets.csv", target="kind", drop=["id"], positive="dog")
    assert data.classes == ("dog",)
    assert tuple(data.x_train.shape) == (16, 2)
    assert data.x_train.dtype == torch.float32
    assert data.y_test[:, 0].tolist().count(1.0) == 2  # two classes are one label; both in both parts alike
    assert torch.equal(data.x_train[:, 0] % 2 == 1, data.y_train[:, 0] == 0)
    assert data.source == "user-provided pets.csv"


def test_three_classes_stay_classes(tmp_path: Path) -> None:
    rows = "".join(f"{k},{'abc'[k % 3]}\n" for k in range(30))
    (tmp_path / "t.csv").write_text("x,y\n" + rows)
    data = from_table(tmp_path / "t.csv", target="y")
    assert data.classes == ("a", "b", "c")
    assert data.y_test.bincount().tolist() == [2, 2, 2]
    assert not data.multilabel
    one = from_table(tmp_path / "t.csv", target="y", positive="b")
    assert one.classes == ("b",)
    assert torch.equal(one.x_train[:, 0] % 3 == 1, one.y_train[:, 0] == 1)


def test_labels_of_minus_one(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,y,z\n" + "".join(f"{k},{k % 2 * 2 - 1},{k % 2}\n" for k in range(10)))
    data = from_table(tmp_path / "t.csv", target=["y", "z"])
    assert torch.equal(data.y_train[:, 0], data.y_train[:, 1])


def test_missing_targets_of_a_labelled_table_are_missing_labels(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y,z\n1,no,3\n2,,1\n3,yes,\n4,no,2\n" + "5,no,1\n6,no,2\n" * 2)
    with pytest.warns(UserWarning, match="'y' has no value in 1 of 8 rows, the first of them row 1"):
        two = read_labelled(tmp_path / "t.csv", target="y", drop=["z"])
    assert two.y[[0, 2, 3], 0].tolist() == [0.0, 1.0, 0.0]
    assert bool(two.y[1, 0].isnan())
    assert (two.classes, two.negative) == (("yes",), "no")
    with pytest.warns(UserWarning, match="'z' has no value in 1 of 8 rows, the first of them row 2"):
        three = read_labelled(tmp_path / "t.csv", target="z", drop=["y"])
    assert three.y[[0, 1, 3]].tolist() == [2.0, 0.0, 1.0]
    assert bool(three.y[2].isnan())
    assert three.classes == ("1", "2", "3")


def test_a_labelled_table_keeps_every_kind_of_column(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("town,age,id,y\nBonn,31,1,no\n,,2,yes\nKiel,28,3,no\n")
    table = read_labelled(tmp_path / "t.csv", target="y", drop=["id"], positive="yes")
    assert list(table.columns) == ["town", "age"]
    assert table.columns["town"].tolist()[0] == "Bonn"
    assert np.isnan(table.columns["age"][1])
    assert table.y.tolist() == [[0.0], [1.0], [0.0]]
    assert (table.classes, table.negative) == (("yes",), "no")
    encoder = TableEncoder().fit(table.columns)
    assert encoder.names == ["age", "age is missing", "town"]


@pytest.mark.parametrize("first", [2**53, 10**20, -(10**400)])
@pytest.mark.parametrize("gap", ["7", "", "NA"])
def test_whole_numbers_of_any_size_stay_what_they_are(first: int, gap: str, tmp_path: Path) -> None:
    """As floats, which gaps make of them, neighbours would be one number, or too large."""
    wholes = [first, first + 1, first + 2]
    rows = [f"{whole},{number % 2}" for number, whole in enumerate(wholes)]
    (tmp_path / "t.csv").write_text("\n".join(["a,y", *rows, f"{gap},1"]) + "\n")
    found = read_columns(read_labelled(tmp_path / "t.csv", "y").columns).columns[0]
    assert [int(value) for value in found.values[:3]] == wholes
    assert found.missing.tolist() == [False, False, False, gap != "7"]


def test_whole_numbers_beside_gaps_of_a_parquet_file(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    wholes = [2**60, 2**60 + 1, None]
    frame = pandas.DataFrame({"a": pandas.array(wholes, dtype="Int64"), "y": [0, 1, 1]})
    frame.to_parquet(tmp_path / "t.parquet")
    found = read_columns(read_labelled(tmp_path / "t.parquet", "y").columns).columns[0]
    assert [int(value) for value in found.values[:2]] == wholes[:2]
    assert found.missing.tolist() == [False, False, True]


def test_csv_with_test_table(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("a,y\n1,5\n2,7\n3,7\n")
    (tmp_path / "test.csv").write_text("y,a\n7,4\n5,5\n")
    data = from_table(tmp_path / "train.csv", "y", test=tmp_path / "test.csv")
    assert data.x_test.tolist() == [[4], [5]]
    assert data.y_test.tolist() == [[1], [0]]
    assert data.classes == ("7",)
    assert set(data.sha256) == {"train.csv", "test.csv"}
    (tmp_path / "test.csv").write_text("y,a\n7,4\n")  # one class alone keeps its number
    assert from_table(tmp_path / "train.csv", "y", test=tmp_path / "test.csv").y_test.tolist() == [[1]]
    (tmp_path / "test.csv").write_text("y,a\n9,4\n")
    with pytest.raises(DataError, match=r"test.csv: target 'y' has the class 9, which train.csv does not have"):
        from_table(tmp_path / "train.csv", "y", test=tmp_path / "test.csv")
    (tmp_path / "test.csv").write_text("y,b\n7,4\n")
    with pytest.raises(DataError, match=r"column 'a' is not a column of test.csv"):
        from_table(tmp_path / "train.csv", "y", test=tmp_path / "test.csv")


def test_csv_with_several_labels(tmp_path: Path) -> None:
    rows = "".join(f"{k},{'' if k % 3 == 0 else k % 2},{k // 5 % 2}\n" for k in range(20))
    with lzma.open(tmp_path / "tasks.csv.xz", "wt", encoding="utf-8-sig") as file:  # with a byte-order mark
        file.write("x,t1,t2\n" + rows)
    data = from_table(tmp_path / "tasks.csv.xz", target=["t1", "t2"])
    assert data.multilabel
    assert data.classes == ("t1", "t2")
    assert (tuple(data.y_train.shape), tuple(data.y_test.shape)) == ((16, 2), (4, 2))
    assert torch.equal(data.y_train[:, 0].isnan(), data.x_train[:, 0] % 3 == 0)
    assert not bool(data.y_train[:, 1].isnan().any())
    assert from_table(tmp_path / "tasks.csv.xz", target=["t2"], drop=["t1"]).y_train.shape == (16, 1)


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (CSV, {"target": "knd"}, "target 'knd' is not a column of t.csv, which has height, weight, kind, id"),
        (CSV, {"target": "kind", "positive": "cat"}, "column 'id' is not numeric; add it to drop="),
        (CSV, {"target": "kind", "drop": ["id"]}, "name the positive class by positive='dog' or --positive dog"),
        (
            CSV,
            {"target": "kind", "drop": ["id"], "positive": "cow"},
            "has no class 'cow' for positive=; it has cat, dog",
        ),
        (CSV, {"target": ["kind", "id"], "positive": "cat"}, "positive needs a single target column, got 2"),
        (CSV, {"target": "kind", "drop": ["idd"]}, "drop 'idd' is not a column"),
        (CSV, {"target": "kind", "drop": "id"}, "drop must be a sequence of column names, got 'id'"),
        (CSV, {"target": "weight", "drop": ["id", "kind"]}, "must hold classes, got 0.25"),
        (CSV, {"target": ["height"], "drop": ["id", "kind"]}, "column 'height' must hold only 0, 1 and empty cells"),
        (CSV, {"target": []}, "target must name each column once, at least one, got"),
        (CSV, {"target": "kind", "drop": ["id", "height", "weight"]}, "has no feature columns other than"),
        ("a,y\n1,0\n,1\n", {"target": "y"}, "column 'a' has missing or infinite values"),
        ("a,y\n1,0\ninf,1\n", {"target": "y"}, "column 'a' has missing or infinite values"),
        ("a,y\n1,0\n2,\n", {"target": "y"}, "target 'y' has no value in row 1"),
        ("a,y\n1,cat\n2,\n", {"target": "y"}, "target 'y' has no value in row 1; leave such rows out"),
        ("a,y\n1,0\n2,0\n", {"target": "y"}, "target 'y' has only one class"),
        ("a,y\n", {"target": "y"}, "at least one row"),
        ("a,y,y\n1,0,0\n2,1,1\n", {"target": "y"}, "t.csv has two columns named 'y'"),
        ("a,y,y \n1,0,0\n2,1,1\n", {"target": "y"}, "t.csv has the columns 'y' and 'y ', which look alike"),
        ("a,\u00e9,e\u0301\n1,0,0\n2,1,1\n", {"target": "\u00e9"}, "which look alike"),
        (
            f"a,y\n1,{10**30}\n2,{10**30 + 1}\n",
            {"target": "y"},
            "whole numbers that do not fit in 64 bits, such as 10000",
        ),
        (f"a,y\n{10**30},0\n{10**30 + 1},1\n", {"target": "y"}, "column 'a' is not numeric"),
        ("a,y\n1,2,0\n2,3,1\n", {"target": "y"}, "t.csv has rows that are longer than the first one"),
        (
            "a,y\n16777216,0\n16777217,1\n",
            {"target": "y"},
            "32-bit floats cannot tell apart, such as 16777216 and 16777217",
        ),
        ("", {"target": "y"}, "t.csv is truncated or damaged"),
        ('a,y\n1,"0\n', {"target": "y"}, "t.csv is truncated or damaged"),
    ],
)
def test_csv_refusals(tmp_path: Path, text: str, arguments: dict[str, object], message: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        from_table(tmp_path / "t.csv", **arguments)  # type: ignore[arg-type]


def test_table_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a\n")
    with pytest.raises(DataError, match=r"path must be a .csv, .tsv, .parquet or .npz file, got 't.txt'"):
        from_table(tmp_path / "t.txt", "a")
    with pytest.raises(DataError, match=r"path must be a .csv, .tsv, .parquet or .npz file, got"):
        from_table(tmp_path / "absent.csv", "a")


def test_npz_table(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    several = np.stack([y, np.where(y == 0, np.nan, 1)], axis=1)
    np.savez(tmp_path / "t.npz", x=x, age=np.arange(20), y=y, tasks=several)
    data = from_table(tmp_path / "t.npz", "y", drop=["tasks"])
    assert data.in_shape == (4,)
    assert data.classes == ("1",)
    data = from_table(tmp_path / "t.npz", "tasks", drop=["y"])
    assert data.classes == ("tasks.0", "tasks.1")
    assert bool(data.y_train[:, 1].isnan().any())
    np.savez(tmp_path / "t.npz", x=np.zeros((2, 2, 2)))
    with pytest.raises(DataError, match=r"x must be \(N,\) or \(N, k\)"):
        from_table(tmp_path / "t.npz", "y")


def test_parquet(tmp_path: Path) -> None:
    import pandas

    pandas.DataFrame({"a": range(10), "y": [0.0, 1.0, None, 0.0, 1.0] * 2}).to_parquet(tmp_path / "t.parquet")
    data = from_table(tmp_path / "t.parquet", ["y"])
    assert tuple(data.y_train.shape) == (8, 1)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "fastparquet"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(ImportError, match=r"reading .parquet needs pyarrow: pip install 'fcco\[parquet\]'"):
        from_table(tmp_path / "t.parquet", "y")


def test_four_arrays(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, x_train=np.eye(4), y_train=np.array([0, 1, 2, 1]), x_test=np.eye(4)[:2], y_test=np.array([0, 1]))
    data = from_npz(path)
    assert (data.name, data.num_classes, data.in_shape) == ("own", 3, (4,))
    assert data.source == "user-provided own.npz"
    assert from_npz(path, num_classes=5).num_classes == 5
    with pytest.raises(DataError, match=r"path must be an .npz file"):
        from_npz(tmp_path / "absent.npz")
    with path.open("wb") as file:
        np.save(file, np.eye(3))
    with pytest.raises(DataError, match=r"own.npz is a single array"):
        from_npz(path)


class _Images(TorchDataset[object]):
    """Pillow images with a class, as a data set without transforms yields them."""

    def __init__(self, count: int, grey: bool = False) -> None:
        self.count, self.grey = count, grey

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> object:
        shape = (4, 5) if self.grey else (4, 5, 3)
        return Image.fromarray(np.full(shape, row, np.uint8)), row % 2


def test_torch_dataset() -> None:
    data = from_dataset(_Images(10))
    assert tuple(data.x_train.shape) == (8, 3, 4, 5)
    assert data.x_train.dtype == torch.uint8
    assert data.source == "user-provided torch Dataset _Images"
    assert from_dataset(_Images(10, grey=True), _Images(4, grey=True)).in_shape == (1, 4, 5)
    table = TensorDataset(torch.randn(10, 3, dtype=torch.float64), torch.arange(10) % 3)
    data = from_dataset(table, table, name="mine", num_classes=4)
    assert (data.name, data.num_classes, data.x_train.dtype) == ("mine", 4, torch.float32)
    assert from_dataset(TensorDataset(torch.randn(10, 3), torch.ones(10, 2))).multilabel


class _Stream(IterableDataset[int]):
    """A data set without an order."""

    def __iter__(self) -> Iterator[int]:
        return iter(())


def test_torch_dataset_refusals() -> None:
    with pytest.raises(DataError, match="train must be a map-style Dataset with a length, got _Stream"):
        from_dataset(_Stream())
    with pytest.raises(DataError, match="train must hold at least one item"):
        from_dataset(_Images(0))
    with pytest.raises(DataError, match=r"train\[0\] must be a pair \(x, y\)"):
        from_dataset(TensorDataset(torch.zeros(3, 2)))
    with pytest.raises(DataError, match=r"train\[0\]: y cannot be read as a tensor .*a label is a whole number"):
        from_dataset(TensorDataset(torch.zeros(3, 2), torch.tensor([0.5, 1, 2])))
    with pytest.raises(DataError, match=r"x_train must be finite, got NaN or infinity"):
        from_dataset(TensorDataset(torch.full((10, 2), torch.nan), torch.arange(10) % 2))
    with pytest.raises(DataError, match=r"must hold labels in 0..0, got 1"):
        from_dataset(TensorDataset(torch.zeros(10, 2), torch.arange(10) % 2), num_classes=1)


def test_an_image_that_claims_to_be_huge(tmp_path: Path) -> None:
    """Sixty thousand by sixty thousand, in a file of some hundred bytes."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0))
    _write_images(tmp_path / "pets")
    bomb = tmp_path / "pets" / "a" / "0.png"
    bomb.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b""))
    with pytest.raises(DataError, match=r"a/0.png is an image that is too large \(Image size \(3600000000 pixels\)"):
        from_folder(tmp_path / "pets")

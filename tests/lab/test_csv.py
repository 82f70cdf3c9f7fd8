"""CSV as spreadsheets and other programs write it."""

import gzip
import warnings
from pathlib import Path

import numpy as np
import pytest

from fcco.lab.datasets.errors import DataError
from fcco.lab.datasets.table import Table, read_table

pytest.importorskip("pandas")

ROWS = [("name", "size", "note", "y"), ("Ada", "1.5", "a b", "0"), ("Bo", "-2.25", "c", "1"), ("Cy", "30", "d, e", "0")]


def read(path: Path, text: str, encoding: str = "utf-8") -> Table:
    path.write_bytes(text.encode(encoding))
    return read_table(path)


@pytest.mark.parametrize(("separator", "name"), [(";", "t.csv"), ("\t", "t.csv"), ("\t", "t.tsv"), ("|", "t.csv")])
def test_separators(separator: str, name: str, tmp_path: Path) -> None:
    table = read(tmp_path / name, "".join(separator.join(row) + "\n" for row in ROWS))
    assert list(table.columns) == ["name", "size", "note", "y"]
    assert table.columns["size"].tolist() == [1.5, -2.25, 30.0]
    assert table.columns["note"].tolist() == ["a b", "c", "d, e"]
    assert table.columns["y"].tolist() == [0, 1, 0]


def test_separator_of_a_compressed_table(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"a;y\n1,5;0\n2,5;1\n"))
    assert read_table(path).columns["a"].tolist() == [1.5, 2.5]


def test_commas_win_where_rows_have_them(tmp_path: Path) -> None:
    table = read(tmp_path / "t.csv", 'a,"b;c;d",y\n1,"2;3;4",0\n5,"6;7;8",1\n')
    assert list(table.columns) == ["a", "b;c;d", "y"]
    table = read(tmp_path / "t.csv", "a,b;c\n1,2;3\n4,5;6\n")
    assert list(table.columns) == ["a", "b;c"]


def test_a_quoted_cell_of_two_lines(tmp_path: Path) -> None:
    rows = "".join(f'{row};"one\ntwo";{row % 2}\n' for row in range(30))
    table = read(tmp_path / "t.csv", f"a;b;y\n{rows}")
    assert table.columns["b"].tolist() == ["one\ntwo"] * 30


def test_decimal_commas_and_gaps(tmp_path: Path) -> None:
    table = read(tmp_path / "t.csv", "a;b;y\n1,5;-0,25;0\nNA;3;1\n;1e3;0\n")
    np.testing.assert_array_equal(table.columns["a"], [1.5, np.nan, np.nan])
    assert table.columns["b"].tolist() == [-0.25, 3.0, 1000.0]


def test_percent_signs(tmp_path: Path) -> None:
    table = read(tmp_path / "t.csv", "a,b,y\n12.5%,5%,0\n,x%,1\n-3 %,6%,0\n")
    np.testing.assert_array_equal(table.columns["a"], [12.5, np.nan, -3.0])
    assert table.columns["b"].tolist() == ["5%", "x%", "6%"]


def test_percent_signs_behind_decimal_commas(tmp_path: Path) -> None:
    table = read(tmp_path / "t.csv", "a;y\n12,5%;0\n;1\n-3 %;0\n")
    np.testing.assert_array_equal(table.columns["a"], [12.5, np.nan, -3.0])


@pytest.mark.parametrize(("cell", "expected"), [
    ("'$1,{row:03}.50'", "column 'a' is read as words: if '$1,000.50' is a number, write it as 1234.5"),
    ("'{row},5'", "column 'a' is read as words: if '0,5' is a number, write it as 1234.5"),
    ("13/01/20{row:02}", "column 'a' is read as words: if '13/01/2000' is a date, write it as 2026-01-31"),
])  # fmt: skip
def test_words_that_look_like_numbers_or_dates_are_told(cell: str, expected: str, tmp_path: Path) -> None:
    cells = [cell.format(row=row).replace("'", '"') for row in range(40)]
    with pytest.warns(UserWarning, match="is read as words") as told:
        table = read(tmp_path / "t.csv", "a,y\n" + "".join(f"{text},{row % 2}\n" for row, text in enumerate(cells)))
    assert table.columns["a"].dtype.kind == "U"
    assert [str(warning.message) for warning in told] == [f"t.csv: {expected}"]


def test_grades_are_no_numbers(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = read(tmp_path / "t.csv", "a,y\n" + "".join(f"{row % 3}+,{row % 2}\n" for row in range(40)))
    assert table.columns["a"].dtype.kind == "U"


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_other_encodings_are_refused(encoding: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"t\.csv is not UTF-8 text .*: save it as UTF-8"):
        read(tmp_path / "t.csv", "town,y\nKöln,0\nUlm,1\n", encoding)


@pytest.mark.parametrize("name", [" died ", "Died", "did"])
def test_the_nearest_column_is_named(name: str, tmp_path: Path) -> None:
    table = read(tmp_path / "t.csv", f"age,{name}\n1,0\n2,1\n")
    with pytest.raises(DataError, match=rf"target 'died' is not a column of t\.csv, .* \(did you mean '{name}'\?\)"):
        table.named("target", ["died"])


def test_names_with_commas_between_them_are_told_apart(tmp_path: Path) -> None:
    table = read(tmp_path / "t.csv", "id,age,y\n1,2,0\n2,3,1\n")
    with pytest.raises(DataError, match=r"drop 'id,age' is not a column of .*: separate the names by spaces, id age"):
        table.named("drop", ["id,age"])

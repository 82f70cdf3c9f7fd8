"""TableEncoder: every kind of column, every kind of table, and what is refused by row and column."""

import datetime
import json

import numpy as np
import pandas
import pytest
import scipy.sparse
import torch

from fcco.tables import TableEncoder, TableError, TableTypeError, TableWarning


def encoded(table, column=0):
    return TableEncoder().fit_transform(table)[:, column]


def frame(rows=60, seed=0):
    rng = np.random.default_rng(seed)
    return pandas.DataFrame(
        {
            "size": rng.normal(5.0, 2.0, rows),
            "town": rng.choice(["Bonn", "Kiel", "Ulm"], rows),
            "rare": (np.arange(rows) == 7).astype(int),
            "count": rng.poisson(0.2, rows),
            "when": pandas.Timestamp("2024-01-01") + pandas.to_timedelta(rng.integers(0, 900, rows), "D"),
            "open": rng.random(rows) < 0.5,
        }
    )


# ------------------------------------------------------------------ numbers


def test_a_rare_column_stays_zero_and_one():
    values = np.zeros(28_000)
    values[[3, 77, 500, 9_000, 20_000]] = 1.0  # standardised, these would reach 75
    assert encoded(values[:, None]).unique().tolist() == [0.0, 1.0]


def test_sparse_counts_survive():
    values = np.zeros(10_000)
    values[:5] = [1, 2, 3, 2, 40]
    found = encoded(values[:, None])
    assert found[5:].abs().max() == 0.0
    assert 0.0 < found[0] < found[1] == found[3] < found[2] < found[4] < 5.0


def test_numbers_are_scaled_by_their_middle_half():
    values = np.append(np.random.default_rng(0).normal(100.0, 10.0, 999), 1e12)
    found = encoded(values[:, None])
    quarter, three_quarters = np.quantile(values, [0.25, 0.75])
    wanted = np.arcsinh((values - np.sort(values)[499]) / ((three_quarters - quarter) / 1.349))
    assert torch.allclose(found[:-1].double(), torch.from_numpy(wanted[:-1]), atol=1e-6)
    assert 20.0 < found[-1] < 22.0  # one slip of the keyboard neither drowns the others nor diverges


def test_scaling_ignores_unit_and_origin():
    values = np.random.default_rng(0).normal(size=(200, 1))
    assert torch.allclose(encoded(values), encoded(1e6 * values + 3e7), atol=1e-5)


def test_missing_numbers_are_the_median_and_an_indicator():
    encoder = TableEncoder()
    found = encoder.fit_transform([[1.0], [2.0], [float("nan")], [3.0]])
    assert encoder.names == ["x0", "x0 is missing"]
    assert found[2].tolist() == [0.0, 1.0]
    assert found[1].tolist() == [0.0, 0.0]  # the median itself
    assert encoder.transform([[None]]).tolist() == [[0.0, 1.0]]


def test_missing_only_in_new_rows_is_the_median():
    encoder = TableEncoder().fit([[1.0], [2.0], [3.0]])
    assert encoder.transform([[float("nan")]]).tolist() == [[0.0]]


def test_one_value_and_gaps_leave_the_indicator():
    encoder = TableEncoder()
    assert encoder.fit_transform([[5.0], [None], [5.0]]).tolist() == [[0.0], [1.0], [0.0]]


def test_new_values_stay_near_those_of_training():
    encoder = TableEncoder().fit([[1.0], [2.0], [3.0], [4.0]])
    inside = encoder.transform([[4.0]]).item()
    assert encoder.transform([[1e30]]).item() == pytest.approx(inside + 1.0)


def test_large_whole_numbers_keep_their_differences():
    start = 2**60
    found = encoded({"id": [start, start + 1, start + 2, start + 5]})
    assert len(found.unique()) == 4
    assert encoded([[2**63], [2**63 + 1], [2**63 + 3]]).unique().numel() == 3  # beyond int64
    assert encoded(np.array([[0], [2**64 - 1], [2**63]], dtype=np.uint64)).unique().numel() == 3
    two = encoded({"id": [start, start + 1, start]})
    assert two.tolist() == [0.0, 1.0, 0.0]


def test_whole_numbers_that_fall_together_are_refused():
    table = {"id": [number * 2**40 for number in range(50)] + [2**50 + number for number in range(50)]}
    with pytest.raises(TableError, match=r"column 'id' holds whole numbers that 32 bits cannot tell apart"):
        TableEncoder().fit(table)


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinity_is_refused_by_row_and_column(value):
    with pytest.raises(TableError, match=r"column 'a' has -?inf in row 2"):
        TableEncoder().fit({"a": [0.0, 1.0, value]})
    encoder = TableEncoder().fit({"a": [0.0, 1.0, 2.0]})
    with pytest.raises(TableError, match=r"column 'a' has -?inf in row 0"):
        encoder.transform({"a": np.array([value])})


def test_numbers_beyond_the_range_of_differences_are_refused():
    with pytest.raises(TableError, match=r"column 'a' has -?1.7e\+308 in row \d: too large"):
        TableEncoder().fit({"a": [1.7e308, -1.7e308, 0.5e308, 1.0e308]})


# ------------------------------------------------------------------ strings, truth values, times


def test_strings_have_codes_for_missing_and_new_ones():
    encoder = TableEncoder()
    found = encoder.fit_transform({"town": ["Bonn", "Kiel", "Bonn", None, "Kiel", "Ulm"]})
    assert encoder.categories[0].levels == ("Bonn", "Kiel")  # Ulm is there once: rare
    assert found[:, 0].tolist() == [2.0, 3.0, 2.0, 0.0, 3.0, 1.0]
    assert encoder.transform({"town": ["Kiel", "Rom", None]})[:, 0].tolist() == [3.0, 1.0, 0.0]


def test_levels_are_bounded():
    table = {"word": [f"w{number % 50}" for number in range(500)]}
    assert TableEncoder(max_levels=7).fit(table).categories[0].codes == 9


def test_codes_that_were_strings_may_come_back_as_numbers():
    encoder = TableEncoder().fit({"code": ["A1", "7", "A1", "7"]})
    assert encoder.transform({"code": [7, 7.0, None]})[:, 0].tolist() == [2.0, 2.0, 0.0]
    categorical = pandas.Categorical([7, 8, 7, 8])
    assert TableEncoder().fit(pandas.DataFrame({"code": categorical})).categories[0].levels == ("7", "8")


@pytest.mark.parametrize(
    "days",
    [
        ["2024-01-01", "2024-01-03", "2024-01-02", None],
        [datetime.date(2024, 1, 1), datetime.date(2024, 1, 3), datetime.date(2024, 1, 2), None],
        np.array(["2024-01-01", "2024-01-03", "2024-01-02", "NaT"], dtype="datetime64[D]"),
        pandas.Series(pandas.to_datetime(["2024-01-01", "2024-01-03", "2024-01-02", None])),
        pandas.Series(pandas.to_datetime(["2024-01-01", "2024-01-03", "2024-01-02", None])).dt.tz_localize("UTC"),
    ],
    ids=["strings", "dates", "numpy", "pandas", "time zone"],
)
def test_times_are_numbers(days):
    encoder = TableEncoder()
    found = encoder.fit_transform({"when": days})
    assert encoder.names == ["when", "when is missing"]
    assert found[:, 0].argsort(stable=True).tolist() == [0, 2, 3, 1]
    assert found[3].tolist() == [0.0, 1.0]
    assert torch.equal(encoder.transform({"when": ["2024-01-03T00:00"]}), found[1:2])


def test_truth_values():
    assert encoded({"a": [True, False, None, True]}).tolist() == [1.0, 0.0, 1.0, 1.0]
    assert encoded(np.array([[True], [False]])).tolist() == [1.0, 0.0]
    assert TableEncoder().fit({"a": [True, False]}).transform({"a": [1, 0]}).tolist() == [[1.0], [0.0]]


# ------------------------------------------------------------------ tables of every kind


def test_every_kind_of_table_gives_the_same():
    values = np.random.default_rng(0).normal(size=(30, 3)).round(3)
    values[values < 0] = 0.0
    wanted = TableEncoder().fit_transform(values)
    odd_index = pandas.DataFrame(values, index=np.arange(30)[::-1] * 7 % 11)
    for table in (
        values.tolist(),
        torch.from_numpy(values),
        scipy.sparse.csr_matrix(values),
        scipy.sparse.dok_array(values),
        odd_index,
        {"a": values[:, 0], "b": values[:, 1].tolist(), "c": torch.from_numpy(values[:, 2])},
        values.astype(object),
        np.asfortranarray(values),
    ):
        assert torch.equal(TableEncoder().fit_transform(table), wanted)


def test_nullable_columns():
    table = pandas.DataFrame(
        {
            "i": pandas.array([1, 2, None, 4], dtype="Int64"),
            "b": pandas.array([True, False, None, True], dtype="boolean"),
        }
    )
    encoder = TableEncoder().fit(table)
    assert encoder.names == ["i", "b", "i is missing", "b is missing"]


def test_sparse_pandas_columns():
    table = pandas.DataFrame({"a": pandas.arrays.SparseArray([0.0, 0.0, 1.0, 3.0])})
    assert torch.equal(TableEncoder().fit_transform(table), TableEncoder().fit_transform({"a": [0.0, 0.0, 1.0, 3.0]}))


def test_columns_are_found_by_name():
    table = frame()
    encoder = TableEncoder().fit(table)
    wanted = encoder.transform(table)
    assert torch.equal(encoder.transform(table[table.columns[::-1]]), wanted)
    with pytest.raises(TableError, match=r"the table lacks column 'town', which the training table had"):
        encoder.transform(table.drop(columns="town"))
    with pytest.raises(TableError, match=r"the table has columns 'u', 'v', which the training table did not have"):
        encoder.transform(table.assign(u=1, v=2))
    assert torch.equal(encoder.transform(table.assign(u=1), ignore_extra=True), wanted)
    with pytest.raises(TableError, match="X has 2 features, but TableEncoder is expecting 6 features"):
        encoder.transform(np.zeros((3, 2)))


def test_another_kind_of_value_is_refused():
    encoder = TableEncoder().fit(frame())
    with pytest.raises(TableTypeError, match=r"column 'size' holds a number .* got a string, 'x', in row 0"):
        encoder.transform(frame().assign(size="x"))
    with pytest.raises(TableTypeError, match=r"column 'when' holds a time .* got a number"):
        encoder.transform(frame().assign(when=3.0))


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        ({"a": [1.0, "x"]}, TypeError, r"column 'a' must hold one kind of value, got 1.0 in row 0 and 'x' in row 1"),
        ({"a": [1.0, {}]}, TypeError, r"column 'a' holds {} in row 1"),
        ({"a": [1.0 + 2.0j]}, TypeError, "column 'a' holds"),
        (np.zeros((2, 2), dtype=complex), TypeError, "Complex data not supported"),
        (
            [[1.0], [1.0, 2.0]],
            ValueError,
            "rows must have the same length, got 1 values in row 0 and another number in row 1",
        ),
        ({"a": [1.0], "b": [1.0, 2.0]}, ValueError, "got 1 rows in 'a' and 2 in 'b'"),
        (np.zeros(3), ValueError, "Reshape your data"),
        (np.zeros((0, 3)), ValueError, "at least one row"),
        (np.zeros((3, 0)), ValueError, "at least one column"),
        ([], ValueError, "at least one row"),
        (np.ones((3, 2)), ValueError, r"no column of the table varies over its 3 sample\(s\)"),
        ("a", TypeError, "got str"),
        (pandas.DataFrame([[1, 2], [3, 4]], columns=["y", "y"]), ValueError, "'y' occurs twice"),
        (pandas.DataFrame([[1, 2], [3, 4]], columns=[1, "1"]), ValueError, "'1' occurs twice"),
    ],
)
def test_tables_that_are_refused(table, error, message):
    with pytest.raises(error, match=message):
        TableEncoder().fit(table)


# ------------------------------------------------------------------ a word about columns


def test_constant_columns_are_left_out_with_a_word():
    with pytest.warns(
        TableWarning, match="left out, since they hold one value or rare strings alone: columns 'b', 'c'"
    ):
        encoder = TableEncoder().fit({"a": [1, 2, 3], "b": [1, 1, 1], "c": ["x", "x", "x"]})
    assert encoder.names == ["a"]
    assert encoder.transform({"a": [1], "b": [5], "c": ["y"]}).shape == (1, 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([f"name {number}" for number in range(30)], "has a different string in every row"),
        (list(range(100, 130)), "counts the rows"),
        ([number * 7919 % 104729 for number in range(1, 31)], "looks like a row's id"),
    ],
)
def test_columns_that_look_like_the_rows_name(values, message):
    table = {"size": np.random.default_rng(0).normal(size=30), "customer_id": values}
    with pytest.warns(TableWarning, match=f"column 'customer_id' {message}"):
        TableEncoder().fit(table)


@pytest.mark.filterwarnings("error::fcco.tables.TableWarning")
def test_dates_in_strings_teach_something_though_every_row_has_another():
    days = pandas.date_range("2020-01-01", periods=60).strftime("%Y-%m-%d")
    encoder = TableEncoder().fit({"day": list(days)})
    assert [number.kind for number in encoder.numbers] == ["time"]


# ------------------------------------------------------------------ the description


def test_the_description_is_plain_json_and_whole():
    table = frame()
    table.loc[3, "size"] = np.nan
    encoder = TableEncoder().fit(table)
    text = json.dumps(encoder.to_dict(), allow_nan=False)
    other = TableEncoder.from_dict(json.loads(text))
    assert torch.equal(other.transform(table), encoder.transform(table))
    assert other.to_dict() == encoder.to_dict()
    assert other.names == encoder.names


def _change(key, value):
    def changed(description):
        description[key] = value

    return changed


def _change_learnt(key, value):
    def changed(description):
        description["learnt"][0][key] = value

    return changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_change("format", "x"), "format"),
        (_change("version", 2), "version 1, got 2"),
        (_change("extra", 1), "differs in extra"),
        (_change("learnt", []), "at least one"),
        (_change("columns", ["a"]), "of its own table"),
        (_change_learnt("form", "code"), "one of the forms"),
        (_change_learnt("scale", 0.0), "scale > 0"),
        (_change_learnt("scale", float("nan")), "finite numbers"),
        (_change_learnt("center", 10**400), "finite numbers, got 1000"),
        (_change_learnt("edges", [1.0, 0.0]), "increasing"),
        (_change_learnt("odd", 1), "other entries"),
        (_change_learnt("kind", "x"), "a kind"),
    ],
)
def test_other_descriptions_are_refused(change, message):
    description = TableEncoder().fit(frame()).to_dict()
    change(description)
    with pytest.raises(TableError, match=message):
        TableEncoder.from_dict(description)


def test_nothing_before_fit():
    with pytest.raises(TableError, match="call fit first"):
        TableEncoder().transform([[1.0]])
    with pytest.raises(TableError, match="call fit first"):
        TableEncoder().to_dict()


@pytest.mark.parametrize("name", ["bins", "min_count", "max_levels"])
def test_arguments(name):
    with pytest.raises(ValueError, match=f"{name} must be >= 1, got 0"):
        TableEncoder(**{name: 0})

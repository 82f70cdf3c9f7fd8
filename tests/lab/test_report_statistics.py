"""Curves and final values against numpy and scipy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fcco.lab.report.columns import METRICS
from fcco.lab.report.curves import curve, thin, wide
from fcco.lab.report.groups import Group, group_runs
from fcco.lab.report.payload import build, draw_curves
from fcco.lab.report.runs import read_runs
from fcco.lab.report.statistics import compare, final_values, finals, holm, welch
from tests.lab.test_report_runs import evaluation, write_run

OBJECTIVE, AUROC = METRICS[:2]
SAMPLES = [
    ([1.0, 1.1, 0.9], [1.4, 1.6, 1.3]),
    ([0.5, 0.7], [0.1, 0.2, 0.3, 0.4, 0.35]),
    ([1e-9, 2e-9, 4e-9], [8e-9, 9e-9, 7e-9]),
    ([1.0, 1.0, 1.0], [1.5, 1.6, 1.7]),
]


def groups_of(folder: Path) -> list[Group]:
    return group_runs(read_runs([folder]))


def page_data(folder: Path) -> dict[str, Any]:
    runs = read_runs([folder])
    groups = group_runs(runs)
    return build(runs, groups, draw_curves(groups), "title", "")


def test_a_curve_is_mean_and_spread(tmp_path: Path) -> None:
    values = np.array([[3.0, 2.0, 1.0], [3.5, 2.5, 0.5], [3.1, 2.2, 0.9]])
    for seed, row in enumerate(values):
        write_run(tmp_path / str(seed), row.tolist(), seed=seed)
    one = curve(groups_of(tmp_path)[0].runs, "objective")
    assert one is not None
    np.testing.assert_allclose(one.mean, values.mean(0))
    np.testing.assert_allclose(one.sd, values.std(0, ddof=1))
    np.testing.assert_array_equal(one.low, values.min(0))
    np.testing.assert_array_equal(one.high, values.max(0))
    np.testing.assert_array_equal(one.x["samples"], [0, 100, 200])
    np.testing.assert_array_equal(one.x["oracle"], [0, 300, 600])
    np.testing.assert_array_equal(one.n, [3, 3, 3])


def test_a_shorter_run_counts_as_far_as_it_goes(tmp_path: Path) -> None:
    write_run(tmp_path / "0", [4.0, 2.0, 1.0], seed=0)
    write_run(tmp_path / "1", [2.0, 1.0], seed=1, status="interrupted")
    (group,) = groups_of(tmp_path)
    one = curve(group.runs, "objective")
    assert one is not None
    np.testing.assert_array_equal(one.mean, [3.0, 1.5, 1.0])
    np.testing.assert_array_equal(one.n, [2, 2, 1])
    np.testing.assert_array_equal(np.isnan(one.sd), [False, False, True])
    assert final_values(group, "objective") == (1.0,)


def test_other_steps_are_interpolated(tmp_path: Path) -> None:
    write_run(tmp_path / "0", [evaluation(0, 4.0), evaluation(20, 0.0)], seed=0)
    write_run(tmp_path / "1", [evaluation(0, 2.0), evaluation(10, 1.0, seconds=9.0), evaluation(20, 0.0)], seed=1)
    one = curve(groups_of(tmp_path)[0].runs, "objective")
    assert one is not None
    np.testing.assert_array_equal(one.mean, [3.0, 1.5, 0.0])
    np.testing.assert_array_equal(one.x["seconds"], [0.0, (5.0 + 9.0) / 2, 10.0])


def test_a_metric_measured_now_and_then(tmp_path: Path) -> None:
    rows = [evaluation(t, 1.0, gradient_norm=(7.0 - t if t % 2 == 0 else None)) for t in range(5)]
    write_run(tmp_path / "0", rows)
    (group,) = groups_of(tmp_path)
    one = curve(group.runs, "gradient_norm")
    assert one is not None
    np.testing.assert_array_equal(one.x["step"], [0, 2, 4])
    np.testing.assert_array_equal(one.mean, [7, 5, 3])
    assert curve(group.runs, "ap") is None


def test_a_diverged_run_has_no_final_value(tmp_path: Path) -> None:
    write_run(tmp_path / "0", [4.0, 2.0], seed=0)
    write_run(tmp_path / "1", [4.0, float("nan")], seed=1, status="diverged")
    write_run(tmp_path / "2", [4.0, None], seed=2)
    (group,) = groups_of(tmp_path)
    assert final_values(group, "objective") == (2.0,)
    assert final_values(group, "auroc") == (0.9, 0.9)


def test_a_group_of_diverged_runs_has_no_final_values(tmp_path: Path) -> None:
    write_run(tmp_path / "0", [4.0, 3.0], method="a", status="diverged")
    write_run(tmp_path / "1", [4.0, 2.0], method="b")
    first, second = finals(groups_of(tmp_path), OBJECTIVE)
    assert first is None
    assert second is not None
    assert page_data(tmp_path)["groups"][0]["end"]["samples"] is None


def test_thin_keeps_both_ends() -> None:
    kept = thin(np.arange(10_001.0), 400)
    assert (len(kept), kept[0], kept[-1]) == (400, 0, 10_000)


def test_wide_asks_for_positive_values_over_a_decade(tmp_path: Path) -> None:
    for name, values, expected in (("a", [20.0, 1.0], True), ("b", [5.0, 1.0], False), ("c", [20.0, 0.0], False)):
        write_run(tmp_path / name / "run", values)
        one = curve(groups_of(tmp_path / name)[0].runs, "objective")
        assert one is not None
        assert wide([one]) is expected
    assert not wide([])


@pytest.mark.parametrize(("values", "best"), SAMPLES)
@pytest.mark.filterwarnings("ignore:Precision loss:RuntimeWarning")  # scipy's, on the constant sample
def test_tests_equal_scipy(values: list[float], best: list[float]) -> None:
    found = compare(values, best)
    expected = stats.ttest_ind(values, best, equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert found.welch == pytest.approx(expected.pvalue, rel=1e-9)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    difference = stats.permutation_test((values, best), lambda x, y: np.mean(x) - np.mean(y), n_resamples=np.inf)
    assert found.permutation == pytest.approx(difference.pvalue)
    assert found.exact


def test_the_exact_permutation_test_by_hand() -> None:
    assert compare([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]).permutation == pytest.approx(2 / 20)
    assert compare([1.0, 2.0], [1.5, 3.0]).permutation == pytest.approx(4 / 6)


def test_many_runs_are_permuted_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcco.lab.report.statistics.RESAMPLES", 500)
    first, second = np.random.default_rng(0).normal(size=(2, 12))
    found = compare(list(first), list(second))
    assert not found.exact
    assert found.permutation == pytest.approx(welch(list(first), list(second))[0], abs=0.1)
    assert compare(list(first), list(second)) == found


def test_undefined_tests_are_none() -> None:
    for values, best in (([1.0], [2.0, 3.0]), ([1.0, 1.0], [2.0, 2.0])):
        found = compare(values, best)
        assert (found.welch, found.permutation, found.low) == (None, None, None)
        assert found.difference == np.mean(values) - np.mean(best)


def test_holm() -> None:
    assert holm([0.01, 0.02, 0.03, 0.04]) == pytest.approx([0.04, 0.06, 0.06, 0.06])
    assert holm([0.5, None, 0.9]) == [1.0, None, 1.0]
    assert holm([]) == []


def test_finals_compare_with_the_best(tmp_path: Path) -> None:
    ends = {"a": [1.0, 1.2, 1.1], "b": [2.0, 2.2, 2.1], "c": [1.1, 1.3, 1.0], "d": [5.0]}
    for method, values in ends.items():
        for seed, value in enumerate(values):
            rows = [evaluation(0, 9.0), evaluation(10, value, auroc=1 - value / 10)]
            write_run(tmp_path / f"{method}{seed}", rows, method=method, seed=seed)
    groups = groups_of(tmp_path)
    for metric in (OBJECTIVE, AUROC):
        rows = [row for row in finals(groups, metric) if row is not None]
        assert [row.best for row in rows] == [True, False, False, False]
        first, *against = [row.against for row in rows]
        assert first is None
        assert [test.welch is None for test in against] == [False, False, True]
        assert [test.welch_holm for test in against] == holm([test.welch for test in against])
        assert [test.permutation_holm for test in against] == holm([test.permutation for test in against])
    assert (rows[0].mean, rows[0].sd) == pytest.approx((1 - 0.11, 0.01))


def test_the_page_says_what_differs(tmp_path: Path) -> None:
    for seed, (method, lr) in enumerate([("a", 0.1), ("b", 0.1), ("c", 0.3)]):
        write_run(tmp_path / method, method=method, lr=lr, seed=seed)
    data = page_data(tmp_path)
    assert data["config"]["keys"] == ["lr"]
    assert data["config"]["rows"] == [[["0.1", False]], [["0.1", False]], [["0.3", True]]]
    assert ["dataset", "digits"] in data["config"]["common"]
    assert data["environment"]["common"] == [["commit", "0123456789abcdef"], ["python", "3.12"]]
    assert [metric["key"] for metric in data["metrics"]] == ["objective", "auroc"]

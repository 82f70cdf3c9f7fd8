"""Claims: at equal cost, paired over seeds, with an interval that decides."""

from __future__ import annotations

import math

import pytest

from benchmarks.figures.claims import all_claims, claims_table, missing_list
from benchmarks.figures.compare import Comparison, compare, height_at, interval, path, verdict
from benchmarks.figures.plan import whole_plan
from benchmarks.figures.runs import Row
from benchmarks.figures.studies import Progress


def row(seed: int, f: list[float], x: list[int], status: str = "finished", **more: object) -> Row:
    curve = {
        "step": [10 * place for place in range(len(f))],
        "samples": x,
        "oracle": [2 * value for value in x],
        "f": f,
    }
    curve["charged_n"] = x
    return {"run": {"config": {"seed": seed}}, "status": status, "curve": curve, **more}


def test_f_is_compared_where_the_shorter_curve_ends() -> None:
    long = [row(seed, [1.0, 0.5, 0.1], [0, 100, 200]) for seed in (0, 1)]
    short = [row(seed, [1.0, 0.25], [0, 100]) for seed in (0, 1)]
    found = compare(short, long)
    assert found is not None
    assert (found.place, found.pairs) == (100, 2)
    assert found.ratio == pytest.approx(0.5)
    assert found.cost == 1.0
    other = compare(long, short)
    assert other.ratio == pytest.approx(2.0)
    assert other.cost == 2.0  # it needs twice as much


def test_each_may_count_its_cost_in_its_own_way() -> None:
    one = row(0, [1.0, 0.5], [0, 1000])
    one["curve"]["charged_n"] = [0, 100]
    two = row(0, [1.0, 1.0], [0, 100])
    assert compare([one], [two]).place == 100
    assert compare([one], [two], "charged_n", "samples").ratio == pytest.approx(0.5)


def test_a_curve_is_level_while_a_full_pass_is_charged() -> None:
    run = row(0, [1.0, 0.5, 0.25], [0, 500, 600])
    run["curve"]["step"] = [0, 1, 10]
    assert path(run, "samples") == [(0.0, 1.0), (500.0, 1.0), (500.0, 0.5), (600.0, 0.25)]
    assert height_at(run, "samples", 400) == 0.0
    assert height_at(run, "samples", 550) == pytest.approx((math.log(0.5) + math.log(0.25)) / 2)
    assert height_at(run, "samples", 600) == pytest.approx(math.log(0.25))
    assert height_at(run, "samples", 601) is None


def test_where_the_optimum_is_known_the_gap_to_it_is_compared() -> None:
    one = row(0, [1.0, 0.3], [0, 100], optimum=0.2)
    two = row(0, [1.0, 0.4], [0, 100], optimum=0.2)
    assert compare([one], [two]).ratio == pytest.approx(0.5)


def test_runs_that_diverged_are_counted_and_left_out() -> None:
    good = [row(seed, [1.0, 0.5], [0, 100]) for seed in (0, 1)]
    bad = [row(0, [1.0], [0], "diverged"), row(1, [1.0, 0.25], [0, 100])]
    found = compare(bad, good)
    assert (found.pairs, found.diverged) == (1, 1)
    assert compare(bad[:1], good) is None


def test_the_interval_is_students() -> None:
    low, high = interval([0.0, 0.2])
    wide = 12.7062 * math.sqrt(0.02) / math.sqrt(2)
    assert low == pytest.approx(math.exp(0.1 - wide), rel=1e-4)
    assert high == pytest.approx(math.exp(0.1 + wide), rel=1e-4)
    assert interval([0.1]) == (None, None)


@pytest.mark.parametrize(("low", "high", "kind", "expected"), [
    (0.5, 0.9, "better", "holds"),
    (1.1, 1.2, "better", "does not hold"),
    (0.9, 1.1, "better", "not decidable"),
    (0.95, 1.05, "close", "holds"),
    (1.2, 1.3, "close", "does not hold"),
    (0.5, 0.8, "close", "does not hold"),
    (0.9, 1.3, "close", "not decidable"),
    (None, None, "better", "not decidable yet"),
])  # fmt: skip
def test_verdicts(low: float | None, high: float | None, kind: str, expected: str) -> None:
    assert verdict(Comparison(1.0, low, high, 2, 0, 1.0, None), kind) == expected


def test_every_claim_of_the_paper_is_there() -> None:
    claims = all_claims(whole_plan())
    where = {(claim.text, claim.where) for claim in claims}
    assert ("v1 is better than SOX", "cifar100") in where
    assert ("v1 is close to SOX", "svhn") in where
    for dataset in ("stl10", "cifar10", "cifar100", "mnist", "fashion-mnist", "svhn"):
        assert ("v2 is faster than SOX", dataset) in where
        assert ("v3 is fastest (against v2; n per pass)", dataset) in where
    assert ("MSVR-v3 is better than Variant-v3", "cifar100") in where
    assert ("v2 is faster than v1", "densenet121 on svhn") in where
    assert ("B1 = 9 is better than B1 = 5 per iteration", "msvr-v2 on fashion-mnist") in where
    assert ("B2 = 128 is better than B2 = 64 per iteration", "msvr-v3 on fashion-mnist") in where


def test_without_runs_nothing_is_claimed() -> None:
    studies = whole_plan()
    progress = Progress(studies, {})
    table = claims_table(studies, progress)
    assert "holds |" not in table
    assert table.count("no runs") == len(all_claims(studies))
    assert missing_list(studies, progress).count("not begun") == len(studies)

"""The plan: every run is a valid one, budgets are equal, nothing is run twice, and the paper's grid is searched."""

from __future__ import annotations

import math

import pytest

from benchmarks.figures.plan import (
    BUDGET,
    FIGURE1,
    METHODS,
    SEEDS,
    V3_BY_N,
    deep_run,
    only,
    quick_plan,
    whole_plan,
)
from benchmarks.figures.sets import SETS
from benchmarks.figures.studies import TUNING_SEED, Study, at
from fcco.lab.config import check
from fcco.lab.space import PAPER


@pytest.mark.parametrize("plan", [whole_plan, quick_plan])
def test_every_point_of_every_study_can_be_built(plan) -> None:
    studies: list[Study] = plan()
    for study in studies:
        for point in study.grid:
            run = at(study.base, point)
            check(run.config)
            assert run.steps >= 1
            assert run.config.zeta is None or run.config.method == "msvr-v2"


@pytest.mark.parametrize("plan", [whole_plan, quick_plan])
def test_names_are_unique_and_studies_build_on_earlier_ones(plan) -> None:
    met: list[str] = []
    for study in plan():
        assert study.name not in met
        assert len(study.name.split("/")) == 3
        assert study.from_study is None or study.from_study in met
        assert study.grid or study.from_study
        met.append(study.name)


def test_tuning_is_the_papers_grid_at_a_seed_that_is_not_reported() -> None:
    studies = {study.name: study for study in whole_plan()}
    grid = studies["figure1/cifar10/sox"].grid
    assert len(grid) == math.prod(len(values) for values in PAPER.values()) == 80
    assert studies["figure1/cifar10/sox"].rungs[0].points == 80
    assert all(TUNING_SEED not in study.seeds for study in studies.values())
    assert studies["figure1/cifar10/sox"].seeds == SEEDS
    assert len(studies["figure1/cifar100/sox"].seeds) == 3


@pytest.mark.parametrize("dataset", FIGURE1)
def test_every_method_draws_the_same_number_of_samples(dataset: str) -> None:
    facts = SETS[dataset]
    budget = 5_000_000 if dataset == "cifar100" else BUDGET
    assert budget >= 1_200_000
    for method, by_n in [*((method, False) for method in METHODS), ("msvr-v3", True)]:
        run = deep_run(dataset, method, by_n=by_n)
        assert (run.config.model, run.config.stem, run.config.precision) == ("resnet18", "imagenet", "fp32")
        step = run.config.blocks * run.config.samples
        full_pass = 0
        passes = 0
        if method == "msvr-v3":
            full_pass = facts.train if by_n else facts.train * facts.classes
            passes = math.ceil(run.steps / run.config.period)
            assert run.config.period == round(facts.train * facts.classes / step)
        drawn = run.steps * step + passes * full_pass
        assert drawn <= budget
        if run.config.period is None or run.steps % run.config.period:
            assert drawn + step > budget  # one step more would be too much
        else:
            assert drawn + full_pass + step > budget  # one period more would begin with a pass


def test_the_usual_sizes_of_figures_4_and_5_are_runs_of_figure_1() -> None:
    studies = {study.name: study for study in whole_plan()}
    for method in METHODS[1:]:
        usual = studies[f"figure1/fashion-mnist/{method}"].base
        for name in (f"figure4/{method}/B1 = 2", f"figure5/{method}/B2 = 32"):
            assert studies[name].base.steps == usual.steps
            assert studies[name].from_study == f"figure1/fashion-mnist/{method}"
    assert f"figure1/cifar10/{V3_BY_N}" in studies


def test_only_keeps_the_order_asked_for() -> None:
    chosen = only(whole_plan(), ["figure4", "figure1/svhn"])
    assert [study.figure for study in chosen] == ["figure4"] * 6 + ["figure1"] * 5
    with pytest.raises(SystemExit, match="no study begins with 'figure9'"):
        only(whole_plan(), ["figure9"])


def test_a_prefix_ends_where_a_word_ends() -> None:
    plan = whole_plan()
    for prefix, panel in (("figure1/cifar10", "cifar10"), ("pays/cifar10", "cifar10"), ("figure1/cifar10/", "cifar10")):
        panels = {study.panel.split(",")[0] for study in only(plan, [prefix])}
        assert panels == {panel}
    assert len(only(plan, ["figure1/cifar10/msvr-v3"])) == 2  # also charged n per pass

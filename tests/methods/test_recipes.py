"""Recipes: every name has defaults, and the tests' one table knows them all."""

import dataclasses
import inspect

import pytest

import fcco
from tests.helpers.methods import TABLE, VALUES, recipe


def test_the_table_knows_every_method():
    assert list(TABLE) == list(fcco.METHODS)


@pytest.mark.parametrize("name", fcco.METHODS)
def test_every_recipe_has_defaults(name):
    method = fcco.METHODS[name]()
    assert method.name == name
    assert method.finite_sum == TABLE[name].finite_sum
    assert (method.memory is not None) == TABLE[name].memory
    if method.finite_sum:
        assert method.period is None  # one epoch


@pytest.mark.parametrize("name", TABLE)
def test_the_table_knows_every_rate(name):
    known = {*TABLE[name].rates, "lag", "nesterov", "zeta", "importance", "cap", "balance", "refresh", "renewal"}
    parameters = inspect.signature(fcco.METHODS[name]).parameters
    assert set(TABLE[name].rates) <= set(parameters) <= known
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters.values())


@pytest.mark.parametrize("name", TABLE)
def test_rates_arrive(name):
    method = recipe(name)
    given = dataclasses.asdict(method.tracker) | dataclasses.asdict(method.estimator) | {"period": method.period}
    for rate in TABLE[name].rates:
        if rate == "period" and not method.finite_sum:
            assert method.estimator.period == VALUES[rate]
        else:
            assert given[rate] == VALUES[rate]


@pytest.mark.parametrize("name", TABLE)
def test_other_rates_by_name(name):
    method = recipe(name)
    changed = method.with_rates(alpha=0.9, beta=0.8)
    assert dataclasses.replace(changed, tracker=method.tracker, estimator=method.estimator) == method
    assert getattr(changed.estimator, "alpha", 0.9) == 0.9
    assert getattr(changed.tracker, "beta", 0.8) == 0.8
    assert method.with_rates() == method


def test_methods_are_values():
    assert fcco.msvr_v2() == fcco.msvr_v2(alpha=0.1, beta=0.1)
    assert fcco.msvr_v2() != fcco.msvr_v2(lag=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        fcco.msvr_v2().lag = 0

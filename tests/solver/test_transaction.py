# ruff: noqa: PT012 (blocks are what is tested)
"""The transaction itself: all or nothing, the last undo first, uninterrupted."""

import signal

import pytest

from fcco.solver._transaction import Transaction


class Mine(Exception):
    """An error of the user's own."""


def test_nothing_is_undone_after_the_commit():
    undone = []
    with Transaction() as transaction:
        transaction.on_failure(undone.append, 1)
        transaction.commit()
    assert undone == []
    assert transaction.committed


def test_an_error_undoes_the_last_thing_first():
    undone = []
    with pytest.raises(Mine), Transaction() as transaction:
        for number in (1, 2, 3):
            transaction.on_failure(undone.append, number)
        raise Mine
    assert undone == [3, 2, 1]


def test_an_error_after_the_commit_undoes_nothing():
    undone = []
    with pytest.raises(KeyboardInterrupt), Transaction() as transaction:
        transaction.on_failure(undone.append, 1)
        transaction.commit()
        raise KeyboardInterrupt  # held back until the step was taken
    assert undone == []


def test_rolling_back_without_an_error_happens_once():
    undone = []
    with pytest.raises(Mine), Transaction() as transaction:
        transaction.on_failure(undone.append, 1)
        transaction.roll_back()
        assert undone == [1]
        raise Mine
    assert undone == [1]


def test_an_undo_that_fails_does_not_stop_the_others():
    undone = []

    def fails():
        raise ValueError("the undo")

    with pytest.raises(ValueError, match="the undo"), Transaction() as transaction:
        transaction.on_failure(undone.append, 1)
        transaction.on_failure(fails)
        transaction.on_failure(undone.append, 3)
        raise Mine
    assert undone == [3, 1]


def test_ctrl_c_waits_until_everything_is_undone():
    undone = []
    with pytest.raises(KeyboardInterrupt), Transaction() as transaction:
        transaction.on_failure(undone.append, 1)
        transaction.on_failure(signal.raise_signal, signal.SIGINT)
        transaction.on_failure(undone.append, 3)
        raise Mine
    assert undone == [3, 1]


def test_leaving_without_a_commit_and_without_an_error_undoes_nothing():
    """The solver always commits or rolls back; nobody is surprised by an undo after a block that went well."""
    undone = []
    with Transaction() as transaction:
        transaction.on_failure(undone.append, 1)
    assert undone == []

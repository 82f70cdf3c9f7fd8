"""Random states are read only where they have changed; what is handed out is always the state as it is."""

import io
import random

import numpy as np
import pytest
import torch

from fcco._support import randomness as rewind
from fcco._support.randomness import NumpyState, PythonState

PYTHON = [
    lambda: None,
    random.random,
    lambda: random.gauss(0, 1),  # keeps a second number for later
    lambda: random.gauss(0, 1),  # hands it out: only that changes
    lambda: random.seed(4),
    lambda: random.getrandbits(3),
    lambda: [random.random() for _ in range(700)],
]
NUMPY = [
    lambda: None,
    np.random.rand,
    np.random.randn,
    np.random.randn,
    lambda: np.random.seed(4),
    lambda: np.random.rand(700),
    lambda: np.random.randn(3),
    np.random.randn,
    np.random.randn,
]


@pytest.fixture(autouse=True)
def as_before():
    python, numpy = random.getstate(), np.random.get_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy)


def equal(a, b):
    return a[0] == b[0] and (a[1] == b[1]).all() and a[2:] == b[2:]


@pytest.mark.parametrize("told", [True, False])
def test_python(told, monkeypatch):
    monkeypatch.setattr(rewind, "_memory_tells", lambda: told)
    state = PythonState()
    for change in PYTHON:
        change()
        assert state.get() == random.getstate()
        assert state.get() == random.getstate()


def test_python_memory_tells_here():
    assert rewind._memory_tells()


def test_numpy():
    state = NumpyState()
    for change in NUMPY:
        change()
        assert equal(state.get(), np.random.get_state())
        assert equal(state.get(), np.random.get_state())


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.Philox, np.random.SFC64])
def test_numpy_with_another_generator(kind):
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(kind(3))
        randomness = rewind.Randomness(torch.nn.Linear(1, 1))
        np.random.rand(5)
        captured, saved = randomness.capture(), randomness.state_dict()
        file = io.BytesIO()
        torch.save(saved, file)
        file.seek(0)
        numbers = np.random.rand(7)
        for put_back in (
            lambda: randomness.restore(captured),
            lambda: randomness.load_state_dict(torch.load(file, weights_only=True)),
        ):
            put_back()
            assert (np.random.rand(7) == numbers).all()
    finally:
        np.random.set_bit_generator(before)


def test_what_has_not_changed_is_not_written(monkeypatch):
    randomness = rewind.Randomness(torch.nn.Linear(1, 1))
    before = randomness.capture()
    written = []
    monkeypatch.setattr(random, "setstate", lambda state: written.append("python"))
    monkeypatch.setattr(np.random, "set_state", lambda state: written.append("numpy"))
    randomness.restore(before)
    assert written == []
    random.gauss(0, 1)
    np.random.randn()
    randomness.restore(before)
    assert written == ["python", "numpy"]


@pytest.mark.parametrize("draw", [*PYTHON, *NUMPY])
def test_what_was_drawn_in_between_is_drawn_again(draw):
    randomness = rewind.Randomness(torch.nn.Linear(1, 1))
    for _ in range(3):
        before = randomness.capture()
        first = draw()
        randomness.restore(before)
        randomness.restore(before)
        again = draw()
        assert np.array_equal(np.array(first, dtype=object), np.array(again, dtype=object))
        assert random.getstate() == randomness.capture()["python"]

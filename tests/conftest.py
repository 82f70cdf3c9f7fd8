"""What holds for every test: two threads in all, a fresh seed, and `data` tests only where there is data."""

import gc
import os
import random
import signal
from collections.abc import Iterator

import hypothesis  # noqa: F401 - loaded after the freeze below, it would miss the referrers of generators
import numpy as np
import pytest
import torch

from tests import old_torch  # noqa: F401

# Two threads shared among pytest-xdist's workers; what a test starts as a process of its own takes as many.
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
THREADS = max(1, 2 // WORKERS)
torch.set_num_threads(THREADS)
os.environ["OMP_NUM_THREADS"] = str(THREADS)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts what runs in the background so
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, visibly, what needs data sets where FCCO_DATA names no folder."""
    if os.path.isdir(os.environ.get("FCCO_DATA", "")):
        return
    skip = pytest.mark.skip(reason="FCCO_DATA names no folder of data sets")
    for item in items:
        if item.get_closest_marker("data"):
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    """What imports and collection made stays to the end: no garbage collection has to walk through it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    """Seed every generator before the test and put back the default dtype after it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from threads, and lose much where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Steps are captured on the CPU too, where a program is called in place of a graph; all is deterministic."""
    monkeypatch.setattr("fcco.solver._capture.CAPTURING", {"cpu", "cuda"})
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)

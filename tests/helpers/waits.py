"""CUDA's own watch over waits of the host for the device."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def no_waiting() -> Iterator[None]:
    """Within the block an operation for which the host waits for the device raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls this mode a prototype, once per process
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")

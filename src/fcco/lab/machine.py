"""Devices and threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fcco.lab.errors import LabError


def pick_device(name: str) -> torch.device:
    """Return a device by its name; "auto": an accelerator where there is one."""
    if name == "auto":
        name = "cpu"
        if torch.cuda.is_available():
            name = "cuda"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise LabError(f"--device must be auto, cpu, cuda, cuda:1 or the like, got {name}") from error
    if device.type == "meta":
        raise LabError("--device meta cannot be used: tensors there have no values")
    try:
        torch.empty(0, device=device)
        torch.get_device_module(device)
    except (RuntimeError, AssertionError, ImportError) as error:
        said = str(error).partition(". ")[0].splitlines()[0]
        raise LabError(f"--device {name} cannot be used here: {said}") from error
    return device


@contextmanager
def thread_count(wanted: int, *, small: bool) -> Iterator[None]:
    """Use so many CPU threads within the block; 0: one for a small network, torch's own choice for others."""
    before = torch.get_num_threads()
    count = before
    if wanted:
        count = wanted
    elif small:
        count = 1
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""Copies of many tensors at once: right values, and as few launches as there are dtypes."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fcco._support.flat import Flat, Kept, copy_all


class Counted(TorchDispatchMode):
    """Counts calls of one operation."""

    def __init__(self, name):
        super().__init__()
        self.name = name
        self.times = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.times += self.name in str(operation)
        return operation(*args, **(kwargs or {}))


def statistics():
    """As BatchNorm's buffers are: floats and counts in turn."""
    found = []
    for number in range(3):
        found += [torch.full((4,), 1.0 + number), torch.full((4,), 2.0 + number), torch.tensor(number)]
    return found


def test_a_launch_per_dtype():
    sources = statistics()
    targets = [torch.zeros_like(tensor) for tensor in sources]
    with Counted("_foreach_copy_") as counted:
        copy_all(targets, sources)
    assert counted.times == 2
    for target, source in zip(targets, sources, strict=True):
        assert torch.equal(target, source)


def test_lists_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        copy_all(statistics(), statistics()[:-1])


def test_other_dtypes_are_converted():
    flat = Flat([torch.zeros(2), torch.zeros(3)])
    flat.copy_from([torch.ones(2, dtype=torch.float64), torch.ones(3)])
    assert [view.tolist() for view in flat.views] == [[1.0, 1.0], [1.0, 1.0, 1.0]]


@pytest.mark.parametrize("failed", [False, True])
def test_put_back_where_a_step_failed(failed):
    tensors = statistics()
    kept = Kept(tensors)
    kept.keep()
    for tensor in tensors:
        tensor += 1
    kept.put_back(torch.tensor(failed))
    for tensor, before in zip(tensors, statistics(), strict=True):
        assert torch.equal(tensor, before + (not failed))

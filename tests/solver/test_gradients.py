"""Whether numbers are finite, told on the device."""

import math

import pytest
import torch

from fcco.solver._gradients import finite_flag


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtypes", [(torch.float32,), (torch.float32, torch.float64)])
def test_one_number_that_is_not_finite(dtypes, bad):
    tensors = [torch.randn(3, 2, dtype=dtype) for dtype in dtypes for _ in range(2)]
    tensors += [torch.zeros(0), torch.tensor([2**40])]
    assert bool(finite_flag(tensors))
    tensors[0][0, 0] = torch.finfo(dtypes[0]).max
    assert bool(finite_flag(tensors))
    for tensor in tensors[: 2 * len(dtypes)]:
        before = tensor[1, 1].item()
        tensor[1, 1] = bad
        assert not bool(finite_flag(tensors))
        tensor[1, 1] = before

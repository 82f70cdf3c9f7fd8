"""Running sums in two levels are the running sums."""

from __future__ import annotations

import pytest
import torch

from fcco.memory.forms import _polynomial
from fcco.memory.forms._polynomial import Polynomial
from fcco.memory.forms._scan import LONG, in_two_levels, running_sums

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
LENGTHS = [1, 1023, 1024, 1025, 8192, 100_003]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("leading", [(), (1,), (3,), (2, 3)])
@pytest.mark.parametrize("length", LENGTHS)
def test_two_levels_give_what_one_gives(length: int, leading: tuple[int, ...], device: str) -> None:
    generator = torch.Generator().manual_seed(length)
    x = torch.rand(*leading, length, generator=generator, dtype=torch.float64)
    found = in_two_levels(x.to(device)).cpu()
    assert found.shape == x.shape
    torch.testing.assert_close(found, x.cumsum(-1), rtol=1e-12, atol=0.0)
    whole = torch.randint(-1000, 1000, x.shape, generator=generator).double()
    assert torch.equal(in_two_levels(whole.to(device)).cpu(), whole.cumsum(-1))


def test_sums_that_grow_by_orders_of_magnitude_keep_the_digits_of_the_first() -> None:
    x = torch.ones(3072, dtype=torch.float64)
    x[-1] = 1e30  # in the same block as 1,023 small ones
    assert torch.equal(in_two_levels(x)[:-1], torch.arange(1.0, 3072.0, dtype=torch.float64))


def test_on_the_cpu_long_rows_keep_their_bits() -> None:
    x = torch.randn(2, 3 * LONG, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert not torch.equal(in_two_levels(x), x.cumsum(-1))
    assert torch.equal(running_sums(x), x.cumsum(-1))


@pytest.mark.parametrize("hinge", [True, False])
def test_sorted_sums_are_the_same_by_two_levels(hinge: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    q, p = (torch.randn(n, generator=generator, dtype=torch.float64) for n in (40, LONG + 5))
    w = torch.rand(LONG + 5, 2, generator=generator, dtype=torch.float64)
    kernel = Polynomial(1.0, 0.5, hinge)
    wanted = kernel.by_sorting(q, p, w)
    monkeypatch.setattr(_polynomial, "running_sums", in_two_levels)
    for mine, theirs in zip(kernel.by_sorting(q, p, w), wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_long_rows_on_a_gpu_have_the_same_bits_in_every_run() -> None:
    x = torch.randn(6, 10**6, generator=torch.Generator().manual_seed(2), dtype=torch.float64).cuda()
    first = running_sums(x)
    assert all(torch.equal(running_sums(x), first) for _ in range(20))
    assert torch.equal(first, in_two_levels(x))

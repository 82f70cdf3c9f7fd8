"""The kernel for sums over pairs gives what tensor operations give, and is used on a GPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import fcco
from fcco.memory.forms import _exponential, _pairs_kernel
from fcco.memory.forms._exponential import Exponential
from tests.helpers.waits import no_waiting
from tests.memory.cases import CASES, solver_for

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
KERNELS = {
    "hinge": Exponential(1.0, 2.0, True),
    "hinge beyond": Exponential(-0.5, 1 / 0.3, True),
    "square": Exponential(1.0, 0.3, False),
}
#: anchors, others, columns
SIZES = [(1, 1, 1), (3, 1, 2), (1, 7, 2), (16, 128, 1), (17, 129, 2), (33, 257, 1), (100, 40, 2), (64, 100_003, 1)]


class Problem:
    """Scores of both, weights of both, in one precision."""

    def __init__(self, anchors: int, others: int, columns: int, dtype: torch.dtype, *, zeros: bool) -> None:
        generator = torch.Generator().manual_seed(anchors * others + columns)
        spread = 1.0
        if dtype == torch.float32:
            spread = 0.3  # a large exponent has few digits after the point
        self.a = (spread * torch.randn(anchors, generator=generator, dtype=torch.float64)).to(dtype)
        self.s = (spread * torch.randn(others, generator=generator, dtype=torch.float64)).to(dtype)
        self.w = torch.rand(others, columns, generator=generator, dtype=torch.float64).to(dtype)
        self.b = torch.rand(anchors, columns, generator=generator, dtype=torch.float64).to(dtype)
        if zeros:
            self.w[1::2] = 0.0
            self.b[::3] = 0.0

    def doubled(self) -> Problem:
        """The same numbers in double precision."""
        twin = copy.copy(self)
        for name, value in vars(self).items():
            setattr(twin, name, value.double())
        return twin

    def rows(self, kernel: Exponential, device: str) -> tuple[Tensor, Tensor]:
        log_g, slope = kernel.rows(self.a.to(device), self.s.to(device), self.w.to(device), waits=False)
        return log_g.cpu(), slope.cpu()

    def columns(self, kernel: Exponential, log_g: Tensor, device: str) -> Tensor:
        found = kernel.columns(self.s.to(device), self.a.to(device), log_g.to(device), self.b.to(device), waits=False)
        return found.cpu()


def check(kernel: Exponential, problem: Problem, device: str, rtol: float) -> None:
    """What the device gives against tensor operations on the CPU in double precision.

    In single precision they are no reference: over 100,000 others their sums are off by 3e-5.
    """
    exact = problem.doubled()
    log_g, slope = exact.rows(kernel, "cpu")
    found = [value.double() for value in problem.rows(kernel, device)]
    torch.testing.assert_close(found[0], log_g, rtol=rtol, atol=rtol)
    torch.testing.assert_close(found[1], slope, rtol=rtol, atol=rtol)
    single = log_g.to(problem.a.dtype)
    absent = single.clone()
    absent[0] = torch.inf  # an anchor that takes no part
    for values in (single, absent):
        wanted = exact.columns(kernel, values.double(), "cpu")
        found_columns = problem.columns(kernel, values, device).double()
        torch.testing.assert_close(found_columns, wanted, rtol=rtol, atol=rtol * float(wanted.abs().max()))


@ON_GPU
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=["double", "single"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_the_kernel_gives_what_tensor_operations_give(
    name: str, size: tuple[int, int, int], dtype: torch.dtype, rtol: float, zeros: bool
) -> None:
    check(KERNELS[name], Problem(*size, dtype, zeros=zeros), "cuda", rtol)


def test_what_the_kernel_is_tried_on() -> None:
    root = torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, 0.0]])  # of 1 and 0 with 0, 1 and -3, inside the hinge
    w = torch.tensor([1.0, 2.0, 4.0])
    e = (root.square() + torch.tensor([[-1.0], [0.0]])).exp2()
    assert [*(e @ w).tolist(), *((e * root) @ w).tolist()] == [19.0, 9.0, 33.0, 4.0]
    e = root.square().exp2()
    assert [*(e @ w).tolist(), *((e * root) @ w).tolist()] == [38.0, 9.0, 66.0, 4.0]


def test_there_is_no_kernel_on_the_cpu() -> None:
    assert not _pairs_kernel.has_kernel(torch.zeros(3))


@ON_GPU
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning")
def test_steps_on_a_gpu_use_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    assert _pairs_kernel.has_kernel(torch.zeros(3, device="cuda"))
    shapes = []
    pair_sums = _exponential.pair_sums

    def counted(mine: Tensor, others: Tensor, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
        shapes.append((mine.shape[0], others.shape[0]))
        return pair_sums(mine, others, *arguments, **options)

    monkeypatch.setattr(_exponential, "pair_sums", counted)
    case = CASES["pauc"]()
    case.to("cuda")
    solver, loader = solver_for(case, fcco.output_memory(refresh=10**6), lr=0.01, steps_per_epoch=3)
    loader.score()
    for batch in loader:
        solver.step(batch)
    assert len(shapes) == 8  # rows and columns: of the whole table once, of a step's draws three times


@ON_GPU
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_the_kernel_makes_nothing_as_large_as_the_pairs_and_waits_for_nobody() -> None:
    pytest.importorskip("triton")
    problem = Problem(64, 10**6, 1, torch.float64, zeros=False)
    a, s, w, b = (value.cuda() for value in (problem.a, problem.s, problem.w, problem.b))
    kernel = KERNELS["hinge"]
    log_g = kernel.rows(a, s, w, waits=False)[0]
    kernel.columns(s[:1000], a, log_g, b, waits=False)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with no_waiting():
        kernel.rows(a, s, w, waits=False)
        kernel.columns(s[:1000], a, log_g, b, waits=False)
    assert torch.cuda.max_memory_allocated() - before < 10**8  # the pairs would be 5 10^8


@ON_GPU
def test_the_kernel_in_a_graph_gives_the_bits_that_it_gives_outside() -> None:
    pytest.importorskip("triton")
    problem = Problem(64, 50_001, 2, torch.float64, zeros=False)
    a, s, w, b = (value.cuda() for value in (problem.a, problem.s, problem.w, problem.b))
    kernel = KERNELS["hinge"]

    def both() -> list[Tensor]:
        log_g, slope = kernel.rows(a, s, w, waits=False)
        return [log_g, slope, kernel.columns(s, a, log_g, b, waits=False)]

    both()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = both()
    for shift in (0.0, 0.5):
        a += shift
        wanted = both()
        graph.replay()
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))

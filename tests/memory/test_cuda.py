"""On an accelerator the memory takes the steps that it takes on the CPU, wherever the data are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fcco
from tests.memory.cases import CASES, solver_for, state_of

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
]


def trained(name: str, device: str) -> list[Tensor]:
    case = CASES[name]()
    case.to(device)
    solver, loader = solver_for(case, fcco.output_memory(refresh=2), lr=0.01)
    for _ in range(2):
        for batch in loader:
            solver.step(batch)
    values = state_of(solver).values
    assert values is not None
    return [*(p.detach().cpu() for p in solver.parameters), values.cpu()]


@pytest.mark.parametrize("name", CASES)
def test_same_steps(name: str) -> None:
    for mine, wanted in zip(trained(name, "cuda"), trained(name, "cpu"), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-8, atol=1e-9)

"""On an accelerator the memory takes the steps that it takes on the CPU, wherever the data are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fcco
from fcco.memory._keeper import TableKeeper
from fcco.solver._engine import Probed
from tests.helpers.waits import no_waiting
from tests.memory.cases import CASES, engine_of, solver_for, state_of
from tests.memory.test_capture import SHAPED_BY_DATA

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
def test_same_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A step on the CPU may evaluate the whole table, not its draws alone: no matter of rounding.
    monkeypatch.setattr(TableKeeper, "_takes_whole", lambda self, t: False)
    for mine, wanted in zip(trained(name, "cuda"), trained(name, "cpu"), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in CASES if name not in SHAPED_BY_DATA])
def test_a_step_waits_for_nobody(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's own watch over what tests/memory/test_capture.py watches on the CPU."""
    case = CASES[name]()
    case.to("cuda")
    solver, loader = solver_for(case, fcco.output_memory(refresh=10**6), lr=0.01, steps_per_epoch=4)
    loader.score()
    batches = iter(loader)
    solver.step(next(batches))
    engine = engine_of(solver)
    probe = engine.probe

    def watched(*arguments: Any) -> Probed:
        with no_waiting():
            return probe(*arguments)

    monkeypatch.setattr(engine, "probe", watched)
    for batch in batches:
        solver.step(batch.to("cuda"))
    assert solver.t == 4

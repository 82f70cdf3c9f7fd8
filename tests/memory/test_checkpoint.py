"""The checkpoint that is kept beside this file: every later version loads it and goes on from it.

Where the format changes by intent, ``python -m tests.memory.test_checkpoint`` writes it anew; old ones then need a
migration, not a new file.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import fcco
from fcco.data import Points
from fcco.objectives import PartialAUC

KEPT = Path(__file__).parent / "kept" / "output_memory.pt"
WANTED = Path(__file__).parent / "kept" / "output_memory_after.pt"  # the weights four steps later


def problem() -> tuple[fcco.Solver, fcco.memory.MemoryLoader]:
    """Twelve examples, every tensor written out: nothing depends on a version's random numbers."""
    place = torch.arange(12, dtype=torch.float64)
    x = torch.stack([place.sin(), (2.0 * place).cos()], 1)
    model = nn.Linear(2, 1).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.3, -0.2]]))
        model.bias.fill_(0.1)
    objective = PartialAUC(model, Points(x, (place % 3 == 0).long()), temperature=0.5, positive_temperature=1.0)
    method = fcco.output_memory(refresh=2, alpha=0.5, nesterov=True)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.05), method)
    loader = solver.loader(blocks=2, samples=3, seed=3)
    assert isinstance(loader, fcco.memory.MemoryLoader)
    return solver, loader


def run(solver: fcco.Solver, loader: fcco.memory.MemoryLoader, steps: int) -> list[Tensor]:
    done = 0
    while done < steps:
        for batch in loader:
            solver.step(batch)
            done += 1
            if done == steps:
                break
    return [p.detach().clone() for p in solver.parameters]


def test_the_kept_checkpoint_loads_and_goes_on() -> None:
    solver, loader = problem()
    fcco.load(KEPT, solver=solver, loader=loader)
    assert solver.t == 5
    found = run(solver, loader, 4)
    wanted = torch.load(WANTED, weights_only=True)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)  # another processor may round otherwise


def test_it_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """What was loaded is saved, loaded again and goes on as it would have."""
    solver, loader = problem()
    fcco.load(KEPT, solver=solver, loader=loader)
    run(solver, loader, 1)
    fcco.save(tmp_path / "again", solver=solver, loader=loader)
    wanted = run(solver, loader, 3)
    solver, loader = problem()
    fcco.load(tmp_path / "again", solver=solver, loader=loader)
    found = run(solver, loader, 3)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_it_is_small() -> None:
    assert KEPT.stat().st_size < 32_000


if __name__ == "__main__":
    torch.manual_seed(0)
    KEPT.parent.mkdir(exist_ok=True)
    made = problem()
    run(*made, 5)
    fcco.save(KEPT, solver=made[0], loader=made[1])
    torch.save(run(*made, 4), WANTED)

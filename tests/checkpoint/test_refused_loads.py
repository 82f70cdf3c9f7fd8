"""A load that is refused leaves the loop that is under way alone."""

import pytest
import torch

import fcco
from tests.helpers.same import assert_same

pytestmark = pytest.mark.usefixtures("one_thread")


class Refuses:
    """A part that takes no state."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        raise ValueError("refused")


def made(method, samples=4):
    torch.manual_seed(0)
    x = torch.randn(40, 3)
    y = (torch.arange(40) % 5 == 0).long()
    objective = fcco.objectives.PartialAUC(torch.nn.Linear(3, 1), fcco.data.Points(x, y))
    optimizer = torch.optim.Adam(objective.parameters())
    solver = fcco.Solver(objective, optimizer, method)
    return solver, solver.loader(blocks=2, samples=samples, steps_per_epoch=6)


def weights_after(method, meanwhile):
    """Six steps in one loop, with something after the third."""
    solver, loader = made(method)
    taken = 0
    for batch in loader:
        solver.step(batch)
        taken += 1
        if taken == 3:
            meanwhile(solver, loader)
    assert taken == 6
    return [p.detach().clone() for p in solver.parameters]


METHODS = {"sox": fcco.sox, "output-memory": fcco.output_memory}


def refused_by_the_loader(path, method):
    other, loader = made(METHODS[method](), samples=5)
    fcco.save(path, solver=other, loader=loader)
    return {}


def refused_by_a_part(path, method):
    other, loader = made(METHODS[method]())
    fcco.save(path, solver=other, loader=loader, part=Refuses())
    return {"part": Refuses()}


def damaged(path, method):
    refused_by_the_loader(path, method)
    path.write_bytes(path.read_bytes()[:-100])
    return {}


@pytest.mark.parametrize("case", [refused_by_the_loader, refused_by_a_part, damaged])
@pytest.mark.parametrize("method", METHODS)
def test_the_loop_goes_on(case, method, tmp_path):
    path = tmp_path / "other.pt"
    further = case(path, method)

    def load(solver, loader):
        with pytest.raises(fcco.CheckpointError):
            fcco.load(path, solver=solver, loader=loader, **further)

    assert_same(weights_after(METHODS[method](), load), weights_after(METHODS[method](), lambda *_: None))

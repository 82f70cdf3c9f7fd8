"""Captured steps of every objective are its eager ones, bit for bit."""

import itertools
import warnings

import pytest
import torch

import fcco
from tests.helpers.capture import CAPTURED
from tests.objectives.test_grid import OBJECTIVES, REFUSED, digits

pytestmark = CAPTURED


def run(case, device, method, capture):
    x, y = digits()
    torch.manual_seed(0)
    objective = case.make(x.float().to(device), y.to(device)).to(device)
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.01)
    solver = fcco.Solver(objective, optimizer, fcco.METHODS[method](), capture=capture)
    torch.manual_seed(1)
    loader = solver.loader(blocks=case.blocks, samples=case.samples, seed=0)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    reports = [solver.step(batch) for batch in itertools.islice(batches, 40)]
    return solver, [report.value for report in reports]


@pytest.mark.parametrize("method", ["sox", "msvr-v2", "output-memory"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_equal_to_eager(name, method, device):
    if (method, name) in REFUSED:
        pytest.skip("refused")
    case = OBJECTIVES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # contrastive losses with the memory
        eager, wanted = run(case, device, method, False)
        captured, values = run(case, device, method, "auto")
    assert values == wanted
    for part, value in eager.objective.state_dict().items():
        assert torch.equal(captured.objective.state_dict()[part], value), part
    if method != "output-memory":
        assert captured.eager_because is None
        assert captured._capture._programs
        assert torch.equal(captured.u(), eager.u())

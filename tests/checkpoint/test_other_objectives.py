"""States of another objective, of other constants or of a loader with other sizes are refused by name."""

import pytest
import torch

import fcco

pytestmark = pytest.mark.usefixtures("one_thread")


def made(kind=fcco.objectives.PartialAUC, samples=4, method=fcco.sox, **constants):
    torch.manual_seed(0)
    x = torch.randn(40, 3)
    y = (torch.arange(40) % 2 == 0).long()  # as many blocks for either objective
    objective = kind(torch.nn.Linear(3, 1), fcco.data.Points(x, y), **constants)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), method())
    return {"solver": solver, "loader": solver.loader(blocks=2, samples=samples)}


CASES = {
    "another objective": (
        {"kind": fcco.objectives.PNormPush},
        "has objective 'PartialAUC', but this solver has 'PNorm",
    ),
    "another temperature": ({"temperature": 10.0}, "with temperature .*, but this one has"),
    "another loader": ({"samples": 5}, "of a loader with samples=4, .*this one has samples=5"),
    "another method": ({"method": fcco.soap}, "has method 'sox', but this solver has 'soap'"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused_by_name(case, tmp_path):
    other, says = CASES[case]
    path = tmp_path / "run.pt"
    fcco.save(path, **made(temperature=0.1))
    settings = {} if "kind" in other or "temperature" in other else {"temperature": 0.1}
    parts = made(**settings | other)
    before = [p.detach().clone() for p in parts["solver"].parameters]
    with pytest.raises(fcco.CheckpointError, match=says):
        fcco.load(path, **parts)
    assert all(map(torch.equal, before, parts["solver"].parameters))

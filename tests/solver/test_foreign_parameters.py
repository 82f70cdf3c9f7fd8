"""Parameters that the Solver did not list are refused by name, whenever a step first reaches them."""

import pytest
import torch
from torch import nn

import fcco
from fcco.solver import _capture


class Branch(fcco.Objective):
    """A second network that is switched on later."""

    def __init__(self, later):
        super().__init__(num_blocks=3)
        self.w = nn.Parameter(torch.ones(2))
        self.later = [later]  # a list, so that it is no part of the module
        self.switched_on = False

    def inner(self, index, x):
        g = x @ self.w
        if self.switched_on:
            g = g + x @ self.later[0]
        return g.mean(1, keepdim=True)

    def outer(self, index, u):
        return u.square().squeeze(1)


def step(solver):
    return solver.step([0, 2], torch.ones(2, 4, 2))


@pytest.mark.parametrize("capture", [False, True])
@pytest.mark.parametrize("when", ["at first", "by add_param_group"])
def test_reached_later(when, capture, monkeypatch):
    monkeypatch.setattr(_capture, "CAPTURING", {"cpu"})
    later = nn.Parameter(torch.ones(2))
    objective = Branch(later)
    optimizer = torch.optim.SGD([objective.w], lr=0.01)
    if when == "at first":
        optimizer.add_param_group({"params": [later]})
    solver = fcco.Solver(objective, optimizer, fcco.msvr_v2(), capture=capture)
    for _ in range(8):
        step(solver)
    if when != "at first":
        optimizer.add_param_group({"params": [later]})
    objective.switched_on = True
    before = objective.w.detach().clone()
    for _ in range(2):  # a second time, too: no gradient is left behind
        with pytest.raises(ValueError, match=r"does not have, of shapes \(2,\)"):
            step(solver)
        assert later.grad is None
    assert solver.t == 8
    assert torch.equal(objective.w, before)
    objective.switched_on = False
    step(solver)


def test_a_new_layer_of_the_objective():
    """A layer that is added to the objective and to the optimizer later is none that the solver trains."""
    objective = Branch(nn.Parameter(torch.zeros(2)))
    optimizer = torch.optim.SGD([objective.w], lr=0.01)
    solver = fcco.Solver(objective, optimizer, fcco.sox())
    step(solver)
    objective.more = nn.Parameter(torch.ones(2))
    objective.later = [objective.more]
    optimizer.add_param_group({"params": [objective.more]})
    objective.switched_on = True
    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"added, removed or replaced .* was created: more; create another Solver$"
        ):
            step(solver)
    assert solver.t == 1


def taken_out(optimizer, later):
    optimizer.param_groups.clear()


def put_in_its_place(optimizer, later):
    """As many parameters as before."""
    optimizer.param_groups[0]["params"] = [later]


@pytest.mark.parametrize("capture", [False, True])
@pytest.mark.parametrize("change", [taken_out, put_in_its_place])
def test_parameters_taken_from_the_optimizer(change, capture, monkeypatch):
    monkeypatch.setattr(_capture, "CAPTURING", {"cpu"})
    later = nn.Parameter(torch.ones(2))
    objective = Branch(later)
    optimizer = torch.optim.SGD([objective.w], lr=0.01)
    solver = fcco.Solver(objective, optimizer, fcco.msvr_v2(), capture=capture)
    for _ in range(8):
        step(solver)
    change(optimizer, later)
    for _ in range(2):
        with pytest.raises(
            ValueError, match="removed from the optimizer since the Solver was created: w; create another Sol"
        ):
            step(solver)
    assert solver.t == 8


def test_as_many_others_in_the_optimizer():
    later = nn.Parameter(torch.ones(2))
    objective = Branch(later)
    optimizer = torch.optim.SGD([{"params": [objective.w]}, {"params": [nn.Parameter(torch.ones(2))]}], lr=0.01)
    solver = fcco.Solver(objective, optimizer, fcco.sox())
    step(solver)
    optimizer.param_groups.pop()
    optimizer.add_param_group({"params": [later]})
    objective.switched_on = True
    with pytest.raises(ValueError, match=r"does not have, of shapes \(2,\)"):
        step(solver)


def test_the_seam_leaves_other_gradients_to_their_owner():
    later = nn.Parameter(torch.ones(2))
    objective = Branch(later)
    optimizer = torch.optim.SGD([objective.w, later], lr=0.01)
    solver = fcco.Solver(objective, optimizer, fcco.sox())
    for _ in range(3):
        later.sum().backward()
        with solver.gradient([0, 2], torch.ones(2, 4, 2)):
            optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(later.detach(), torch.full((2,), 0.97))


def test_a_diagnosis_refuses_them_too():
    later = nn.Parameter(torch.ones(2))
    objective = Branch(later)

    def full_pass():
        yield torch.arange(3), torch.ones(3, 4, 2)

    optimizer = torch.optim.SGD([objective.w, later], lr=0.01)
    solver = fcco.Solver(objective, optimizer, fcco.sox(), full_pass=full_pass)
    step(solver)
    objective.switched_on = True
    with pytest.raises(ValueError, match="does not have"):
        solver.diagnose()
    assert later.grad is None
    objective.more = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=r"added, removed or replaced .*: more"):
        solver.diagnose()


@pytest.mark.parametrize("name", ["objective", "optimizer", "radius", "normalize", "keep"])
def test_what_a_solver_is_made_of_is_fixed(name):
    """Half of its parts would follow another one."""
    objective = Branch(nn.Parameter(torch.zeros(2)))
    solver = fcco.Solver(objective, torch.optim.SGD([objective.w], lr=0.01), fcco.sox())
    with pytest.raises(
        AttributeError, match=f"^{name} of a Solver is fixed when it is created; create another Solver$"
    ):
        setattr(solver, name, None)
    step(solver)


def test_complex_parameters_are_refused_by_name():
    objective = Branch(nn.Parameter(torch.zeros(2)))
    objective.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(ValueError, match="complex parameters, which fcco does not train: phase"):
        fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), fcco.sox())


def over_points(model, capture=False, method=None):
    x = torch.randn(20, 3)
    objective = fcco.objectives.PartialAUC(model, fcco.data.Points(x, torch.arange(20) % 4 == 0))
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.01)
    solver = fcco.Solver(objective, optimizer, method or fcco.msvr_v2(), capture=capture)
    return solver, list(solver.loader(blocks=2, samples=4, steps_per_epoch=12))


def replace_layer(model):
    model[1] = nn.Linear(4, 1)


def replace_parameter(model):
    model[1].weight = nn.Parameter(torch.ones(1, 4))


def drop_parameter(model):
    model[1].bias = None


REPLACED = {
    "a layer": (replace_layer, r"model\.1\.weight, model\.1\.bias;"),
    "a parameter": (replace_parameter, r"model\.1\.weight;"),
    "a bias that is gone": (drop_parameter, r"model\.1\.bias;"),
    "one more layer": (lambda model: model.append(nn.Linear(1, 1)), r"model\.2\.weight, model\.2\.bias;"),
}


@pytest.mark.parametrize("capture", [False, True])
@pytest.mark.parametrize("case", REPLACED)
def test_layers_replaced_later(case, capture, monkeypatch):
    """Nobody would train a new one: the optimizer has the old one still, and w_{t-1} would be put into that."""
    monkeypatch.setattr(_capture, "CAPTURING", {"cpu"})
    change, says = REPLACED[case]
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    solver, batches = over_points(model, capture)
    for batch in batches[:6]:
        solver.step(batch)
    change(model)
    with pytest.raises(ValueError, match=rf"were added, removed or replaced since the Solver was created: {says}"):
        solver.step(batches[6])
    assert solver.t == 6


class Counting(nn.Module):
    """Counts its passes, once it is switched on."""

    def __init__(self):
        super().__init__()
        self.register_buffer("passes", torch.tensor(0))
        self.on = False

    def forward(self, x):
        self.passes += self.on
        return x


def test_modules_without_parameters_may_come_and_go():
    """What they count is put back after a probe at other weights, too."""

    def run(late):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        counting = Counting()
        if not late:
            model.append(counting)
        solver, batches = over_points(model)
        for batch in batches[:3]:
            solver.step(batch)
        if late:
            model.append(counting)
        counting.on = True
        for batch in batches[3:]:
            solver.step(batch)
        return [p.detach().clone() for p in solver.parameters], int(counting.passes)

    (early, passes), (late, later_passes) = run(False), run(True)
    for a, b in zip(early, late, strict=True):
        assert torch.equal(a, b)
    assert passes == later_passes == 9

"""States of something else, or of parts of something else: refused by name, and nothing changed by them."""

import copy

import pytest
import torch

import fcco
from fcco.checkpoint import read
from tests.helpers.methods import recipe
from tests.helpers.runs import STAGES, Run, goes_on_as_before, refused
from tests.helpers.same import assert_same
from tests.helpers.trials import Noisy

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", ["sox", "msvr-v1", "msvr-v3", "variant-v2", "msvr-v2-sp"])
def test_another_methods_state(name, good_file):
    run = Run(name, seed=2).steps(2)
    says = refused(good_file, run)
    assert "msvr-v2" in says
    assert name in says
    goes_on_as_before(run, name=name, seed=2)


def test_another_lag(tmp_path):
    run = Run(seed=2).steps(2)
    other = Run(seed=3)
    other.solver.method = recipe("msvr-v2", lag=0)
    fcco.save(tmp_path / "run.pt", **other.steps(2).parts)
    torch.manual_seed(2)
    refused(tmp_path / "run.pt", run, "has lag 0, but this solver has 1")


class Other(Run):
    """A run of another objective, or with other parts."""

    def __init__(self, objective, keep="uniform", optimizer=torch.optim.Adam):
        super().__init__(keep=keep, optimizer=optimizer)
        self.objective = objective
        self.optimizer = optimizer(objective.parameters(), lr=0.02)
        self.solver = fcco.Solver(objective, self.optimizer, recipe("msvr-v2"), keep=keep)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)


class Grouped(torch.optim.Adam):
    """Adam over two groups of parameters."""

    def __init__(self, parameters, lr):
        first, *rest = parameters
        super().__init__([{"params": [first]}, {"params": rest}], lr=lr)


DIFFERENT = {
    "wider": (lambda: Other(Noisy(width=7)), "model"),
    "more blocks": (lambda: Other(Noisy(num_blocks=8)), "has blocks 6, but this solver has 8"),
    "another dim": (lambda: Other(Noisy(dim=3)), "has dim 2, but this solver has 3"),
    "another dtype": (lambda: Other(Noisy().double()), "model"),
    "no batch norm": (lambda: Other(Noisy(batch_norm=False)), "running_mean"),
    "something frozen": (lambda: Other(frozen()), "previous has tensors of shapes"),
    "another optimizer": (lambda: Other(Noisy(), optimizer=torch.optim.SGD), "Adam.*SGD"),
    "the optimizer's sister": (lambda: Other(Noisy(), optimizer=torch.optim.AdamW), "Adam.*AdamW"),
    "other groups": (lambda: Other(Noisy(), optimizer=Grouped), "group|Grouped"),
    "another keep": (lambda: Other(Noisy(), keep="last"), "keep"),
}


def frozen():
    objective = Noisy()
    objective.model[0].weight.requires_grad_(False)
    return objective


@pytest.mark.parametrize("case", DIFFERENT)
def test_another_model(case, good_file):
    make, says = DIFFERENT[case]
    run = make()
    refused(good_file, run, says)
    state = read(good_file)["states"]["solver"]
    before = run.snapshot()
    with pytest.raises(ValueError, match=says):  # the solver alone refuses it too, and is as it was
        run.solver.load_state_dict(state)
    assert_same(before, run.snapshot())


def changed(state, **fields):
    """The state with some fields of its record replaced."""
    return state | {"state": state["state"] | fields}


def swapped(state):
    """The state with w_{t-1} in another order."""
    engine = state["state"]["engine"]
    return changed(state, engine=engine | {"previous": engine["previous"][::-1]})


def without(state, name):
    return {key: value for key, value in state.items() if key != name}


def cut(change):
    """A state whose optimizer's part was changed by hand."""

    def made(state):
        state = copy.deepcopy(state)
        change(state["optimizer"])
        return state

    return made


STATES = {
    "nothing": (lambda state: {}, "version None"),
    "no z": (lambda state: state | {"state": without(state["state"], "z")}, "lacks z"),
    "something more": (lambda state: changed(state, speed=3), "has speed, which is unknown here"),
    "no random": (lambda state: without(state, "random"), "lacks.*random"),
    "no record": (lambda state: without(state, "state"), "lacks.*state"),
    "not a dict": (lambda state: [state], "dict.*list"),
    "z cut short": (lambda state: changed(state, z=state["state"]["z"][:-1]), "z has tensors"),
    "z of other shapes": (lambda state: changed(state, z=state["state"]["z"][::-1]), "z has tensors"),
    "earlier weights of other shapes": (swapped, "previous has tensors"),
    "another version": (lambda state: state | {"version": 1}, "version 1, .*version 2"),
    "no rate": (cut(lambda state: state["param_groups"][0].pop("lr")), "a number as lr, got None"),
    "a word as rate": (cut(lambda state: state["param_groups"][0].update(lr="x")), "a number as lr, got 'x'"),
    "an entry without a part": (
        cut(lambda state: state["state"][0].pop("exp_avg")),
        "exp_avg between parameters 0 and",
    ),
    "a number for a part": (cut(lambda state: state["state"][0].update(exp_avg=3)), "exp_avg between parameters 0 and"),
    "a part of another shape": (
        cut(lambda state: state["state"][0].update(exp_avg=torch.zeros(17))),
        r"exp_avg of shape \(17,\) for parameter 0",
    ),
    "an entry that is none": (
        cut(lambda state: state["state"].update({0: 3})),
        "must hold a dict for parameter 0, got 3",
    ),
    "an entry of nothing": (cut(lambda state: state["state"].update({99: {}})), "entries of no parameter: 99"),
    "no entry": (cut(lambda state: state["state"].pop(0)), "lacks its entry for parameter 0"),
    "no numbers": (cut(lambda state: state["param_groups"][0].pop("betas")), "numbers as betas, got None"),
    "no list": (cut(lambda state: state["param_groups"][0].update(params=3)), "a list of params in every group"),
    "gradients of other shapes": (lambda state: state | {"gradients": [torch.zeros(1)]}, "gradients do not fit"),
    "random of a word": (lambda state: state | {"random": "x"}, "random must be a list"),
    "steps that are none": (lambda state: changed(state, t="x"), "t must be a whole number >= 0, got 'x'"),
    "fewer than no steps": (lambda state: changed(state, t=-5), "t must be a whole number >= 0, got -5"),
    "no steps": (lambda state: changed(state, t=None), "t must be a whole number >= 0, got None"),
    "no engine": (lambda state: changed(state, engine=None), "lacks engine"),
    "of no constants": (lambda state: state | {"of": state["of"] | {"constants": None}}, "which constants"),
    "no entries": (cut(lambda state: state.pop("state")), "optimizer must have state and param_groups"),
    "no groups": (cut(lambda state: state.update(param_groups=None)), "optimizer must have state and param_groups"),
    "of nothing": (lambda state: state | {"of": None}, "does not say what it belongs to"),
}


class ByLength(torch.optim.Optimizer):
    """Keeps another kind of momentum for long parameters, as optimizers with 8 bits do."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            if p.numel() > 3:
                self.state[p] = {"packed": torch.zeros(p.numel(), dtype=torch.uint8), "scale": torch.ones(1)}
            else:
                self.state[p] = {"momentum": torch.zeros_like(p)}
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"])


def test_an_optimizer_may_keep_other_things_of_long_parameters():
    state = Other(Noisy(), optimizer=ByLength).steps(2).solver.state_dict()
    Other(Noisy(), optimizer=ByLength).solver.load_state_dict(state)


@pytest.mark.parametrize("case", STATES)
def test_state_of_the_wrong_make(case, good_file):
    """A state that somebody cut up: refused before anything is changed."""
    make, says = STATES[case]
    run = Run(seed=2).steps(2)
    before, state = run.snapshot(), make(read(good_file)["states"]["solver"])
    with pytest.raises((ValueError, TypeError), match=says):
        run.solver.load_state_dict(state)
    assert_same(before, run.snapshot())


def test_other_parts(good_file):
    run = Run(seed=2).steps(2)
    before = run.snapshot()
    held = r"holds solver \(Solver\), loader \(BlockSampler\), scheduler \(ExponentialLR\)"
    with pytest.raises(fcco.CheckpointError, match=rf"{held}, but the call asks for solver \(Solver\)$"):
        fcco.load(good_file, solver=run.solver)
    with pytest.raises(fcco.CheckpointError, match=held):
        fcco.load(good_file, solver=run.sampler, loader=run.solver, scheduler=run.scheduler)
    with pytest.raises(fcco.CheckpointError, match=held):
        fcco.load(good_file, solver=run.solver, loader=run.sampler, decay=run.scheduler)
    assert_same(before, run.snapshot())


class Refuses:
    """A part whose state never fits."""

    def state_dict(self):
        return {"a": 1}

    def load_state_dict(self, state):
        raise RuntimeError("does not fit today")


@pytest.mark.parametrize("name", ["msvr-v3", "soap"])
def test_a_later_part_that_refuses_takes_the_earlier_ones_back(name, tmp_path):
    """Stages, solver, sampler and scheduler have been loaded by the time the last part says no."""
    other, path = Run(name, stages=STAGES).steps(5), tmp_path / "run.pt"
    broken = Refuses()
    broken.load_state_dict = lambda state: None
    fcco.save(path, **other.parts, broken=broken)
    for steps in (0, 2):
        run, refuses = Run(name, seed=2, stages=STAGES).steps(steps), Refuses()
        calls = []

        def once(state, calls=calls):
            calls.append(state)
            if len(calls) == 1:
                raise RuntimeError("does not fit today")

        refuses.load_state_dict = once
        before = run.snapshot()
        with pytest.raises(fcco.CheckpointError, match="does not fit today"):
            fcco.load(path, **run.parts, broken=refuses)
        assert_same(before, run.snapshot())

"""States of other data, samplers, stages and losses, of the same shapes: refused by name, and nothing is changed."""

import copy

import pytest
import torch

import fcco
from tests.helpers.same import assert_same
from tests.losses.cases import LOSSES, make_loss
from tests.objectives.cases import CASES, N

pytestmark = pytest.mark.usefixtures("one_thread")

ORDER = torch.arange(N).flip(0)
WEIGHT = torch.arange(1.0, N + 1)


def solver_over(objective, method=None):
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.01)
    return fcco.Solver(objective, optimizer, method or fcco.sox())


@pytest.mark.parametrize("method", [fcco.sox, fcco.output_memory])
@pytest.mark.parametrize("name", ["pAUC", "NDCG", "Cox", "NCA", "multi-task AUC"])
def test_the_state_of_other_labels_is_refused(name, method):
    """u_i would be of another block: with the same number of positives every shape is the same."""
    case = CASES[name]
    made = solver_over(case.objective(), method())
    for batch in made.loader(blocks=2, samples=4):
        made.step(batch)
    state = made.state_dict()
    for change in ({"rows": ORDER}, {"weight": WEIGHT}):
        other = solver_over(case.objective(**change), method())
        before = copy.deepcopy(other.state_dict())
        with pytest.raises(ValueError, match="the state is of other data: their labels, groups, times or weights"):
            other.load_state_dict(state)
        assert_same(before, other.state_dict())
    same = solver_over(case.objective(), method())
    same.load_state_dict(state)
    state["of"].pop("data")  # as states had it before
    same.load_state_dict(state)


def test_the_state_of_another_block_sampler_is_refused():
    state = fcco.BlockSampler(10, 4).state_dict()
    for sampler, says in (
        (fcco.BlockSampler(10, 2), r"a BlockSampler with blocks=4, but this one has blocks=2$"),
        (fcco.BlockSampler(11, 4), r"a BlockSampler with num_blocks=10, but this one has num_blocks=11$"),
    ):
        before = sampler.state_dict()
        with pytest.raises(ValueError, match=says):
            sampler.load_state_dict(state)
        assert_same(before, sampler.state_dict())
    old = {"random": state["random"]}  # as states had it before
    fcco.BlockSampler(10, 4).load_state_dict(old)
    with pytest.raises(ValueError, match="not one of a BlockSampler: it lacks random"):
        fcco.BlockSampler(10, 4).load_state_dict({})


def stage_wise(*stages, drawn=False):
    return fcco.StageWise(solver_over(CASES["pAUC"].objective()), list(stages), drawn=drawn)


def test_the_state_of_other_stages_is_refused():
    stages = [fcco.Stage(2, 0.1, 0.5, 0.5), fcco.Stage(3, 0.05, 0.25, 0.25)]
    state = stage_wise(*stages).state_dict()
    others = {
        "stages=": stage_wise(stages[0], fcco.Stage(4, 0.05, 0.25, 0.25)),
        "drawn=False": stage_wise(*stages, drawn=True),
    }
    for says, run in others.items():
        before = run.state_dict()
        with pytest.raises(ValueError, match=f"the state is of a StageWise with {says}"):
            run.load_state_dict(state)
        assert_same(before, run.state_dict())
    state.pop("kind")  # as states had it before
    stage_wise(*stages).load_state_dict(state)
    with pytest.raises(ValueError, match="not one of a StageWise: it lacks stage, left"):
        stage_wise(*stages).load_state_dict({"random": state["random"]})


def test_the_state_of_a_losss_other_sampler_is_refused():
    loss = make_loss("pAUC")
    state = loss.sampler(2, 4).state_dict()
    for sizes, says in (((3, 4), "blocks=2"), ((2, 3), "samples=4"), ((2, 4, 9), "steps_per_epoch=")):
        sampler = loss.sampler(*sizes[:2], steps_per_epoch=sizes[2] if len(sizes) > 2 else 2)
        with pytest.raises(ValueError, match=f"the state is of a sampler with .*{says}"):
            sampler.load_state_dict(state)
    state.pop("kind")  # as states had it before
    loss.sampler(2, 4).load_state_dict(state)
    with pytest.raises(ValueError, match="not one of a loss's sampler: it lacks seed"):
        loss.sampler(2, 4).load_state_dict({"epoch": 1, "step": 0})


@pytest.mark.parametrize("memory", [False, True])
def test_the_state_of_another_loss_is_refused(memory):
    """Other temperatures, other weights, another loss of the same shapes."""
    labels = CASES["pAUC"].facts["y"]
    mine = fcco.losses.PartialAUC(labels, temperature=0.5, memory=memory)
    state = mine.state_dict()
    others = [
        fcco.losses.PartialAUC(labels, temperature=0.6, memory=memory),
        fcco.losses.PartialAUC(labels, temperature=0.5, weight=WEIGHT, memory=memory),
        fcco.losses.PartialAUC(labels.flip(0), temperature=0.5, memory=memory),
    ]
    if not memory:
        others.append(fcco.losses.PNormPush(1 - labels))  # as many blocks
    for other in others:
        before = {key: value.clone() for key, value in other.state_dict().items()}
        with pytest.raises(ValueError, match=rf"the state is not of this {type(other).__name__}"):
            other.load_state_dict(state)
        assert_same(before, dict(other.state_dict()))


@pytest.mark.parametrize("name", LOSSES)
def test_a_losss_own_state_loads_also_as_it_was_before(name):
    loss = make_loss(name)
    state = loss.state_dict()
    make_loss(name).load_state_dict(state)
    del state["of"]
    make_loss(name).load_state_dict(state)
    inside = torch.nn.ModuleDict({"loss": make_loss(name)})
    inside.load_state_dict(torch.nn.ModuleDict({"loss": loss}).state_dict())

"""What holds for every objective: copies, saved states, constants, refusals, forms of input and output, own batches."""

import copy
import inspect
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fcco import data, objectives
from tests.objectives.cases import CASES, LABEL, TARGETS, N, X
from tests.objectives.tools import exact_value, passed, value, whole

OWN = {
    "multi-task AUC": {"a", "b"},
    "pAUC, two-way": {"v"},
    "p-norm push, logarithm": {"v"},
    "Group DRO, KL": {"v"},
    "Group DRO, CVaR": {"v"},
    "multi-instance": {"a", "b"},
    "contrastive, learned": {"excess"},
}


@pytest.mark.parametrize("name", CASES)
def test_copies_share_the_data_and_nothing_else(name):
    objective = CASES[name].objective(weight=torch.arange(1.0, N + 1.0))
    twin = copy.deepcopy(objective)
    assert type(twin) is type(objective)
    assert twin.data is objective.data
    assert twin.blocks is objective.blocks
    assert exact_value(twin).item() == exact_value(objective).item()
    assert not {id(p) for p in twin.parameters()} & {id(p) for p in objective.parameters()}
    before = exact_value(objective).item()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1.5)
    assert exact_value(objective).item() == before
    assert exact_value(twin).item() != before


@pytest.mark.parametrize("name", CASES)
def test_a_state_holds_weights_and_trained_variables_and_no_data(name):
    objective = CASES[name].objective()
    model = {f"model.{key}" for key in objective.model.state_dict()}
    assert set(objective.state_dict()) == model | OWN.get(name, set())
    assert objective.fixed_buffers == set(dict(objective.named_buffers(recurse=False))) | {
        buffer for buffer in objective.fixed_buffers if getattr(objective, buffer) is None
    }


def test_the_state_of_other_data_does_not_change_the_data():
    case = CASES["Cox"]
    one, other = case.objective(), case.objective(torch.arange(N).flip(0))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1)
    one.load_state_dict(other.state_dict())
    assert one.moment.tolist() != other.moment.tolist()
    fresh = case.objective()
    fresh.model.load_state_dict(other.model.state_dict())
    assert exact_value(one).item() == exact_value(fresh).item()


@pytest.mark.parametrize("name", CASES)
def test_a_smaller_precision_and_back_keeps_the_tables_of_whole_numbers(name):
    objective = CASES[name].objective()
    kept = {key: value.clone() for key, value in objective.named_buffers() if not value.is_floating_point()}
    objective.bfloat16().double()
    for key, value_before in kept.items():
        assert torch.equal(getattr(objective, key), value_before), key


# ---- constants


WEIGHTS = torch.tensor([1.0, 2.0, 3.0])
RELEVANT = torch.arange(1.0, 8.0)
PER_EXAMPLE = objectives.LearnedTemperature(0.4, 0.2, 0.1, per_example=True)
CHANGES = [
    ("multi-task AUC", {"loss": objectives.Square(0.5)}),
    ("multi-task AUC", {"loss": objectives.SquaredHinge(0.5, 0.5)}),
    ("multi-task AUC", {"trained_centers": False}),
    ("multi-task AUC", {"block_weight": WEIGHTS}),
    ("AP", {"loss": objectives.SquaredHinge(2.0)}),
    ("AP", {"loss": objectives.Exponential(0.5)}),
    ("pAUC", {"temperature": 0.25}),
    ("pAUC", {"positive_temperature": 2.0}),
    ("pAUC", {"loss": objectives.Logistic(2.0)}),
    ("pAUC, two-way", {"positive_temperature": 2.0}),
    ("p-norm push", {"p": 3.0}),
    ("p-norm push", {"loss": objectives.Logistic(2.0)}),
    ("p-norm push", {"logarithm": True}),
    ("NDCG", {"surrogate": objectives.SquaredHinge(2.0)}),
    ("NDCG", {"block_weight": RELEVANT}),
    ("ListNet", {"block_weight": torch.arange(1.0, N + 1.0)}),
    ("ListNet", {"relevant_only": True}),
    ("Group DRO, KL", {"risk": objectives.KLRisk(2.0)}),
    ("Group DRO, CVaR", {"risk": objectives.CVaRRisk(0.5, 0.5)}),
    ("Group DRO, KL", {"group_weight": torch.arange(1.0, 5.0)}),
    ("Group DRO, KL", {"loss": lambda outputs, y: outputs.square().sum(1)}),
    ("multi-instance", {"temperature": 0.1}),
    ("multi-instance", {"loss": objectives.Square(3.0)}),
    ("contrastive", {"temperature": 0.3}),
    ("contrastive", {"temperature": objectives.LearnedTemperature()}),
    ("contrastive, learned", {"temperature": objectives.LearnedTemperature(0.4, 0.5, 0.1)}),
    ("contrastive, learned", {"temperature": objectives.LearnedTemperature(0.4, 0.2, 0.2)}),
    ("contrastive, learned", {"temperature": PER_EXAMPLE}),
    ("contrastive", {"epsilon": 0.5}),
    ("contrastive", {"normalize": False}),
    ("NCA", {"log_likelihood": True}),
]


def in_words(objective):
    """The constants as a checkpoint would hold them."""
    return json.loads(json.dumps(objective.constants()))


@pytest.mark.parametrize(("name", "change"), CHANGES, ids=lambda part: str(part).split(" at 0x")[0][:40])
def test_another_constant_is_another_f_and_is_named(name, change):
    case = CASES[name]
    objective, other = case.objective(), case.objective(**change)
    assert in_words(objective) == in_words(case.objective())
    assert in_words(objective) != in_words(other)
    differing = [key for key, value in in_words(other).items() if in_words(objective).get(key) != value]
    assert differing == list(change)
    if change == {"temperature": PER_EXAMPLE}:  # the same F until the temperatures part
        return
    assert exact_value(objective).item() != pytest.approx(exact_value(other).item(), rel=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_every_argument_is_a_constant_but_those_that_only_start(name):
    objective = CASES[name].objective()
    arguments = set(inspect.signature(type(objective).__init__).parameters) - {"self", "model", "data", "start"}
    arguments -= {"positive_fraction"}  # of the draws: F is the same
    assert arguments == set(objective.constants())


def test_where_a_variable_starts_is_no_constant():
    case = CASES["pAUC, two-way"]
    assert case.objective(start=1.0).constants() == case.objective().constants()
    case = CASES["contrastive, learned"]
    later = case.objective(temperature=objectives.LearnedTemperature(0.9, 0.2, 0.1))
    assert later.constants() == case.objective().constants()


# ---- refusals


@pytest.mark.parametrize("name", CASES)
def test_data_of_another_kind_are_refused_in_one_sentence(name):
    case = CASES[name]
    for other in CASES.values():
        if other.kind is case.kind:
            continue
        wanted, given = case.kind.__name__, other.kind.__name__
        with pytest.raises(TypeError, match=rf"^\w+ needs fcco\.data\.{wanted}, got {given}$"):
            case.make(nn.Linear(3, case.outputs), other.data())
    with pytest.raises(TypeError, match=r"got Tensor$"):
        case.make(nn.Linear(3, case.outputs), X)


@pytest.mark.parametrize("name", CASES)
def test_a_model_that_is_none_is_refused(name):
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got function"):
        CASES[name].make(lambda x: x, CASES[name].data())


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("Group DRO")])
def test_outputs_of_another_shape_are_refused_in_one_sentence(name):
    case = CASES[name]
    objective = case.make(nn.Sequential(nn.Linear(3, 8), nn.Unflatten(1, (2, 2, 2))).double(), case.data())
    with pytest.raises(ValueError, match=r"the (model|features) must .* got \([\d, ]+\)$"):
        objective(*whole(objective))


def test_other_data_than_a_batch_are_refused():
    objective = CASES["pAUC"].objective()
    with pytest.raises(TypeError, match=r"PartialAUC takes one fcco\.data\.Batch beside index, got Tensor, Tensor"):
        objective(torch.tensor([0]), X, LABEL)
    with pytest.raises(TypeError, match="got nothing"):
        objective(torch.tensor([0]))


# ---- what goes in, what comes out


class Logits(nn.Module):
    """A model as those of Transformers: named inputs, an object with logits."""

    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, input_ids=None, attention_mask=None):
        return SimpleNamespace(logits=self.body(input_ids * attention_mask))


def test_dicts_are_named_inputs_and_logits_are_the_outputs():
    case = CASES["AP, several tasks"]
    plain = case.objective()
    x = {"input_ids": X, "attention_mask": torch.ones_like(X)}
    named = objectives.AveragePrecision(Logits(plain.model), data.Points(x, TARGETS))
    assert exact_value(named).item() == exact_value(plain).item()
    several = objectives.AveragePrecision(Logits(plain.model), data.Points((X, torch.ones_like(X)), TARGETS))
    assert exact_value(several).item() == exact_value(plain).item()


def test_a_model_that_returns_something_else_is_refused():
    class Two(nn.Linear):
        def forward(self, x):
            return super().forward(x), x

    objective = objectives.PartialAUC(Two(3, 1).double(), data.Points(X, LABEL))
    with pytest.raises(TypeError, match=r"must return a tensor, or an object with \.logits, got tuple"):
        objective(*whole(objective))


@pytest.mark.parametrize("name", CASES)
def test_float64_arrays_meet_a_float32_model(name):
    case = CASES[name]
    x = X.numpy()
    if case.views:
        x = (X.numpy(), np.array(X.numpy() + 0.1))
    objective = case.make(nn.Linear(3, case.outputs), case.kind(x, **case.facts, **case.whole))
    batch = next(iter(objective.loader(min(2, objective.num_blocks), 4)))
    objective.outer(batch.index, objective(batch.index, batch)).sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in objective.parameters())
    assert exact_value(objective).isfinite()


@pytest.mark.parametrize("name", CASES)
def test_half_precision_outputs_lose_no_more_than_their_own_digits(name):
    class Half(nn.Module):
        def __init__(self, body, dtype):
            super().__init__()
            self.body = body
            self.dtype = dtype

        def forward(self, x):
            return self.body(x).bfloat16().to(self.dtype)

    values = []
    for dtype in (torch.float64, torch.bfloat16):
        objective = CASES[name].objective()
        objective.model = Half(objective.model, dtype)
        values.append(exact_value(objective).item())
    assert values[1] == pytest.approx(values[0], rel=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_a_batch_of_ones_own_is_completed(name):
    objective = CASES[name].objective()
    x = objective.data.source.take(torch.arange(N))
    batch = objective.complete(objective.data.batch(torch.arange(N), x))
    assert batch.index.tolist() == list(range(objective.num_blocks))
    torch.testing.assert_close(objective(batch.index, batch), passed(objective))
    assert objective.complete(batch) is batch


@pytest.mark.parametrize("name", CASES)
def test_steps_count_the_examples_of_a_batch(name):
    objective = CASES[name].objective()
    batch = next(iter(objective.loader(min(2, objective.num_blocks), 4)))
    assert objective.samples(batch.index, batch) == len(batch)
    assert value(objective, batch.index, batch).isfinite()


def test_the_memory_has_no_fast_form_unless_an_objective_names_it():
    class Own(objectives.OutputObjective):
        pass

    own = Own(nn.Linear(3, 1), data.ExampleBlocks(data.Examples(X)))
    assert own.table_form(None) is None
    assert own.constants() == {}
    with pytest.raises(NotImplementedError, match="Own must define values"):
        own(torch.tensor([0]), next(iter(own.loader(2, 0))))

"""A batch says which data it is of: an objective of other data refuses it, even where all shapes agree."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import fcco
from fcco import objectives
from fcco.data import Bags, Examples, Groups, Points, Queries, RiskSets, Structure, Tasks

N = 12
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([1, 0, 0] * 4)
EVERY_OTHER = torch.tensor([0, 1] * 6)
TWO_TASKS = torch.stack([Y, EVERY_OTHER], 1)
TIME = torch.arange(N).float()


def per_example_loss(output, y):
    return (output.squeeze(1) - y).square()


# For each structure: its objective, data, and other data with the same shapes.
CASES = {
    "Points": (objectives.PartialAUC, Points(X, Y), Points(X, Y.flip(0))),
    "Points, other weights": (
        objectives.PartialAUC,
        Points(X, Y, weight=torch.ones(N)),
        Points(X, Y, weight=torch.arange(1.0, N + 1)),
    ),
    "Tasks": (objectives.MultiTaskAUC, Tasks(X, TWO_TASKS), Tasks(X, TWO_TASKS.flip(0))),
    "Queries": (objectives.NDCG, Queries(X, EVERY_OTHER, Y), Queries(X, EVERY_OTHER.flip(0), Y)),
    "RiskSets": (objectives.Cox, RiskSets(X, TIME, EVERY_OTHER), RiskSets(X, TIME.flip(0), EVERY_OTHER)),
    "Groups": (
        lambda model, data: objectives.GroupDRO(model, data, objectives.KLRisk(1.0), loss=per_example_loss),
        Groups(X, Y.float(), EVERY_OTHER),
        Groups(X, Y.float(), EVERY_OTHER.flip(0)),
    ),
    "Bags": (
        objectives.MultiInstance,
        Bags(X, EVERY_OTHER, torch.tensor([0, 1])),
        Bags(X, EVERY_OTHER, torch.tensor([1, 0])),
    ),
    "Examples": (objectives.NCA, Examples(X, Y), Examples(X, Y.flip(0))),
    "Examples, of another number": (objectives.NCA, Examples(X, Y), Examples(X[:9], Y[:9])),
}
every_structure = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def solver_of(kind, data, method=None):
    torch.manual_seed(0)
    outputs = 1
    if isinstance(data, Tasks):
        outputs = 2
    objective = kind(nn.Linear(3, outputs), data)
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
    return fcco.Solver(objective, optimizer, method or fcco.sox(alpha=0.1, beta=0.1))


@every_structure
def test_a_batch_of_other_data_is_refused_and_changes_nothing(case):
    kind, data, other = case
    solver = solver_of(kind, data)
    strangers = solver_of(kind, other)
    before = copy.deepcopy(solver.state_dict())
    batch = next(iter(strangers.loader(blocks=2, samples=4)))
    with pytest.raises(ValueError, match="the batch is of other data"):
        solver.step(batch)
    with pytest.raises(ValueError, match="the batch is of other data"):
        solver.objective(batch.index, batch)
    assert repr(solver.state_dict()) == repr(before)


@every_structure
def test_a_batch_of_ones_own_loader_is_refused(case):
    kind, data, other = case
    solver = solver_of(kind, data)
    ids = torch.arange(other.num_examples)
    with pytest.raises(ValueError, match="the batch is of other data"):
        solver.step(other.batch(ids, X[ids]))


@every_structure
def test_a_part_of_a_full_pass_over_other_data_is_refused(case):
    kind, data, other = case
    batch = next(solver_of(kind, other).objective.full_pass())
    with pytest.raises(ValueError, match="the batch is of other data"):
        solver_of(kind, data).step(batch)


@pytest.mark.parametrize("name", ["Points", "RiskSets", "Queries", "Tasks"])
def test_the_output_memory_refuses_it_too(name):
    kind, data, other = CASES[name]
    solver = solver_of(kind, data, fcco.output_memory())
    strangers = solver_of(kind, other, fcco.output_memory())
    with pytest.raises(ValueError, match="the batch is of other data"):
        solver.step(next(iter(strangers.loader(blocks=2, samples=4))))


@every_structure
def test_equal_data_are_the_same_data(case):
    kind, data, other = case
    twin = pickle.loads(pickle.dumps(data))
    assert twin.origin() == data.to("cpu").origin() == copy.copy(data).origin() == data.origin() != other.origin()
    solver_of(kind, data).step(next(iter(solver_of(kind, twin).loader(blocks=2, samples=4))))


def test_a_part_is_other_data():
    data = CASES["Points"][1]
    data.origin()
    assert data.subset([0, 1, 2, 3]).origin() != data.origin()
    first, second = data.split(0.5)
    assert len({data.origin(), first.origin(), second.origin()}) == 3 or torch.equal(first.y, second.y)


class Rows(Dataset):
    """Batches made in worker processes."""

    def __init__(self, data: Structure) -> None:
        self._data = data

    def __len__(self) -> int:
        return N // 6

    def __getitem__(self, place: int):
        ids = torch.arange(6 * place, 6 * place + 6)
        return self._data.batch(ids, X[ids])


def test_batches_made_in_workers_are_of_the_same_data():
    kind, data, other = CASES["RiskSets"]
    solver = solver_of(kind, data)
    for batch in DataLoader(Rows(data), batch_size=None, num_workers=1):
        solver.step(batch)
    assert solver.t == 2
    batch = next(iter(DataLoader(Rows(other), batch_size=None, num_workers=1)))
    with pytest.raises(ValueError, match="the batch is of other data"):
        solver.step(batch)


def test_a_batch_by_hand_is_of_whatever_data_there_are():
    kind, data, _ = CASES["RiskSets"]
    solver = solver_of(kind, data)
    batch = next(iter(solver.loader(blocks=2, samples=4)))
    solver.step(fcco.Batch(batch.x, batch.id, batch.index, batch.y, batch.block_pos, batch.serves, batch.weight))
    assert solver.t == 1

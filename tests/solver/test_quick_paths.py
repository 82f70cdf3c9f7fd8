"""What a step leaves out where it can gives the same as what it leaves out."""

import pytest
import torch
from torch import nn

import fcco
from fcco.data import Batch, Tasks
from fcco.data._batch import serving
from fcco.objectives import MultiTaskAUC
from fcco.solver import _blocks
from fcco.solver._blocks import BlockTable
from tests.helpers.same import assert_same

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(60) % 5


def start(name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 5))
    objective = MultiTaskAUC(model, Tasks(X, Y))
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
    return fcco.Solver(objective, optimizer, fcco.METHODS[name](alpha=0.3, beta=0.4))


def run(solver, steps=8):
    for batch in solver.loader(2, 6, seed=1, steps_per_epoch=steps):
        solver.step(batch)
    return solver


@pytest.mark.parametrize("name", ["sox", "msvr-v1", "msvr-v2", "msvr-v3"])
def test_a_node_beside_the_graph_is_one_in_it(name):
    beside = run(start(name))
    assert beside._evaluator._in_two_parts is not None
    within = start(name)
    within._evaluator._in_two_parts = None
    assert_same(run(within).state_dict(), beside.state_dict())


def test_hooks_of_the_objective_see_every_pass():
    solver = start("msvr-v2")
    seen = []
    solver.objective.register_forward_hook(lambda module, arguments, g: seen.append(g.requires_grad))
    run(solver, steps=3)
    assert seen == [True] * 6


@pytest.mark.parametrize("name", ["forward", "inner"])
def test_who_replaces_a_function_of_the_objective_is_called(name, monkeypatch):
    solver = start("sox")
    run(solver, steps=1)
    calls = []
    original = getattr(solver.objective, name)

    def replaced(index, *data):
        calls.append(name)
        return original(index, *data)

    monkeypatch.setattr(solver.objective, name, replaced)
    run(solver, steps=2)
    assert calls == [name] * 2


def test_a_subclass_that_goes_on_from_values_keeps_its_graph():
    class Twice(MultiTaskAUC):
        def values(self, index, outputs, batch):
            return 2.0 * super().values(index, outputs, batch)

    torch.manual_seed(0)
    objective = Twice(nn.Linear(4, 5), Tasks(X, Y))
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.0), fcco.soap(beta=1.0))
    batch = next(iter(solver.loader(2, 6, seed=1)))
    solver.step(batch)
    found = [p.grad.clone() for p in solver.parameters]
    for p in solver.parameters:
        p.grad = None
    objective.outer(batch.index, objective(batch.index, batch)).mean().backward()
    for p, gradient in zip(solver.parameters, found, strict=True):
        assert torch.allclose(p.grad, gradient, rtol=1e-5, atol=1e-7)


def test_earlier_rows_of_few_blocks_are_those_of_many(monkeypatch):
    table = BlockTable.empty(9, 2, like=torch.zeros(0), log_domain=None, decays=False)
    table.fill(torch.arange(18.0).view(9, 2))
    drawn = torch.tensor([7, 2, 4])
    table.write(drawn, table.rows[drawn], -torch.ones(3, 2), 1.0)
    for blocks in ([4, 5, 7], [0, 1], [2, 4, 7], [8]):
        index = torch.tensor(blocks)
        few = table.read_earlier(index)
        monkeypatch.setattr(_blocks, "_FEW", 0)
        assert torch.equal(few, table.read_earlier(index))
        monkeypatch.undo()
        assert torch.equal(few, torch.arange(18.0).view(9, 2)[index])
    assert (table.rows[drawn] == -1).all()


def test_a_batch_that_is_there_already_stays_itself():
    batch = Batch((X, {"a": X}), torch.arange(60), torch.arange(5))
    assert batch.to("cpu") is batch
    assert batch.to("meta").x[1]["a"].device.type == "meta"
    mixed = Batch((X, {"a": X.to("meta")}), torch.arange(60))
    assert mixed.to("meta").x[0].device.type == "meta"


def test_masks_of_equal_batches_are_made_once():
    def batch(serves):
        return Batch(X[: len(serves)], torch.arange(len(serves)), torch.arange(2), serves=torch.tensor(serves))

    first = serving(batch([0, 0, 1, -1]), 2)
    assert first.tolist() == [[True, True, False, True], [False, False, True, True]]
    assert serving(batch([0, 0, 1, -1]), 2) is first
    assert serving(batch([0, 0, 1, -1]), 3).shape == (3, 4)
    assert serving(batch([0, 1, 1, -1]), 2).tolist() == [[True, False, False, True], [False, True, True, True]]
    changing = batch([1, 1])
    serving(changing, 2)
    changing.serves.fill_(0)
    assert serving(changing, 2).tolist() == [[True, True], [False, False]]

"""The output memory in one's own loop takes the steps of Solver with output_memory, whoever fetches ahead."""

import copy

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import fcco
from fcco.methods import OutputMemory
from tests.losses.cases import Loop, labels, make_loss
from tests.objectives.cases import CASES, LABEL, N, X

MEMORIES = [
    "multi-task AUC",
    "multi-task AUC, exact centers",
    "AP",
    "AP, several tasks",
    "pAUC",
    "pAUC, several tasks",
    "pAUC, two-way",
    "p-norm push",
    "p-norm push, logarithm",
    "NDCG",
    "ListNet",
    "Cox",
]
SETTINGS = {"refresh": 3, "importance": 0.6, "renewal": 0.5}
CLOSE = {"rtol": 1e-12, "atol": 1e-12}
EPOCH = 12


class MemoryLoop(Loop):
    """With a DataLoader over the loss's own draws."""

    def __init__(self, name, num_workers=0, **options):
        super().__init__(name, memory=OutputMemory(**SETTINGS), **options)
        self.sampler = self.loss.sampler(blocks=3, samples=4, seed=5, steps_per_epoch=EPOCH)
        dataset = fcco.data.Indexed(
            TensorDataset(X, torch.zeros(N) if name == "Cox" else labels(name, torch.arange(N)))
        )
        self.loader = DataLoader(dataset, batch_sampler=self.sampler, num_workers=num_workers)

    def epochs(self, number):
        """The ids of every step."""
        for _ in range(number):
            for _, _, id in self.loader:
                self.step(id)
                yield id

    def outcome(self):
        weights = [p.detach().clone() for p in [*self.model.parameters(), *self.loss.parameters()]]
        return [*weights, *(value.clone() for value in self.loss.state_dict().values())]


def solver_of(name):
    objective = CASES[name].objective()
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.05, momentum=0.5)
    return fcco.Solver(objective, optimizer, fcco.output_memory(**SETTINGS))


@pytest.mark.parametrize("name", MEMORIES)
def test_every_loss_takes_the_solvers_steps(name):
    loop = MemoryLoop(name)
    solver = solver_of(name)
    loader = solver.loader(blocks=3, samples=4, seed=5, steps_per_epoch=EPOCH)
    batches = (batch for _ in range(2) for batch in loader)
    for id in loop.epochs(2):
        batch = next(batches)
        assert torch.equal(id, batch.id)
        solver.step(batch)
        mine = dict(loop.loss.objective.named_parameters())
        mine |= {f"model.{key}": p for key, p in loop.model.named_parameters()}
        for key, p in solver.objective.named_parameters():
            torch.testing.assert_close(mine[key], p, **CLOSE)
    state = loop.loss.state_dict()
    torch.testing.assert_close(state["memory.values"], solver.state.engine.values, **CLOSE)
    assert next(batches, None) is None

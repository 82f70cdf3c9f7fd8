"""The output memory in one's own loop takes the steps of Solver with output_memory, whoever fetches ahead."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import fcco
from fcco.methods import OutputMemory
from tests.losses.cases import Loop, labels
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
        self.loss._memory.catch_up()  # of the last step: a DataLoader with workers does not ask for it any more
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


def test_workers_that_fetch_ahead_change_nothing():
    runs = [MemoryLoop("pAUC", num_workers=workers) for workers in (0, 2)]
    drawn = [list(loop.epochs(2)) for loop in runs]
    for one, other in zip(*drawn, strict=True):
        assert torch.equal(one, other)
    for one, other in zip(*(loop.outcome() for loop in runs), strict=True):
        assert torch.equal(one, other)


def test_an_example_in_several_batches_in_flight_has_the_probability_of_each():
    """The probabilities move between the draws, and every batch is weighed by those it was drawn with."""
    loop = MemoryLoop("pAUC")
    seen: dict[int, set[float]] = {}
    claim = loop.sampler.claim

    def watched(id):
        batch = claim(id)
        for example, q in zip(id.tolist(), batch.probability.tolist(), strict=True):
            seen.setdefault(example, set()).add(q)
        return batch

    loop.sampler.claim = watched
    queue = loop.sampler._loader._queue
    differ = False
    for _ in loop.epochs(2):
        for example in range(N):
            flying = {q for drawn in queue for q in drawn.probability[drawn.id == example].tolist()}
            differ |= len(flying) > 1
    assert differ
    assert all(len(values) > 1 for values in seen.values())


def test_workers_may_fetch_further_than_the_draws_are_ahead():
    """The draws are then made earlier than they would be, and are used all the same, one after the other."""
    loop = MemoryLoop("pAUC")
    loop.loader = DataLoader(loop.loader.dataset, batch_sampler=loop.sampler, num_workers=2, prefetch_factor=5)
    assert len(list(loop.epochs(2))) == 2 * EPOCH
    assert loop.sampler.state_dict()["epoch"] == 2


@pytest.mark.parametrize("name", ["pAUC, two-way", "NDCG", "AP"])
@pytest.mark.parametrize("after", [1, 5, EPOCH])
def test_resumed_equals_uninterrupted(name, after, tmp_path):
    whole = MemoryLoop(name)
    steps = list(whole.epochs(2))
    first = MemoryLoop(name)
    for number, _ in enumerate(first.epochs(2), start=1):
        if number == after:
            break
    parts = {"model": first.model, "loss": first.loss, "optimizer": first.optimizer, "sampler": first.sampler}
    torch.save({key: part.state_dict() for key, part in parts.items()}, tmp_path / "run.pt")
    second = MemoryLoop(name)
    saved = torch.load(tmp_path / "run.pt", weights_only=True)
    for key, state in saved.items():
        getattr(second, key).load_state_dict(state)
    again = [id for _ in range(2) for id in _stepped(second)]
    assert all(torch.equal(one, other) for one, other in zip(steps[after:], again, strict=True))
    for one, other in zip(whole.outcome(), second.outcome(), strict=True):
        assert torch.equal(one, other)


def _stepped(loop):
    """The batches of an epoch, or of what is left of it; two epochs in all."""
    for _, _, id in loop.loader:
        if loop.loss.steps >= 2 * EPOCH:
            return
        loop.step(id)
        yield id


def test_eval_mode_leaves_the_table_alone():
    loop = MemoryLoop("pAUC, two-way")
    for _ in loop.epochs(1):
        pass
    before = loop.outcome()
    loop.loss.eval()
    id = torch.arange(N)
    value = loop.loss(loop.model(X), labels(loop.name, id), id)
    assert torch.isfinite(value)
    for one, other in zip(before, loop.outcome(), strict=True):
        assert torch.equal(one, other)


def test_eval_mode_before_the_first_step():
    loop = MemoryLoop("pAUC")
    loop.loss.eval()
    id = torch.arange(N)
    value = loop.loss(loop.model(X), LABEL, id)
    exact = CASES["pAUC"].objective()
    assert value.item() == pytest.approx(
        fcco.Solver(exact, torch.optim.SGD(exact.parameters(), lr=0.1), fcco.soap()).diagnose().value
    )
    assert "memory.values" not in loop.loss.state_dict()


def test_a_batch_of_somebody_elses_is_refused():
    loop = MemoryLoop("pAUC")
    next(iter(loop.loader))
    with pytest.raises(ValueError, match=r"id must be those of a batch of loss.sampler\(...\), whole and in order.*11"):
        loop.step(torch.tensor([11, 1]))


def test_a_batch_that_is_left_out_is_forgotten():
    loop = MemoryLoop("pAUC")
    batches = iter(loop.loader)
    next(batches)
    _, _, id = next(batches)
    loop.step(id)
    assert loop.sampler.state_dict()["step"] == 2


def test_without_a_sampler_batches_are_taken_for_uniform_draws():
    """As Solver takes those of data.batch."""
    loop = Loop("AP", memory=OutputMemory(**SETTINGS))
    solver = solver_of("AP")
    data = solver.objective.data
    for number in range(10):
        id = torch.randperm(N, generator=torch.Generator().manual_seed(number))[:8]
        solver.step(data.batch(id, X[id]))
        loop.step(id)
    for mine, p in zip(loop.model.parameters(), solver.objective.model.parameters(), strict=True):
        torch.testing.assert_close(mine, p, **CLOSE)


def test_an_output_that_is_not_finite_stays_out_of_the_table():
    loop = Loop("pAUC", memory=True)
    id = torch.arange(N)
    scores = loop.model(X).detach()
    loop.loss(scores, LABEL, id)
    spoilt = scores.clone()
    spoilt[3] = torch.inf
    assert not torch.isfinite(loop.loss(spoilt, LABEL, id))
    torch.testing.assert_close(loop.loss.state_dict()["memory.values"], scores.squeeze(1))


def test_a_call_that_fails_changes_nothing():
    loop = Loop("pAUC", memory=OutputMemory(refresh=100))
    loop.step(torch.arange(N))
    before = [value.clone() for value in loop.loss.state_dict().values()]
    with pytest.raises(ValueError, match=r"outputs must keep the shape \(\), got \(2,\)"):
        loop.loss(torch.zeros(N, 2).double(), LABEL, torch.arange(N))
    for one, other in zip(before, loop.loss.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_what_the_memory_refuses():
    with pytest.raises(TypeError, match=r"memory must be True, False or fcco\.methods\.OutputMemory"):
        fcco.losses.PartialAUC(LABEL, memory=0.5)
    saved = fcco.losses.PartialAUC([1, 0, 0], memory=True)
    saved(torch.zeros(3), None, torch.arange(3))
    with pytest.raises(ValueError, match="the state is not of this PartialAUC: its kind, its constants, or the labels"):
        fcco.losses.PartialAUC(LABEL, memory=True).load_state_dict(saved.state_dict())

"""Epochs, the state mid-epoch, workers, ranks, randomness of its own, speed."""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import fcco
from fcco.sampling import Average, BlockLoader, ExampleLoader, GroupLoader, Loader, PointLoader
from tests.sampling.cases import BINARY, CASES, CLASSES, TARGETS, Case, N, X, same

EACH = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


class Noisy(Dataset[Any]):
    """Items (x, y), x augmented with the global generators of torch, NumPy and Python."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, k: int) -> tuple[torch.Tensor, int]:
        noise = torch.rand(1, dtype=torch.float64) + float(np.random.rand()) + random.random()
        return X[k] + noise, int(CLASSES[k])


class Twofold(Dataset[Any]):
    """Items (image, text, label), fetched many at a time."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, k: int) -> Any:
        raise AssertionError("__getitems__ is there")

    def __getitems__(self, many: list[int]) -> list[Any]:
        return [(X[k], X[k].repeat(3), 0) for k in many]


@EACH
def test_an_epoch_is_as_long_as_it_says(case: Case) -> None:
    loader = case.make(steps_per_epoch=4)
    assert len(loader) == loader.steps_per_epoch == 4
    batches = list(loader)
    assert len(batches) == 4
    for index, batch in batches:
        assert index.dtype == torch.int64
        assert index.unique().numel() == index.numel() == loader.blocks_per_step
        assert batch.x.shape == (len(batch), 1)
        assert batch.x[:, 0].tolist() == batch.id.tolist()
        if batch.anchor is not None:
            assert batch.id[batch.anchor].tolist() == loader.block_example[index].tolist()
    assert len(list(loader)) == 4


@EACH
def test_the_seed_decides(case: Case) -> None:
    first, again, other = (list(case.make(seed=seed, steps_per_epoch=5)) for seed in (1, 1, 2))
    assert all(map(same, first, again))
    assert not all(map(same, first, other))


@EACH
def test_resumed_mid_epoch_equals_uninterrupted(case: Case) -> None:
    whole = case.make(steps_per_epoch=5)
    wanted = list(whole) + list(whole)
    part = case.make(steps_per_epoch=5)
    stream = endless(part)
    seen = [next(stream) for _ in range(3)]
    state = part.state_dict()
    fresh = case.make(steps_per_epoch=5, seed=99)
    fresh.load_state_dict(state)
    rest = list(fresh)
    assert len(rest) == 2
    assert all(map(same, wanted, seen + rest + list(fresh)))


def endless(loader: Loader) -> Iterator[Any]:
    while True:
        yield from loader


@pytest.mark.parametrize("workers", [0, 2])
def test_resumed_with_workers_equals_uninterrupted(workers: int) -> None:
    """Workers fetch ahead, and the data set is random: neither shows."""

    def make(seed: int, num_workers: int) -> BlockLoader:
        return BlockLoader(Noisy(), CLASSES, 2, 5, steps_per_epoch=6, seed=seed, num_workers=num_workers)

    whole = make(0, 0)
    wanted = list(whole) + list(whole)
    part = make(0, workers)
    stream = endless(part)
    seen = [next(stream) for _ in range(8)]
    fresh = make(5, workers)
    fresh.load_state_dict(part.state_dict())
    rest = list(fresh)
    assert len(rest) == 4
    assert all(map(same, wanted, seen + rest))


def test_a_state_saved_at_the_last_step_ends_the_epoch() -> None:
    loader, fresh = (CASES["classes"].make(steps_per_epoch=3) for _ in range(2))
    stream = iter(loader)
    for _ in range(3):
        next(stream)
    fresh.load_state_dict(loader.state_dict())
    assert list(fresh) == []
    assert all(map(same, list(fresh), list(loader)))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_abandoned_iteration_costs_nothing(workers: int) -> None:
    data = TensorDataset(X) if workers == 0 else Noisy()
    whole = list(BlockLoader(data, CLASSES, 2, 5, steps_per_epoch=6))
    loader = BlockLoader(data, CLASSES, 2, 5, steps_per_epoch=3, num_workers=workers)
    seen = [next(iter(loader)) for _ in range(2)]
    assert all(map(same, whole, seen + list(loader)))


def test_a_second_iteration_ends_the_first() -> None:
    loader = CASES["classes"].make(steps_per_epoch=3)
    first = iter(loader)
    next(first)
    next(iter(loader))
    with pytest.raises(RuntimeError, match="another iteration"):
        next(first)


def test_full_passes_take_workers_and_are_the_same_each_time() -> None:
    loader = BlockLoader(Noisy(), CLASSES, 2, 5, num_workers=2, chunk=8)
    stream = iter(loader)
    next(stream)
    one, two = list(loader.full_pass()), list(loader.full_pass())  # in the midst of an epoch
    assert len(one) == 4
    assert all(map(same, one, two))
    assert all(map(same, one, BlockLoader(Noisy(), CLASSES, 2, 5, chunk=8).full_pass()))
    next(stream)


def test_several_inputs_make_a_tuple() -> None:
    for data in (Twofold(), TensorDataset(X, X.repeat(1, 3), CLASSES), (X, X.repeat(1, 3))):
        _, batch = next(iter(ExampleLoader(data, 4, inputs=2)))
        assert [part.shape for part in batch.x] == [(4, 1), (4, 3)]
        assert batch.x[1][:, 2].tolist() == batch.id.tolist()


def test_tensors_with_labels_beside_them() -> None:
    _, batch = next(iter(GroupLoader(TensorDataset(X, CLASSES), CLASSES, 2, 4)))
    assert isinstance(batch.x, torch.Tensor)
    assert batch.y is None


def test_one_task_from_bools_is_a_task_and_not_two_classes() -> None:
    loader = BlockLoader(X, BINARY.bool(), 1, 4)
    assert loader.num_blocks == 1
    objective = fcco.objectives.MultiTaskAUC(torch.nn.Linear(1, 1).double(), num_tasks=1)
    index, batch = next(iter(loader))
    from fcco.objectives._multitask_auc import labelled

    assert labelled(index, batch)[0][0].tolist() == BINARY.bool()[batch.id].tolist()
    assert objective(index, batch).shape == (1, 3)


@EACH
def test_no_global_generator_is_touched(case: Case) -> None:
    class Plain(Dataset[Any]):
        def __len__(self) -> int:
            return N

        def __getitem__(self, k: int) -> torch.Tensor:
            return X[k] + 0 * torch.rand(1) * np.random.rand() * random.random()

    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    for data in (X, Plain()):
        loader = case.make(data, steps_per_epoch=2)
        batches = list(loader)
        list(loader.full_pass())
        torch.manual_seed(1234)  # and nothing depends on it
        assert all(map(same, batches, case.make(data, steps_per_epoch=2)))
        torch.set_rng_state(before[0])
    assert torch.equal(before[0], torch.get_rng_state())
    assert random.getstate() == before[1]
    assert (np.random.get_state()[1] == before[2]).all()


def test_workers_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    list(BlockLoader(Noisy(), CLASSES, 2, 5, num_workers=1))
    assert torch.equal(before, torch.get_rng_state())


@EACH
def test_a_rank_draws_its_own_blocks(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = case.make().num_blocks
    each = 2 if blocks >= 6 else 1
    every, drawn = [], []
    for rank in (0, 1):
        monkeypatch.setattr("fcco.sampling.blocks.rank_and_world", lambda rank=rank: (rank, 2))
        loader = case.make(b=2 * each, steps_per_epoch=10)
        batches = list(loader)
        assert all(index.shape == (each,) and bool((index % 2 == rank).all()) for index, _ in batches)
        passed = torch.cat([index for index, _ in loader.full_pass(7)])
        assert bool((passed % 2 == rank).all())
        every += passed.unique().tolist()
        drawn.append([batch.id.tolist() for _, batch in batches])
    assert sorted(every) == list(range(blocks))
    assert drawn[0] != drawn[1]


def test_ranks_keep_their_own_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint holds the stream of every rank; on more ranks the new ones start streams of their own."""

    def make(rank: int, world: int) -> BlockLoader:
        monkeypatch.setattr("fcco.sampling.blocks.rank_and_world", lambda: (rank, world))
        return BlockLoader(X, TARGETS[:, [0, 1, 2, 0, 1, 2]], 3, 4, steps_per_epoch=6)

    loaders = [make(rank, 3) for rank in range(3)]
    streams = [iter(loader) for loader in loaders]
    for stream in streams:
        next(stream)
    randoms = [loader.state_dict()["random"][0] for loader in loaders]
    state = loaders[0].state_dict() | {"random": randoms}
    for rank in range(3):
        fresh = make(rank, 3)
        fresh.load_state_dict(state)
        assert all(map(same, list(fresh), list(streams[rank])))
    more = make(2, 3)
    more.load_state_dict(state | {"random": randoms[:2]})
    assert not all(map(same, list(more), list(make(2, 3))))


def test_states_that_do_not_fit_are_refused() -> None:
    loader = CASES["classes"].make()
    with pytest.raises(ValueError, match="lacks kind"):
        loader.load_state_dict({})
    with pytest.raises(ValueError, match="this loader is"):
        loader.load_state_dict(CASES["groups"].make().state_dict())
    with pytest.raises(ValueError, match="another kind of device"):
        loader.load_state_dict(loader.state_dict() | {"random": [torch.zeros(16, dtype=torch.uint8)]})


def test_a_training_resumes_from_a_file(tmp_path: Path) -> None:
    """Solver and loader together, mid-epoch, with v3 and its full passes."""

    def start() -> tuple[fcco.Solver, BlockLoader]:
        torch.manual_seed(0)
        objective = fcco.objectives.MultiTaskAUC(torch.nn.Linear(2, 3).double(), num_tasks=3).double()
        loader = BlockLoader(data, CLASSES, 2, 6, steps_per_epoch=5, chunk=10)
        optimizer = torch.optim.SGD(objective.parameters(), lr=0.01)
        method = fcco.msvr_v3(alpha=0.5, beta=0.5, period=4)
        return fcco.Solver(objective, optimizer, method, full_pass=loader.full_pass), loader

    data = torch.randn(N, 2, dtype=torch.float64)
    solver, loader = start()
    for step, (index, batch) in enumerate(loader):
        solver.step(index, batch)
        if step == 2:
            fcco.save(tmp_path / "state", solver, loader)
    resumed, again = start()
    fcco.load(tmp_path / "state", resumed, again)
    for index, batch in again:
        resumed.step(index, batch)
    assert resumed.t == solver.t == 5
    assert all(map(torch.equal, resumed.objective.state_dict().values(), solver.objective.state_dict().values()))
    assert solver.samples == resumed.samples == 5 * 12 + 2 * N


def test_drawing_does_not_depend_on_the_number_of_examples() -> None:
    def seconds(size: int, kind: str) -> float:
        x, y = torch.zeros(size, 1), torch.arange(size) % 10
        loader: Loader
        if kind == "tasks":
            loader = BlockLoader(x, y, 5, 128, steps_per_epoch=30)
        elif kind == "points":
            loader = PointLoader(x, y == 0, 64, 64, average=Average.OPPOSITE, steps_per_epoch=30)
        else:
            loader = ExampleLoader(x, 64, steps_per_epoch=30)
        times = []
        for _ in range(5):
            start = time.perf_counter()
            list(loader)
            times.append(time.perf_counter() - start)
        return min(times)

    for kind in ("tasks", "points", "examples"):
        assert seconds(2_000_000, kind) < 4 * seconds(10_000, kind) + 0.02

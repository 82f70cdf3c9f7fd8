"""Epochs, workers, randomness of its own, large batches, dtypes, speed."""

import random
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from fcco.data import (
    Blocks,
    BlockSampler,
    ExampleBlocks,
    Examples,
    GroupBlocks,
    Groups,
    Loader,
    PointBlocks,
    Points,
    TaskBlocks,
    Tasks,
)
from tests.data.cases import BINARY, CASES, CLASSES, Case, N, X, exact, index_of, means, same

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


def noisy(**options: Any) -> Loader:
    return Loader(TaskBlocks(Tasks(Noisy(), CLASSES)), 2, 5, **options)


@EACH
def test_an_epoch_is_as_long_as_it_says(case: Case) -> None:
    loader = case.make(steps_per_epoch=4)
    assert len(loader) == loader.steps_per_epoch == 4
    batches = list(loader)
    assert len(batches) == 4
    for batch in batches:
        index = index_of(batch)
        assert index.dtype == torch.int64
        assert index.unique().numel() == index.numel() == loader.blocks
        assert batch.x.shape == (len(batch), 1)
        assert batch.x[:, 0].tolist() == batch.id.tolist()
        example = loader.structure.block_example
        assert (batch.block_pos is None) == (example is None)
        if example is not None:
            assert batch.id[batch.block_pos].tolist() == example[index].tolist()
    assert len(list(loader)) == 4


@EACH
def test_the_seed_decides(case: Case) -> None:
    first, again, other = (list(case.make(seed=seed, steps_per_epoch=5)) for seed in (1, 1, 2))
    assert all(map(same, first, again))
    assert not all(map(same, first, other))


def test_an_epoch_draws_about_all_examples() -> None:
    for case in CASES.values():
        loader = case.make()
        assert loader.steps_per_epoch == max(1, N // loader.batch_size)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_abandoned_iteration_costs_nothing(workers: int) -> None:
    data = TensorDataset(X) if workers == 0 else Noisy()
    blocks = TaskBlocks(Tasks(data, CLASSES))
    whole = list(Loader(blocks, 2, 5, steps_per_epoch=6))
    loader = Loader(blocks, 2, 5, steps_per_epoch=3, num_workers=workers)
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
    loader = noisy(num_workers=2)
    stream = iter(loader)
    next(stream)
    one, two = list(loader.full_pass(8)), list(loader.full_pass(8))  # in the midst of an epoch
    assert len(one) == 4
    assert all(map(same, one, two))
    assert all(map(same, one, noisy().full_pass(8)))
    next(stream)


def test_several_inputs_make_a_tuple() -> None:
    for data, inputs in ((Twofold(), 2), (TensorDataset(X, X.repeat(1, 3), CLASSES), 2), ((X, X.repeat(1, 3)), 1)):
        batch = next(iter(Loader(ExampleBlocks(Examples(data, inputs=inputs)), 4, 0)))
        assert [part.shape for part in batch.x] == [(4, 1), (4, 3)]
        assert batch.x[1][:, 2].tolist() == batch.id.tolist()


def test_tensors_with_labels_beside_them() -> None:
    batch = next(iter(Loader(ExampleBlocks(Examples(TensorDataset(X, CLASSES))), 2, 4)))
    assert isinstance(batch.x, torch.Tensor)
    assert batch.y is None


def test_one_task_from_bools_is_a_task_and_not_two_classes() -> None:
    loader = Loader(TaskBlocks(Tasks(X, BINARY.bool())), 1, 4)
    assert loader.num_blocks == 1
    batch = next(iter(loader))
    positive, negative = loader.structure.tasks.at(index_of(batch), batch.id)  # type: ignore[attr-defined]
    assert positive[0].tolist() == BINARY.bool()[batch.id].tolist()
    assert bool((positive ^ negative).all())


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
    list(noisy(num_workers=1))
    assert torch.equal(before, torch.get_rng_state())


@EACH
def test_a_rank_draws_its_own_blocks(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = case.make().num_blocks
    each = 2 if blocks >= 6 else 1
    every, drawn = [], []
    for rank in (0, 1):
        monkeypatch.setattr("fcco.data._share.rank_and_world", lambda rank=rank: (rank, 2))
        loader = case.make(b=2 * each, steps_per_epoch=10)
        batches = list(loader)
        for batch in batches:
            assert index_of(batch).shape == (each,)
            assert bool((index_of(batch) % 2 == rank).all())
            assert len(batch) == loader.batch_size
        passed = torch.cat([index_of(batch) for batch in loader.full_pass(7)])
        assert bool((passed % 2 == rank).all())
        every += passed.unique().tolist()
        drawn.append([batch.id.tolist() for batch in batches])
    assert sorted(every) == list(range(blocks))
    assert drawn[0] != drawn[1]


@EACH
def test_large_batches_come_in_their_turn(case: Case) -> None:
    """Batches 1, 1 + period, ... over all epochs; estimates from them are as good."""
    loader = case.make(large=(3, 4), steps_per_epoch=4)
    usual = case.make(steps_per_epoch=4)
    batches = list(loader) + list(loader)
    blocks = loader.structure
    v = torch.ones(loader.num_blocks, N, dtype=torch.float64)
    for number, batch in enumerate(batches):
        wanted = loader.blocks
        if number % 3 == 0:
            wanted = min(4 * loader.blocks, loader.num_blocks)
            assert len(batch) > loader.batch_size or wanted == loader.blocks
        else:
            assert len(batch) == loader.batch_size == usual.batch_size
        assert index_of(batch).shape == (wanted,)
        assert index_of(batch).unique().numel() == wanted
        one = means(case, blocks, batch, v)
        torch.testing.assert_close(one, exact(case, loader.num_blocks, v)[index_of(batch)], rtol=0, atol=1e-13)


def test_large_batches_of_ranks_have_the_same_size_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    for rank in (0, 1):
        monkeypatch.setattr("fcco.data._share.rank_and_world", lambda rank=rank: (rank, 2))
        loader = Loader(ExampleBlocks(Examples(X)), 8, 0, large=(2, 100))
        batch = next(iter(loader))
        sizes.append(index_of(batch).shape[0])
        assert bool((index_of(batch) % 2 == rank).all())
    assert sizes == [N // 2, N // 2]


def test_floating_point_x_takes_the_dtype_asked_for() -> None:
    """Integers (tokens) stay as they are."""
    tokens = torch.arange(N)
    loader = Loader(ExampleBlocks(Examples((X, tokens))), 4, 0, dtype=torch.float32)
    for batch in (next(iter(loader)), next(iter(loader.full_pass()))):
        assert batch.x[0].dtype == torch.float32
        assert batch.x[1].dtype == torch.int64
    as_dict = Loader(ExampleBlocks(Examples({"a": X, "b": tokens})), 4, 0, dtype=torch.bfloat16)
    batch = next(iter(as_dict))
    assert batch.x["a"].dtype == torch.bfloat16
    assert batch.x["b"].tolist() == batch.id.tolist()


def test_a_sampler_of_blocks_alone() -> None:
    sampler = BlockSampler(num_blocks=10, blocks=4, seed=3)
    seen = [next(sampler) for _ in range(5)]
    state = sampler.state_dict()
    rest = [next(sampler) for _ in range(3)]
    fresh = BlockSampler(num_blocks=10, blocks=4)
    fresh.load_state_dict(state)
    assert all(map(torch.equal, rest, [next(fresh) for _ in range(3)]))
    assert all(index.unique().numel() == 4 for index in seen)
    assert iter(sampler) is sampler


def test_groups_keep_their_labels() -> None:
    batch = next(iter(Loader(GroupBlocks(Groups(X, X.squeeze(1) * 2, CLASSES)), 2, 3)))
    assert batch.y is not None
    assert batch.y.tolist() == (2 * batch.id).tolist()
    assert batch.serves is not None
    assert bool((CLASSES[batch.id] == index_of(batch)[batch.serves]).all())


def test_drawing_does_not_depend_on_the_number_of_examples() -> None:
    def seconds(size: int, kind: str) -> float:
        x, y = torch.zeros(size, 1), torch.arange(size) % 10
        blocks: Blocks
        if kind == "tasks":
            blocks, sizes = TaskBlocks(Tasks(x, y)), (5, 128)
        elif kind == "points":
            blocks, sizes = PointBlocks(Points(x, y == 0), include_own_class=False), (64, 64)
        else:
            blocks, sizes = ExampleBlocks(Examples(x)), (64, 0)
        loader = Loader(blocks, *sizes, steps_per_epoch=30)
        times = []
        for _ in range(5):
            start = time.process_time()  # other processes may be busy
            list(loader)
            times.append(time.process_time() - start)
        return min(times)

    for kind in ("tasks", "points", "examples"):
        assert seconds(2_000_000, kind) < 4 * seconds(10_000, kind) + 0.02

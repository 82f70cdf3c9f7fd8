"""People's own batches: data.batch() completed by blocks. Over all compositions the mean is exact, by enumeration."""

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from fcco.data import (
    Batch,
    Blocks,
    ExampleBlocks,
    Examples,
    GroupBlocks,
    Groups,
    PointBlocks,
    Points,
    Queries,
    QueryBlocks,
    RiskBlocks,
    RiskSets,
    TaskBlocks,
    Tasks,
)
from tests.data.cases import CASES, ONES, WEIGHT, Case, N, X, exact, index_of, means

EACH = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
WEIGHTS = pytest.mark.parametrize("weight", [None, WEIGHT], ids=["alike", "weighted"])


def random_values(blocks: int, examples: int) -> torch.Tensor:
    return torch.randn(blocks, examples, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@EACH
@WEIGHTS
def test_a_batch_of_everything_gives_the_exact_means(case: Case, weight: torch.Tensor | None) -> None:
    blocks = case.blocks_of(X, weight)
    ids = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    batch = blocks.complete(blocks.data.batch(ids, X[ids]))
    assert index_of(batch).tolist() == list(range(blocks.num_blocks))
    if blocks.block_example is not None:
        assert batch.id[batch.block_pos].tolist() == blocks.block_example[index_of(batch)].tolist()
    v = random_values(blocks.num_blocks, N)
    wanted = exact(case, blocks.num_blocks, v, ONES if weight is None else weight)
    torch.testing.assert_close(means(case, blocks, batch, v), wanted, rtol=0, atol=1e-13)


def subsets(parts: list[tuple[list[int], int]]) -> Iterator[list[int]]:
    """All ways to take so many of each list."""
    for chosen in itertools.product(*(itertools.combinations(members, size) for members, size in parts)):
        yield [example for some in chosen for example in some]


SEVEN = torch.arange(7, dtype=torch.float64).unsqueeze(1)
SEVEN_WEIGHTS = torch.tensor([1.0, 2, 0.5, 3, 1, 1, 2.5], dtype=torch.float64)
BINARY = [1, 1, 1, 0, 0, 0, 0]
CLASSES = [0, 0, 1, 1, 1, 2, 2]


@pytest.mark.parametrize("weight", [None, SEVEN_WEIGHTS], ids=["alike", "weighted"])
@pytest.mark.parametrize("kind", ["all", "opposite", "tasks", "examples", "queries", "groups", "risk sets"])
def test_over_all_compositions_the_estimate_is_exact(kind: str, weight: torch.Tensor | None) -> None:
    """Every uniform draw of a given size, enumerated: the mean of a block's estimates is its mean over all."""
    everyone = list(range(7))
    blocks: Blocks
    parts: list[tuple[list[int], int]]
    if kind in ("all", "opposite"):
        blocks = PointBlocks(Points(SEVEN, BINARY, weight=weight), include_own_class=kind == "all")
        parts = [([0, 1, 2], 2), ([3, 4, 5, 6], 3)]
        sets = [everyone if kind == "all" else [3, 4, 5, 6]] * 3
    elif kind == "tasks":
        blocks = TaskBlocks(Tasks(SEVEN, BINARY, weight=weight))
        parts = [([0, 1, 2], 2), ([3, 4, 5, 6], 3)]
        sets = [[0, 1, 2]]
    elif kind == "examples":
        blocks = ExampleBlocks(Examples(SEVEN, weight=weight))
        parts = [(everyone, 4)]
        sets = [[k for k in everyone if k != i] for i in everyone]
    elif kind == "queries":
        blocks = QueryBlocks(Queries(SEVEN, [0, 0, 0, 1, 1, 1, 1], BINARY, weight=weight), relevant_only=False)
        parts = [([0, 1, 2], 2), ([3, 4, 5, 6], 2)]
        sets = [[0, 1, 2]] * 3 + [[3, 4, 5, 6]] * 4
    elif kind == "groups":
        blocks = GroupBlocks(Groups(SEVEN, BINARY, BINARY, weight=weight))
        parts = [([0, 1, 2], 1), ([3, 4, 5, 6], 3)]
        sets = [[3, 4, 5, 6], [0, 1, 2]]
    else:
        blocks = RiskBlocks(RiskSets(SEVEN, [1, 2, 2, 4, 5, 6, 7], [1, 1, 0, 0, 0, 0, 0], weight=weight))
        parts = [(everyone, 4)]
        sets = [everyone, [1, 2, 3, 4, 5, 6]]
    v = random_values(blocks.num_blocks, 7)
    total = torch.zeros(blocks.num_blocks, dtype=torch.float64)
    count = torch.zeros(blocks.num_blocks)
    by_presence: dict[tuple[int, int], list[float]] = {}
    for ids in subsets(parts):
        batch = blocks.complete(blocks.data.batch(ids, SEVEN[ids]))
        index = index_of(batch)
        estimate = _estimate(blocks, batch, v, kind)
        total[index] += estimate
        count[index] += 1
        for i, value in zip(index.tolist(), estimate.tolist(), strict=True):
            present = sum(example in sets[i] for example in ids)
            by_presence.setdefault((i, present), []).append(value)
    worth = torch.ones(7, dtype=torch.float64) if weight is None else weight
    wanted = torch.stack([(v[i, s] * worth[s]).sum() / worth[s].sum() for i, s in enumerate(sets)])
    torch.testing.assert_close(total / count, wanted, rtol=0, atol=1e-12)
    for (i, _), estimates in by_presence.items():  # also given how many of the set are present
        assert math.isclose(sum(estimates) / len(estimates), float(wanted[i]), abs_tol=1e-12)


def _estimate(blocks: Blocks, batch: Batch, v: torch.Tensor, kind: str) -> torch.Tensor:
    assert batch.weight is not None
    weight = batch.weight
    if weight.dim() == 1:
        assert batch.serves is not None
        weight = weight * (batch.serves == torch.arange(index_of(batch).shape[0]).unsqueeze(1))
    if kind == "tasks":
        weight = weight * (batch.y == 1)
    return (v[index_of(batch)][:, batch.id] * weight).sum(1)


def test_blocks_without_anyone_to_compare_with_are_left_out() -> None:
    points = PointBlocks(Points(SEVEN, BINARY), include_own_class=False)
    assert index_of(points.complete(points.data.batch([0, 1], SEVEN[:2]))).numel() == 0
    assert index_of(points.complete(points.data.batch([3, 4], SEVEN[3:5]))).numel() == 0
    both = PointBlocks(Points(SEVEN, BINARY), include_own_class=True)
    assert index_of(both.complete(both.data.batch([0, 3], SEVEN[[0, 3]]))).numel() == 0
    tasks = TaskBlocks(Tasks(SEVEN, CLASSES))
    assert index_of(tasks.complete(tasks.data.batch([0, 1, 5], SEVEN[[0, 1, 5]]))).tolist() == [0, 2]
    risk = RiskBlocks(RiskSets(SEVEN, [1, 2, 2, 4, 5, 6, 7], [1, 1, 0, 0, 0, 0, 1]))
    last = risk.complete(risk.data.batch([0, 6], SEVEN[[0, 6]]))
    assert index_of(last).tolist() == [0, 2]  # nobody else is at risk at the end, so the last one is complete


def test_an_example_that_is_there_twice_is_one_block() -> None:
    blocks = PointBlocks(Points(SEVEN, BINARY), include_own_class=True)
    batch = blocks.complete(blocks.data.batch([2, 0, 2, 4], SEVEN[[2, 0, 2, 4]]))
    assert index_of(batch).tolist() == [0, 2]
    assert batch.block_pos is not None
    assert batch.block_pos.tolist() == [1, 0]
    assert batch.weight is not None
    torch.testing.assert_close(batch.weight.sum(1), torch.ones(2, dtype=torch.float64))


def test_several_tasks_share_an_example() -> None:
    y = torch.tensor([[1, 1], [0, 1], [1, 0], [0, 0]])
    blocks = PointBlocks(Points(SEVEN[:4], y), include_own_class=False)
    batch = blocks.complete(blocks.data.batch([0, 3], SEVEN[[0, 3]]))
    assert blocks.block_task[index_of(batch)].tolist() == [0, 1]
    assert batch.block_pos is not None
    assert batch.block_pos.tolist() == [0, 0]
    assert batch.weight is not None
    assert batch.weight.tolist() == [[0, 1], [0, 1]]


def test_a_rank_completes_its_own_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for rank in (0, 1):
        monkeypatch.setattr("fcco.data._share.rank_and_world", lambda rank=rank: (rank, 2))
        for case in CASES.values():
            blocks = case.blocks_of(X, None)
            index = index_of(blocks.complete(blocks.data.batch(torch.arange(N), X)))
            assert index.tolist() == list(range(rank, blocks.num_blocks, 2))
            found.append(index)
    assert len(found) == 2 * len(CASES)


def test_with_a_data_loader_of_ones_own() -> None:
    class Rows(Dataset[tuple[int, torch.Tensor]]):
        def __len__(self) -> int:
            return N

        def __getitem__(self, k: int) -> tuple[int, torch.Tensor]:
            return k, X[k]

    case = CASES["points, opposite"]
    blocks = case.blocks_of(X, None)
    seen = []
    for ids, x in DataLoader(Rows(), batch_size=16, generator=torch.Generator().manual_seed(0), shuffle=True):
        batch = blocks.complete(blocks.data.batch(ids, x))
        assert batch.x is x
        assert batch.y is not None
        seen += index_of(batch).tolist()
    assert sorted(seen) == list(range(blocks.num_blocks))

"""Parts of data: subsets, splits that keep queries and bags whole, batches; and that weights are like copies."""

import pytest
import torch

from fcco.data import (
    BagBlocks,
    Bags,
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
    Structure,
    TaskBlocks,
    Tasks,
    full_pass,
)
from tests.data.cases import BAG_LABELS, BAGS, BINARY, CLASSES, EVENT, QUERIES, RELEVANCE, TARGETS, TIME, WEIGHT, N, X

ALL: dict[str, Structure] = {
    "tasks": Tasks(X, TARGETS, weight=WEIGHT),
    "points": Points(X, BINARY, weight=WEIGHT),
    "queries": Queries(X, QUERIES, RELEVANCE, weight=WEIGHT),
    "risk sets": RiskSets(X, TIME, EVENT, weight=WEIGHT),
    "groups": Groups(X, BINARY, CLASSES, weight=WEIGHT),
    "bags": Bags(X, BAGS, BAG_LABELS, weight=WEIGHT),
    "examples": Examples(X, CLASSES, weight=WEIGHT),
}
EACH = pytest.mark.parametrize("data", ALL.values(), ids=ALL.keys())


def positions(data: Structure) -> list[int]:
    return data.source.take(torch.arange(len(data)))[:, 0].long().tolist()


@EACH
def test_a_subset_is_of_the_same_kind(data: Structure) -> None:
    ids = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    if isinstance(data, Queries):
        ids = ids[QUERIES[ids] != 2]
    elif isinstance(data, Bags):
        ids = ids[BAGS[ids] != 1]
    else:
        ids = ids[:20]
    part = data.subset(ids)
    assert type(part) is type(data)
    assert len(part) == len(ids)
    assert positions(part) == ids.tolist()
    assert part.weight is not None
    assert part.weight.tolist() == WEIGHT[ids].tolist()
    for k in range(len(part)):
        mine, theirs = part.labels_at(torch.tensor([k])), data.labels_at(ids[k : k + 1])
        torch.testing.assert_close(mine, theirs, equal_nan=True)
    assert positions(data) == list(range(N))  # the whole is as it was


def test_a_mask_will_do() -> None:
    assert positions(ALL["points"].subset(BINARY == 1)) == (BINARY == 1).nonzero()[:, 0].tolist()


@EACH
@pytest.mark.parametrize("fraction", [0.3, 0.8])
def test_a_split_is_a_partition(data: Structure, fraction: float) -> None:
    first, second = data.split(fraction, seed=3)
    assert sorted(positions(first) + positions(second)) == list(range(N))
    again, _ = data.split(fraction, seed=3)
    assert positions(first) == positions(again)
    if not isinstance(data, (Queries, Bags)):
        assert abs(len(first) - fraction * N) <= 2
        other, _ = data.split(fraction, seed=4)
        assert positions(first) != positions(other)


def test_queries_and_bags_stay_whole() -> None:
    for data, unit in ((ALL["queries"], QUERIES), (ALL["bags"], BAGS)):
        first, second = data.split(0.5, seed=1)
        mine = {int(unit[k]) for k in positions(first)}
        theirs = {int(unit[k]) for k in positions(second)}
        assert mine
        assert theirs
        assert not mine & theirs


def test_bags_are_shared_out_by_label() -> None:
    first, second = ALL["bags"].split(0.5)
    assert isinstance(first, Bags)
    assert isinstance(second, Bags)
    assert first.bag_label.sum() == second.bag_label.sum() == 1
    assert first.bag.max() == 1
    assert BagBlocks(first).num_blocks == 2
    for k, position in enumerate(positions(first)):
        assert first.bag_label[first.bag[k]] == BAG_LABELS[BAGS[position]]


def test_every_group_is_in_both_parts() -> None:
    for seed in range(5):
        for part in ALL["groups"].split(0.05, seed=seed):
            assert isinstance(part, Groups)
            assert part.group.unique().tolist() == [0, 1, 2]
            assert GroupBlocks(part).num_blocks == 3


def test_labels_are_shared_out_alike() -> None:
    first, second = ALL["points"].split(0.5)
    assert isinstance(first, Points)
    assert isinstance(second, Points)
    assert abs(first.y.sum() - second.y.sum()) <= 1
    early, late = ALL["risk sets"].split(0.5)
    assert isinstance(early, RiskSets)
    assert isinstance(late, RiskSets)
    assert abs(int(early.event.sum()) - int(late.event.sum())) <= 1


def test_parts_that_cut_a_query_are_refused() -> None:
    with pytest.raises(ValueError, match="ids must not split a query, but hold 1 of the 3 items of query 'b'"):
        Queries(X[:5], ["a", "b", "b", "b", "a"], [1, 0, 1, 0, 1]).subset([0, 4, 2])
    with pytest.raises(ValueError, match="instances of bag 1"):
        ALL["bags"].subset([0, 1, 2])


def test_a_batch_says_what_is_known_of_its_examples() -> None:
    ids = [4, 9, 0]
    for data in ALL.values():
        batch = data.batch(ids, X[ids])
        assert batch.index is None
        assert batch.id.tolist() == ids
        wanted = data.labels_at(torch.tensor(ids))
        torch.testing.assert_close(batch.y, wanted, equal_nan=True)


def test_a_batch_follows_x_to_its_device() -> None:
    batch = ALL["points"].batch([1, 2], {"a": torch.zeros(2, 3, device="meta")})
    assert batch.id.is_meta
    assert batch.y is not None
    assert batch.y.is_meta


# ---------------------------------------------------------------------- two copies are one of weight 2

TWICE = [2, 7, 7, 11, 29, 20]  # 7 has weight 3 in the end
COPIES = torch.cat([torch.arange(N), torch.tensor(TWICE)])
AS_WEIGHT = torch.bincount(COPIES).double()
MAKE = {
    "tasks": lambda ids, w: TaskBlocks(Tasks(X[ids], CLASSES[ids], weight=w)),
    "targets": lambda ids, w: TaskBlocks(Tasks(X[ids], TARGETS[ids], weight=w)),
    "points, all": lambda ids, w: PointBlocks(Points(X[ids], BINARY[ids], weight=w), include_own_class=True),
    "points, opposite": lambda ids, w: PointBlocks(Points(X[ids], TARGETS[ids], weight=w), include_own_class=False),
    "queries": lambda ids, w: QueryBlocks(Queries(X[ids], QUERIES[ids], RELEVANCE[ids], weight=w), relevant_only=True),
    "risk sets": lambda ids, w: RiskBlocks(RiskSets(X[ids], TIME[ids], EVENT[ids], weight=w)),
    "groups": lambda ids, w: GroupBlocks(Groups(X[ids], BINARY[ids], CLASSES[ids], weight=w)),
    "bags": lambda ids, w: BagBlocks(Bags(X[ids], BAGS[ids], BAG_LABELS, weight=w)),
}


def names(blocks: Blocks, ids: torch.Tensor) -> list[tuple[int, ...]]:
    """What tells a block of the one from a block of the other: its task and its example."""
    if blocks.block_example is None:
        return [(i,) for i in range(blocks.num_blocks)]
    example = ids[blocks.block_example].tolist()
    task = blocks.block_task.tolist() if isinstance(blocks, PointBlocks) else [0] * len(example)
    return list(zip(task, example, strict=True))


def means(blocks: Blocks, ids: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """(m, 2) weighted sums over positives and over the rest, by a full pass."""
    total = torch.zeros(blocks.num_blocks, 2, dtype=torch.float64)
    for batch in full_pass(blocks, 7):
        assert batch.index is not None
        assert batch.weight is not None
        weight = batch.weight.expand(batch.index.shape[0], -1)
        if batch.serves is not None:
            weight = weight * (batch.serves == torch.arange(batch.index.shape[0]).unsqueeze(1))
        terms = weight * v[ids[batch.id]]
        positive = torch.zeros_like(terms, dtype=torch.bool)
        if isinstance(blocks, TaskBlocks):
            positive, _ = blocks.tasks.at(blocks.block_task[batch.index], batch.id)
        total.index_add_(0, batch.index, torch.stack([(terms * positive).sum(1), (terms * ~positive).sum(1)], 1))
    return total


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE.keys())
def test_two_copies_are_one_of_weight_two(make: object) -> None:
    v = torch.randn(N, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    copied = make(COPIES, None)  # type: ignore[operator]
    every = torch.arange(N)
    weighted = make(every, AS_WEIGHT)  # type: ignore[operator]
    by_name = dict(zip(names(weighted, every), means(weighted, every, v), strict=True))
    for name, row in zip(names(copied, COPIES), means(copied, COPIES, v), strict=True):
        torch.testing.assert_close(row, by_name[name], rtol=0, atol=1e-12)
    if weighted.block_weight is not None:  # a block's share of F, in each task
        size = torch.ones(weighted.num_blocks) * weighted.num_blocks
        theirs = torch.ones(copied.num_blocks) * copied.num_blocks
        if isinstance(weighted, PointBlocks):
            size, theirs = weighted.block_size, copied.block_size
        share = dict(zip(names(weighted, every), (weighted.block_weight / size).tolist(), strict=True))
        together: dict[tuple[int, ...], float] = {}
        for name, each in zip(names(copied, COPIES), (1.0 / theirs).tolist(), strict=True):
            together[name] = together.get(name, 0.0) + each
        assert together == pytest.approx(share)


def test_the_totals_that_objectives_need() -> None:
    queries = MAKE["queries"](torch.arange(N), AS_WEIGHT)
    copied = MAKE["queries"](COPIES, None)
    assert isinstance(queries, QueryBlocks)
    assert isinstance(copied, QueryBlocks)
    assert queries.query_weight.tolist() == copied.query_size.tolist() == copied.query_weight.tolist()
    assert queries.query_size.tolist() == QUERIES.bincount().tolist()
    risk = MAKE["risk sets"](torch.arange(N), AS_WEIGHT)
    assert isinstance(risk, RiskBlocks)
    for size, weight, item in zip(risk.risk_size, risk.risk_weight, risk.block_item, strict=True):
        at_risk = TIME[item] <= TIME
        assert int(size) == int(at_risk.sum())
        assert float(weight) == float(AS_WEIGHT[at_risk].sum())
        assert bool((risk.moment >= risk.moment[item]).eq(at_risk).all())


def test_an_example_is_not_compared_with_itself_however_much_it_weighs() -> None:
    blocks = ExampleBlocks(Examples(X, weight=AS_WEIGHT))
    for batch in full_pass(blocks, N):
        assert batch.weight is not None
        assert batch.weight.diagonal().tolist() == [0.0] * N


def test_a_split_of_several_labels_goes_by_the_rarest():
    y = torch.zeros(40, 3)
    y[:2, 0] = 1
    y[:20, 1] = 1
    y[5:9, 2] = 1
    x = torch.randn(40, 3)
    for seed in range(20):
        for part in Points(x, y).split(0.5, seed=seed):
            assert part.y[:, 0].sum() == 1
            assert part.y[:, 2].sum() == 2


def test_bags_by_a_dict_may_leave_numbers_out():
    data = Bags(torch.randn(4, 3), [0, 0, 2, 2], {0: 1, 2: 0})
    assert data.bag.tolist() == [0, 0, 1, 1]
    assert data.bag_names == (0, 2)
    assert data.bag_label.tolist() == [1, 0]

import pytest
import torch

from fcco.sampling.blocks import Share, draw_blocks
from fcco.sampling.draws import Lists, Rest, below, choose, join


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def chi_square(counts: torch.Tensor) -> float:
    """Standard deviations above what equal chances give."""
    expected = counts.double().mean()
    free = counts.numel() - 1
    return float(((counts - expected).square() / expected).sum() - free) / (2 * free) ** 0.5


@pytest.mark.parametrize(("count", "size"), [(6, 3), (6, 6), (9, 2), (13, 3), (5, 1)])
def test_every_subset_is_equally_likely(count: int, size: int) -> None:
    rows = choose(torch.full((40_000,), count), size, generator())
    ordered = rows.sort(1).values
    assert bool((ordered[:, 1:] > ordered[:, :-1]).all())
    assert int(rows.min()) >= 0
    assert int(rows.max()) < count
    code = (ordered * count ** torch.arange(size)).sum(1)
    subsets, seen = code.unique(return_counts=True)
    wanted = torch.combinations(torch.arange(count), size).shape[0]
    assert subsets.numel() == wanted
    if wanted > 1:
        assert chi_square(seen) < 5


def test_rows_of_different_lengths_are_drawn_at_once() -> None:
    count = torch.tensor([3, 1000, 4, 10**9, 7])
    rows = choose(count, 4, generator())
    assert bool((rows[1:] < count[1:].unsqueeze(1)).all())
    assert set(rows[0][:3].tolist()) == {0, 1, 2}  # short rows come whole, then places beyond them
    assert int(rows[0][3]) >= 3


def test_with_replacement_places_are_independent() -> None:
    rows = choose(torch.full((30_000,), 4), 2, generator(), replacement=True)
    _, seen = (rows[:, 0] * 4 + rows[:, 1]).unique(return_counts=True)
    assert seen.numel() == 16
    assert chi_square(seen) < 5


def test_below_is_uniform_for_each_length() -> None:
    drawn = below(torch.tensor([3, 5]).repeat(30_000, 1), generator())
    for column, count in enumerate((3, 5)):
        assert chi_square(drawn[:, column].bincount(minlength=count)) < 5


def test_blocks_are_uniform_and_distinct() -> None:
    for blocks, size in ((10, 4), (50, 3)):
        source, seen = generator(1), torch.zeros(blocks)
        for _ in range(4000):
            drawn = draw_blocks(blocks, size, source)
            assert drawn.unique().numel() == size
            seen[drawn] += 1
        # without replacement counts vary less than the chi-square has it
        assert chi_square(seen) < 5


def test_rest_is_the_complement() -> None:
    labels = torch.tensor([2, 0, 1, 0, 2, 2])
    lists = Lists.by_label(labels, 3)
    rest = Rest(lists)
    for c in range(3):
        inside = lists.take(torch.tensor([c]), torch.arange(int(lists.count[c])).unsqueeze(0))[0]
        outside = rest.take(torch.tensor([c]), torch.arange(int(rest.count[c])).unsqueeze(0))[0]
        assert inside.tolist() == (labels == c).nonzero()[:, 0].tolist()
        assert sorted(outside.tolist()) == (labels != c).nonzero()[:, 0].tolist()


def test_lists_from_a_mask() -> None:
    mask = torch.tensor([[True, False], [True, True], [False, True]])
    lists = Lists.where(mask)
    assert lists.flat.tolist() == [0, 1, 1, 2]
    assert lists.group.tolist() == [0, 0, 1, 1]
    assert lists.start.tolist() == [0, 2]


@pytest.mark.parametrize(("blocks", "world"), [(7, 3), (8, 4), (5, 2)])
def test_foreign_blocks_are_those_of_other_ranks(blocks: int, world: int) -> None:
    for rank in range(world):
        share = Share(blocks, rank, world, 1)
        everything = share.draw_foreign(blocks - share.owned, generator())
        own = share.blocks(torch.device("cpu")).tolist()
        assert sorted(everything.tolist() + own) == list(range(blocks))


def test_join_keeps_each_example_once() -> None:
    together, anchor, place = join(torch.tensor([5, 2]), torch.tensor([2, 9, 5, 1]))
    assert together.tolist() == [1, 2, 5, 9]
    assert together[anchor].tolist() == [5, 2]
    assert together[place].tolist() == [2, 9, 5, 1]

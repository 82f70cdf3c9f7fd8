"""Draws: uniform, without replacement, in shapes that depend on nothing drawn."""

import math

import pytest
import torch

from fcco.data import _draws
from fcco.data._draws import Lists, Pool, Rest, choose, choose_one, resolved, spread
from fcco.data._share import Share
from fcco.data._shuffle_kernel import has_kernel, shuffled


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def chi_square(counts: torch.Tensor) -> float:
    """Standard deviations above what equal chances give."""
    expected = counts.double().mean()
    free = counts.numel() - 1
    return float(((counts - expected).square() / expected).sum() - free) / (2 * free) ** 0.5


@pytest.mark.parametrize(("count", "size"), [(6, 3), (6, 6), (9, 2), (13, 3), (5, 1), (7, 5)])
def test_every_ordered_choice_is_equally_likely(count: int, size: int) -> None:
    rows = choose(torch.full((60_000,), count), size, generator())
    ordered = rows.sort(1).values
    assert bool((ordered[:, 1:] > ordered[:, :-1]).all())
    assert int(rows.min()) >= 0
    assert int(rows.max()) < count
    for code, wanted in (
        ((ordered * count ** torch.arange(size)).sum(1), math.comb(count, size)),
        ((rows * count ** torch.arange(size)).sum(1), math.perm(count, size)),
    ):
        choices, seen = code.unique(return_counts=True)
        assert choices.numel() == wanted
        if wanted > 1:
            assert chi_square(seen) < 5


def test_long_lists_are_drawn_uniformly_too() -> None:
    rows = choose(torch.full((3_000,), 1_000), 40, generator())
    ordered = rows.sort(1).values
    assert bool((ordered[:, 1:] > ordered[:, :-1]).all())
    assert chi_square(rows.flatten().bincount(minlength=1_000)) < 5
    for column in (0, 20, 39):
        assert chi_square(torch.div(rows[:, column], 100, rounding_mode="floor").bincount(minlength=10)) < 5


def test_a_whole_long_list_comes_as_a_permutation() -> None:
    for count in (2, 17, 64, 257):
        assert choose_one(count, count, generator(count)).sort().values.tolist() == list(range(count))


def test_rows_of_different_lengths_are_drawn_at_once() -> None:
    count = torch.tensor([3, 1000, 4, 10**9, 7, 0])
    rows = choose(count, 4, generator())
    assert bool((rows[1:5] < count[1:5].unsqueeze(1)).all())
    assert set(rows[0][:3].tolist()) == {0, 1, 2}  # short rows come whole, then places beyond them
    assert int(rows[0][3]) >= 3
    assert rows[5].tolist() == [0, 1, 2, 3]


def test_one_place_is_uniform_for_each_length() -> None:
    drawn = choose(torch.tensor([3, 5]).repeat(30_000), 1, generator()).reshape(-1, 2)
    for column, count in enumerate((3, 5)):
        assert chi_square(drawn[:, column].bincount(minlength=count)) < 5


def test_what_the_kernel_is_tried_on() -> None:
    drawn = torch.tensor([[0, 1, 0, 0], [3, 0, 1, 0], [0, 0, 0, 0]])
    wanted = [[0, 2, 1, 3], [3, 1, 0, 2], [0, 1, 2, 3]]
    assert resolved(drawn, torch.tensor([4, 9, 2])).tolist() == wanted


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("size", [1, 2, 7, 64, 200, 256])
def test_the_kernel_resolves_swaps_as_tensor_operations_do(size: int) -> None:
    pytest.importorskip("triton")
    count = torch.tensor([1, 2, 5, size, size + 1, 1000, 10**6])
    drawn = torch.randint(2**62, (7, size), generator=generator())
    assert has_kernel(drawn.cuda(), size)
    assert torch.equal(shuffled(drawn.cuda(), count.cuda()).cpu(), resolved(drawn, count))


def test_blocks_are_uniform_and_distinct() -> None:
    for blocks, size in ((10, 4), (50, 3)):
        source, seen = generator(1), torch.zeros(blocks)
        for _ in range(4000):
            drawn = Share(blocks, 0, 1, size).draw(source)
            assert drawn.unique().numel() == size
            seen[drawn] += 1
        # without replacement counts vary less than the chi-square has it
        assert chi_square(seen) < 5


def test_rest_is_the_complement() -> None:
    labels = torch.tensor([2, 0, 1, 0, 2, 2, -1])
    lists = Lists.by_label(labels, 3)
    rest = Rest(lists)
    for c in range(3):
        inside = lists.take(torch.tensor([c]), torch.arange(int(lists.count[c])).unsqueeze(0))[0]
        outside = rest.take(torch.tensor([c]), torch.arange(int(rest.count[c])).unsqueeze(0))[0]
        assert inside.tolist() == (labels == c).nonzero()[:, 0].tolist()
        assert sorted(outside.tolist()) == ((labels != c) & (labels >= 0)).nonzero()[:, 0].tolist()


def test_lists_from_a_mask() -> None:
    mask = torch.tensor([[True, False], [True, True], [False, True]])
    lists = Lists.where(mask)
    assert lists.flat.tolist() == [0, 1, 1, 2]
    assert lists.group.tolist() == [0, 0, 1, 1]
    assert lists.start.tolist() == [0, 2]


def test_totals_of_weights() -> None:
    lists = Lists.by_label(torch.tensor([1, 0, 1, 2]), 3)
    weight = torch.tensor([0.5, 2.0, 1.0, 4.0], dtype=torch.float64)
    assert lists.total(weight).tolist() == [2.0, 1.5, 4.0]
    assert Rest(lists).total(weight).tolist() == [5.5, 6.0, 3.5]
    assert lists.total(None).tolist() == [1.0, 2.0, 1.0]


def test_a_pool_gives_what_it_has() -> None:
    pool = Pool(Lists.by_label(torch.tensor([0, 1, 1, 1, 1, 1]), 2), None)
    id, real = pool.draw(torch.tensor([1, 0]), 3, generator())
    assert id.shape == real.shape == (2, 3)
    assert real.tolist() == [[True] * 3, [True, False, False]]
    assert id[1].tolist() == [0, 0, 0]
    weight = spread(real, pool.count[[1, 0]], pool.total[[1, 0]], None)
    torch.testing.assert_close(weight, torch.tensor([[1 / 3] * 3, [1.0, 0, 0]], dtype=torch.float64))


@pytest.mark.parametrize(("blocks", "world"), [(7, 3), (8, 4), (5, 2)])
def test_foreign_blocks_are_those_of_other_ranks(blocks: int, world: int) -> None:
    for rank in range(world):
        share = Share(blocks, rank, world, 1)
        everything = share.draw_foreign(share.foreign, generator())
        own = share.blocks(torch.device("cpu")).tolist()
        assert sorted(everything.tolist() + own) == list(range(blocks))


@pytest.mark.parametrize("size", [1, 2, 7, 16])
def test_few_and_many_are_chosen_by_the_same_swaps(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    count = torch.tensor([1, 2, 5, 16, 1000, 2**40])
    few = choose(count, size, torch.Generator().manual_seed(size))
    monkeypatch.setattr(_draws, "_FEW", 0)
    assert torch.equal(few, choose(count, size, torch.Generator().manual_seed(size)))

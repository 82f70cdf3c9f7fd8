"""What batches add up to: full passes exactly, steps in the mean; and that every block is equally likely."""

import pytest
import torch

from fcco.data import ExampleBlocks, Examples, Loader, PointBlocks, Points
from tests.data import cases
from tests.data.cases import CASES, ONES, WEIGHT, Case, N, exact, index_of, means

EACH = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
WEIGHTS = pytest.mark.parametrize("weight", [None, WEIGHT], ids=["alike", "weighted"])


def values(blocks: int) -> torch.Tensor:
    return torch.randn(blocks, N, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@EACH
@WEIGHTS
@pytest.mark.parametrize("chunk", [1, 7, 1024])
def test_a_full_pass_adds_up_to_the_exact_means(case: Case, weight: torch.Tensor | None, chunk: int) -> None:
    loader = case.make(weight=weight)
    v = values(loader.num_blocks)
    wanted = exact(case, loader.num_blocks, v, ONES if weight is None else weight)
    total = torch.zeros_like(wanted)
    for batch in loader.full_pass(chunk):
        index = index_of(batch)
        assert batch.x[:, 0].tolist() == batch.id.tolist()
        assert index.unique().numel() == index.numel()
        assert batch.weight is not None
        assert batch.weight.dtype == torch.float64
        total.index_add_(0, index, means(case, loader.structure, batch, v))
    torch.testing.assert_close(total, wanted, rtol=0, atol=1e-13)


@EACH
def test_no_row_of_a_full_pass_is_empty(case: Case) -> None:
    """Else log g would be -inf there."""
    loader = case.make()
    for batch in loader.full_pass(2):
        mask = torch.stack(case.parts(loader.structure, batch)).any(0)
        assert bool(((batch.weight * torch.ones_like(mask)) * mask > 0).any(1).all())


@EACH
@WEIGHTS
def test_steps_are_unbiased_and_blocks_uniform(case: Case, weight: torch.Tensor | None) -> None:
    steps = 600
    loader = case.make(weight=weight, steps_per_epoch=steps, seed=5)
    v = values(loader.num_blocks)
    wanted = exact(case, loader.num_blocks, v, ONES if weight is None else weight)
    count = torch.zeros(loader.num_blocks)
    first, second = torch.zeros_like(wanted), torch.zeros_like(wanted)
    for batch in loader:
        index = index_of(batch)
        error = means(case, loader.structure, batch, v) - wanted[index]
        count[index] += 1
        first[index] += error
        second[index] += error.square()
    n = count.unsqueeze(1)
    spread = (second / n - (first / n).square()).clamp(min=0).sqrt() / n.sqrt()
    assert float(((first / n).abs() / (spread + 1e-12)).max()) < 5
    chance = loader.blocks / loader.num_blocks
    deviation = (count - steps * chance) / (steps * chance * (1 - chance) + 1e-12) ** 0.5
    assert float(deviation.abs().max()) < 5


@EACH
def test_every_batch_has_the_same_shapes(case: Case) -> None:
    loader = case.make(steps_per_epoch=30)
    sizes = set()
    for batch in loader:
        assert batch.weight is not None
        sizes.add((len(batch), batch.weight.shape, index_of(batch).shape))
    assert len(sizes) == 1
    assert sizes.pop()[0] == loader.batch_size == loader.structure.batch_size(loader.blocks, loader.samples)


@EACH
def test_without_weights_those_of_a_block_add_up_to_one(case: Case) -> None:
    loader = case.make(steps_per_epoch=10)
    for batch in loader:
        one = means(case, loader.structure, batch, torch.ones(loader.num_blocks, N, dtype=torch.float64))
        torch.testing.assert_close(one, torch.ones_like(one), rtol=0, atol=1e-13)


@EACH
def test_examples_of_weight_zero_are_as_if_they_were_not_there(case: Case) -> None:
    """In the means; blocks of examples that have no weight are left out, or weigh nothing."""
    weight = WEIGHT.clone()
    weight[::5] = 0.0
    weight[3] = weight[5] = 1.0  # the only positives of the rare labels
    weight[14] = 1.0  # the only instance of a bag
    loader = case.make(weight=weight)
    blocks = loader.structure
    everything = case.make(weight=None).structure
    v = values(everything.num_blocks)
    wanted = exact(case, everything.num_blocks, v, weight)
    kept = torch.arange(everything.num_blocks)
    if everything.block_example is not None and not isinstance(blocks, ExampleBlocks):
        kept = kept[weight[everything.block_example] > 0]
    assert blocks.num_blocks == kept.numel()
    total = torch.zeros(kept.numel(), wanted.shape[1], dtype=torch.float64)
    for batch in loader.full_pass(7):
        total.index_add_(0, index_of(batch), means(case, blocks, batch, v[kept]))
    torch.testing.assert_close(total, wanted[kept], rtol=0, atol=1e-13)


@EACH
def test_the_blocks_share_of_f(case: Case) -> None:
    """(m,) with mean 1, in proportion to the weights of the blocks' own examples, within each task."""
    blocks = case.make(weight=WEIGHT).structure
    assert case.make().structure.block_weight is None
    if blocks.block_example is None:
        assert blocks.block_weight is None
        return
    given = blocks.block_weight
    assert given is not None
    own = WEIGHT[blocks.block_example]
    task = blocks.block_task if isinstance(blocks, PointBlocks) else torch.zeros(blocks.num_blocks)
    for t in task.unique():
        mine = task == t
        torch.testing.assert_close(given[mine], own[mine] / own[mine].mean())


@pytest.mark.parametrize("rank", [0, 2])
@WEIGHTS
def test_ranks_still_estimate_the_mean_over_all_data(
    rank: int, weight: torch.Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank's blocks are its own, but its samples stand for the examples of every rank."""
    monkeypatch.setattr("fcco.data._share.rank_and_world", lambda: (rank, 3))
    binary = torch.arange(N) % 3 != 1
    points = PointBlocks(Points(cases.X, binary, weight=weight), include_own_class=True)
    examples = ExampleBlocks(Examples(cases.X, weight=weight))
    for name, structure, samples in (
        ("examples", examples, 0),
        ("examples", examples, 2),
        ("points, all", points, 4),
    ):
        loader = Loader(structure, 9, samples, steps_per_epoch=600)
        v = values(loader.num_blocks)
        wanted = exact(CASES[name], loader.num_blocks, v, ONES if weight is None else weight)
        errors = torch.zeros(2, loader.num_blocks, dtype=torch.float64)
        count = torch.zeros(loader.num_blocks)
        for batch in loader:
            index = index_of(batch)
            error = (means(CASES[name], structure, batch, v) - wanted[index])[:, 0]
            errors[0, index] += error
            errors[1, index] += error.square()
            count[index] += 1
            assert len(batch) == loader.batch_size
        own = count > 0
        assert own.nonzero()[:, 0].tolist() == list(range(rank, loader.num_blocks, 3))
        mean, square = errors[:, own] / count[own]
        assert float((mean.abs() / ((square - mean.square()) / count[own]).sqrt()).max()) < 5


@EACH
@WEIGHTS
def test_whole_draws_are_exact(case: Case, weight: torch.Tensor | None) -> None:
    """Where everything is drawn, a step equals the full pass."""
    if case is CASES["examples"]:
        return  # see the next one
    blocks = case.blocks_of(cases.X, weight)
    loader = Loader(blocks, blocks.num_blocks, 4 * N)
    v = values(loader.num_blocks)
    batch = next(iter(loader))
    wanted = exact(case, loader.num_blocks, v, ONES if weight is None else weight)[index_of(batch)]
    torch.testing.assert_close(means(case, blocks, batch, v), wanted, rtol=0, atol=1e-13)


@WEIGHTS
def test_all_examples_are_exact(weight: torch.Tensor | None) -> None:
    case = CASES["examples"]
    loader = case.make(b=N, weight=weight)
    v = values(N)
    batch = next(iter(loader))
    assert len(batch) == N
    wanted = exact(case, N, v, ONES if weight is None else weight)[index_of(batch)]
    torch.testing.assert_close(means(case, loader.structure, batch, v), wanted, rtol=0, atol=1e-13)

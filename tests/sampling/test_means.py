"""What batches add up to: full passes exactly, steps in the mean; and that every block is equally likely."""

import pytest
import torch

from fcco.sampling import Average, ExampleLoader, PointLoader, QueryItemLoader
from tests.sampling import cases
from tests.sampling.cases import CASES, Case, N, exact, means

EACH = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def values(blocks: int) -> torch.Tensor:
    return torch.randn(blocks, N, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@EACH
@pytest.mark.parametrize("chunk", [1, 7, None])
def test_a_full_pass_adds_up_to_the_exact_means(case: Case, chunk: int | None) -> None:
    loader = case.make()
    v = values(loader.num_blocks)
    wanted = exact(case, loader.num_blocks, v)
    total = torch.zeros_like(wanted)
    for index, batch in loader.full_pass(chunk):
        assert batch.x[:, 0].tolist() == batch.id.tolist()
        assert index.unique().numel() == index.numel()
        total.index_add_(0, index, means(case, index, batch, v))
    torch.testing.assert_close(total, wanted, rtol=0, atol=1e-13)


@EACH
def test_no_row_of_a_full_pass_is_empty(case: Case) -> None:
    """Else log g would be -inf there."""
    for index, batch in case.make(chunk=2).full_pass():
        mask = torch.stack(case.parts(index, batch)).any(0)
        assert bool(((batch.weight * torch.ones_like(mask)) * mask > 0).any(1).all())


@EACH
def test_steps_are_unbiased_and_blocks_uniform(case: Case) -> None:
    steps = 1000
    loader = case.make(steps_per_epoch=steps, seed=5)
    v = values(loader.num_blocks)
    wanted = exact(case, loader.num_blocks, v)
    count = torch.zeros(loader.num_blocks)
    first, second = torch.zeros_like(wanted), torch.zeros_like(wanted)
    for index, batch in loader:
        error = means(case, index, batch, v) - wanted[index]
        count[index] += 1
        first[index] += error
        second[index] += error.square()
    n = count.unsqueeze(1)
    spread = (second / n - (first / n).square()).clamp(min=0).sqrt() / n.sqrt()
    assert float(((first / n).abs() / (spread + 1e-12)).max()) < 5
    chance = loader.blocks_per_step / loader.num_blocks
    deviation = (count - steps * chance) / (steps * chance * (1 - chance) + 1e-12) ** 0.5
    assert float(deviation.abs().max()) < 5


@pytest.mark.parametrize("rank", [0, 2])
def test_ranks_still_estimate_the_mean_over_all_data(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank's blocks are its own, but its samples stand for the examples of every rank."""
    monkeypatch.setattr("fcco.sampling.blocks.rank_and_world", lambda: (rank, 3))
    binary = torch.arange(N) % 3 != 1
    x = torch.arange(N, dtype=torch.float64).unsqueeze(1)
    for name, loader in {
        "examples": ExampleLoader(x, 9, steps_per_epoch=1200),
        "points, all": PointLoader(x, binary, 9, 4, average=Average.ALL, steps_per_epoch=1200),
    }.items():
        v = values(loader.num_blocks)
        wanted = exact(CASES[name], loader.num_blocks, v)
        errors = torch.zeros(2, loader.num_blocks, dtype=torch.float64)
        count = torch.zeros(loader.num_blocks)
        for index, batch in loader:
            error = (means(CASES[name], index, batch, v) - wanted[index])[:, 0]
            errors[0, index] += error
            errors[1, index] += error.square()
            count[index] += 1
        own = count > 0
        assert own.nonzero()[:, 0].tolist() == list(range(rank, loader.num_blocks, 3))
        mean, square = errors[:, own] / count[own]
        assert float((mean.abs() / ((square - mean.square()) / count[own]).sqrt()).max()) < 5


def test_whole_draws_are_exact() -> None:
    """Where everything is drawn, a step equals the full pass."""
    makes = {
        "points, all": lambda x: PointLoader(x, cases.BINARY, 9, 22, average=Average.ALL),
        "examples": lambda x: ExampleLoader(x, N),
        "query items": lambda x: QueryItemLoader(x, cases.QUERIES, cases.RELEVANCE, 3),
    }
    for name, make in makes.items():
        loader = make(cases.X)
        v = values(loader.num_blocks)
        index, batch = next(iter(loader))
        wanted = exact(CASES[name], loader.num_blocks, v)[index]
        torch.testing.assert_close(means(CASES[name], index, batch, v), wanted, rtol=0, atol=1e-13)

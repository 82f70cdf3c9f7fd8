"""Batches for a loss without a memory: uniform within every class, resumed after what the loss has seen."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import fcco
from tests.losses.cases import LOSSES, Loop, make_loss
from tests.objectives.cases import GROUP, LABEL, QUERY, N, X


def loader_of(loss, num_workers=0, **sizes):
    sizes = {"blocks": 2, "samples": 3, "seed": 1, "steps_per_epoch": 6} | sizes
    sampler = loss.sampler(**sizes)
    return sampler, DataLoader(fcco.data.Indexed(TensorDataset(X)), batch_sampler=sampler, num_workers=num_workers)


@pytest.mark.parametrize("name", LOSSES)
def test_every_batch_has_a_block(name):
    loop = Loop(name)
    _, loader = loader_of(loop.loss, blocks=4, samples=4)
    for _, id in loader:
        assert len(set(id.tolist())) == len(id)
        loop.step(id)
    assert loop.loss.visited.any()
    assert loop.loss.steps == 6


def test_so_many_of_each_class():
    sampler, loader = loader_of(make_loss("pAUC"), steps_per_epoch=300)
    count = torch.zeros(N)
    for _, id in loader:
        assert LABEL[id].tolist() == [1, 1, 0, 0, 0]
        count[id] += 1
    assert len(sampler) == 300
    positives = 300 * 2 / 5
    negatives = 300 * 3 / 7
    torch.testing.assert_close(count[LABEL == 1], torch.full((5,), positives), rtol=0.15, atol=0.0)
    torch.testing.assert_close(count[LABEL == 0], torch.full((7,), negatives), rtol=0.15, atol=0.0)


@pytest.mark.parametrize(("name", "member"), [("NDCG", QUERY), ("Group DRO, KL", GROUP), ("multi-instance", GROUP)])
def test_so_many_lists_and_items_of_each(name, member):
    for _, id in loader_of(make_loss(name))[1]:
        _, count = member[id].unique(return_counts=True)
        assert len(count) == 2
        assert int(count.max()) <= 3


def test_epochs_differ_and_seeds_repeat():
    _, loader = loader_of(make_loss("pAUC"))
    first, second = ([id.tolist() for _, id in loader] for _ in range(2))
    assert first != second
    _, loader = loader_of(make_loss("pAUC"))
    assert [id.tolist() for _, id in loader] == first
    _, loader = loader_of(make_loss("pAUC"), seed=2)
    assert [id.tolist() for _, id in loader] != first


@pytest.mark.parametrize("after", [2, 6, 8])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_goes_on_after_what_the_loss_has_seen(after, num_workers):
    whole = Loop("AP")
    _, loader = loader_of(whole.loss)
    ids = [id for _ in range(2) for _, id in loader]
    first = Loop("AP")
    sampler, loader = loader_of(first.loss, num_workers)
    stream = (id for _ in range(2) for _, id in loader)
    for _ in range(after):
        first.step(next(stream))
    second, loader = loader_of(make_loss("AP"))
    second.load_state_dict(sampler.state_dict())
    left = [id for _ in range(1 if after >= 6 else 2) for _, id in loader]
    assert [id.tolist() for id in left] == [id.tolist() for id in ids[after:]]


def test_sizes_that_make_no_sense():
    with pytest.raises(ValueError, match="blocks must be >= 1, got 0"):
        make_loss("pAUC").sampler(0, 2)
    with pytest.raises(ValueError, match="steps_per_epoch must be >= 1, got 0"):
        make_loss("pAUC").sampler(1, 2, steps_per_epoch=0)

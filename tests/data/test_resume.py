"""The loader's state, mid-epoch, with workers, on ranks; states that do not fit."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fcco.data import Loader, TaskBlocks, Tasks
from tests.data.cases import CASES, TARGETS, Case, X, same
from tests.data.test_loader import EACH, noisy


def endless(loader: Loader) -> Iterator[Any]:
    while True:
        yield from loader


@EACH
@pytest.mark.parametrize("large", [None, (2, 3)], ids=["alike", "large"])
def test_resumed_mid_epoch_equals_uninterrupted(case: Case, large: tuple[int, int] | None) -> None:
    whole = case.make(steps_per_epoch=5, large=large)
    wanted = list(whole) + list(whole)
    part = case.make(steps_per_epoch=5, large=large)
    stream = endless(part)
    seen = [next(stream) for _ in range(3)]
    state = part.state_dict()
    fresh = case.make(steps_per_epoch=5, seed=99, large=large)
    fresh.load_state_dict(state)
    rest = list(fresh)
    assert len(rest) == 2
    assert all(map(same, wanted, seen + rest + list(fresh)))


@pytest.mark.parametrize("workers", [0, 2])
def test_resumed_with_workers_equals_uninterrupted(workers: int) -> None:
    """Workers fetch ahead, and the data set is random: neither shows."""

    def make(seed: int, num_workers: int) -> Loader:
        return noisy(steps_per_epoch=6, seed=seed, num_workers=num_workers)

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


def test_ranks_keep_their_own_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint holds the stream of every rank; on more ranks the new ones start streams of their own."""

    def make(rank: int, world: int) -> Loader:
        monkeypatch.setattr("fcco.data._share.rank_and_world", lambda: (rank, world))
        return Loader(TaskBlocks(Tasks(X, TARGETS[:, [0, 1, 2, 0, 1, 2]])), 3, 4, steps_per_epoch=6)

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


def test_states_that_do_not_fit_are_refused_by_name() -> None:
    loader = CASES["classes"].make()
    with pytest.raises(ValueError, match="lacks kind"):
        loader.load_state_dict({})
    with pytest.raises(ValueError, match=r"structure='GroupBlocks'.* this one has structure='TaskBlocks'"):
        loader.load_state_dict(CASES["groups"].make().state_dict())
    with pytest.raises(ValueError, match="blocks=3, but this one has blocks=2"):
        loader.load_state_dict(CASES["classes"].make(b=3, steps_per_epoch=loader.steps_per_epoch).state_dict())
    with pytest.raises(ValueError, match=r"large=\[2, 3\], but this one has large=None"):
        loader.load_state_dict(CASES["classes"].make(large=(2, 3)).state_dict())
    with pytest.raises(ValueError, match="another kind of device"):
        loader.load_state_dict(loader.state_dict() | {"random": [torch.zeros(16, dtype=torch.uint8)]})


def test_a_state_is_plain_and_says_what_it_is_of() -> None:
    state = CASES["query items"].make(seed=4).state_dict()
    assert state["kind"]["structure"] == "QueryBlocks"
    assert set(state["kind"]) >= {"examples", "num_blocks", "blocks", "samples", "steps_per_epoch"}
    assert [type(item) for item in state["random"]] == [torch.Tensor]

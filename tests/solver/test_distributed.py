"""Two ranks: each on its own blocks, together equal to one rank on the joined batch. Real processes, joined by gloo."""

import functools
import re

import pytest
import torch

from tests.helpers import ranks
from tests.helpers.methods import TABLE, TRACKED
from tests.helpers.ranks import Pool
from tests.helpers.same import assert_same


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two ranks for all tests of this file."""
    pool = Pool(tmp_path_factory.mktemp("ranks"))
    try:
        yield pool
    finally:
        pool.close()


pytestmark = pytest.mark.usefixtures("one_thread")


def assert_close(two, one, tolerance=1e-12):
    """Relative difference of everything, tensor by tensor; both ranks hold the same bits."""
    assert all(isinstance(answer, dict) for answer in two), two
    assert_same(*two)
    assert two[0]["t"] == one["t"]
    assert torch.equal(two[0]["visited"], one["visited"])
    for key in ("weights", "z", "previous", "adam", "rows"):
        assert (two[0][key] is None) == (one[key] is None), key
        pairs = zip(_list(two[0][key]), _list(one[key]), strict=True)
        for x, y in pairs:
            assert (x - y).norm() <= tolerance * (y.norm() + 1e-300), key


@functools.cache
def alone(name, last=ranks.LAST):
    """The same steps on one rank."""
    return ranks.train(name, last=last)


def _list(value):
    return [] if value is None else value if isinstance(value, list) else [value]


@pytest.mark.parametrize("name", TRACKED)
def test_two_ranks_equal_one_on_the_joined_batch(name, pair):
    assert_close(pair.run(ranks.train, name=name), alone(name))


@pytest.mark.parametrize("option", [{"radius": 0.3}, {"normalize": True}, {"u0": 0.0, "z0": 0.0}], ids=str)
def test_two_ranks_equal_one_with_options(option, pair):
    assert_close(pair.run(ranks.train, name="msvr-v2", **option), ranks.train("msvr-v2", **option))


def test_ranks_with_unequal_data_renew_the_reference_together(pair):
    """A pass takes 20 samples here and 40 there, a step 6 on each: five steps to an epoch."""
    assert pair.run(ranks.renew_per_epoch) == [[1] * 5 + [6] * 5 + [11]] * 2


MOVED = ("sox", "soap", "msvr-v1", "msvr-v2", "msvr-v3", "variant-v2")


@pytest.mark.parametrize("name", MOVED)
def test_saved_on_two_ranks_and_continued_on_one(name, pair, tmp_path):
    pair.run(ranks.train, name=name, last=4, save=str(tmp_path / "two.pt"))
    one = ranks.train(name, first=5, load=tmp_path / "two.pt")
    assert_close([one, one], alone(name))


def test_no_rank_goes_on_before_the_file_is_there(pair, tmp_path):
    assert pair.run(ranks.save_and_read, path=str(tmp_path / "slow.pt")) == [{"solver": "Linear"}] * 2


def test_a_failed_write_is_raised_on_every_rank(pair, tmp_path):
    first, second = pair.run(ranks.save_and_read, path=str(tmp_path / "nowhere" / "run.pt"))
    assert first[0] == "FileNotFoundError"
    assert second[0] == "OSError"
    assert "rank 0 could not write" in second[1]


@pytest.mark.parametrize("name", MOVED)
def test_saved_on_one_rank_and_continued_on_two(name, pair, tmp_path):
    ranks.train(name, last=4, save=tmp_path / "one.pt")
    assert_close(pair.run(ranks.train, name=name, first=5, load=str(tmp_path / "one.pt")), alone(name))


def test_two_ranks_resumed_equal_two_ranks_uninterrupted(pair, tmp_path):
    """Bit for bit: each rank's own draws of blocks, samples and masks among them."""
    path = str(tmp_path / "two.pt")
    whole = pair.run(ranks.train_on_draws, steps=10)
    first = pair.run(ranks.train_on_draws, steps=5, save=path)
    rest = pair.run(ranks.train_on_draws, steps=5, load=path, seed=9)
    for rank in range(2):
        assert_same(whole[rank][0], rest[rank][0])
        assert_same(whole[rank][1], first[rank][1] + rest[rank][1])
        assert_same(whole[rank][2:], rest[rank][2:])
    assert all(bool((blocks % 2 == rank).all()) for rank in range(2) for blocks in whole[rank][1])
    assert_same(whole[0][0], whole[1][0])


@pytest.mark.parametrize("how", ["g", "gradient"])
@pytest.mark.parametrize(("name", "t"), [("sox", 1), ("msvr-v2", 4), ("variant-v2", 3)])
def test_not_finite_on_one_rank_raises_on_both(name, t, how, pair):
    clean = alone(name, t + 2)
    healthy, spoilt = pair.run(ranks.fail_once, name=name, how=how, t=t)
    assert "another rank" in healthy[0][0]
    assert healthy[0][1] == []
    assert "block 1" in spoilt[0][0]
    assert spoilt[0][1] == [1]
    assert healthy[1]
    assert spoilt[1]
    assert_close([healthy[2], spoilt[2]], clean)


@pytest.mark.parametrize("how", ["g", "gradient"])
@pytest.mark.parametrize(("name", "t"), [("msvr-v3", 1), ("variant-v3", 5)], ids=["first", "later"])
def test_not_finite_in_the_full_pass_of_one_rank_raises_on_both(name, t, how, pair):
    clean = alone(name, t + 2)
    healthy, spoilt = pair.run(ranks.fail_once, name=name, how=how, t=t)
    assert "another rank" in healthy[0][0]
    assert "full_pass" in spoilt[0][0]
    assert 1 in spoilt[0][1]
    assert healthy[1]
    assert spoilt[1]
    assert_close([healthy[2], spoilt[2]], clean)


@pytest.mark.parametrize("name", ["sox", "msvr-v2", "msvr-v3"])
def test_not_finite_on_one_rank_is_skipped_on_both(name, pair):
    answers = pair.run(ranks.fail_once, name=name, how="g", t=3, nonfinite="skip")
    assert [answer[:2] for answer in answers] == [(True, True)] * 2
    assert_close([answer[2] for answer in answers], alone(name, 5))


@pytest.mark.parametrize("name", ["soap", "msvr-v2", "msvr-v3"])
def test_diagnosis(name, pair):
    two, one = pair.run(ranks.diagnose, name=name), ranks.diagnose(name)
    assert two[0] == two[1]
    assert two[0] == pytest.approx(one, rel=1e-9)


def test_diagnosis_that_is_not_finite_on_one_rank_raises_on_both(pair):
    (first, _, none), (second, says, blocks) = pair.run(ranks.diagnose_spoilt)
    assert first == second == "NonFiniteError"
    assert "block 1" in says
    assert (none, blocks) == ([], [1])


def test_each_rank_has_its_own_blocks(pair):
    answers = pair.run(ranks.foreign_block)
    for rank, (kind, says, _) in enumerate(answers):
        assert kind == "ValueError"
        assert f"rank {rank} does not own: {1 - rank}" in says


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (ranks.too_few_blocks, "num_blocks must be at least the number of ranks 2, got 1"),
        (ranks.uneven_sampler, "blocks must be a multiple of the 2 ranks, got 3"),
    ],
)
def test_what_two_ranks_cannot_share(function, says, pair):
    for kind, said, _ in pair.run(function):
        assert (kind, said) == ("ValueError", says)


# ---------------------------------------------------------------------- FSDP2: every rank holds its part of the weights

SHARDED = [name for name in TRACKED if not TABLE[name].single_point]


@pytest.mark.parametrize("name", SHARDED)
def test_sharded_parameters_take_the_same_steps(name, pair):
    assert_close(pair.run(ranks.train, name=name, wrap="fsdp"), alone(name))


@pytest.mark.parametrize("option", [{"radius": 0.3}, {"normalize": True}, {"u0": 0.0, "z0": 0.0}], ids=str)
def test_sharded_parameters_take_the_same_steps_with_options(option, pair):
    assert_close(pair.run(ranks.train, name="msvr-v2", wrap="fsdp", **option), ranks.train("msvr-v2", **option))


@pytest.mark.parametrize(("first", "second"), [("fsdp", None), (None, "fsdp"), ("fsdp", "fsdp")])
@pytest.mark.parametrize("name", ["soap", "msvr-v2", "msvr-v3"])
def test_saved_and_continued_with_and_without_sharding(name, first, second, pair, tmp_path):
    path = str(tmp_path / "half.pt")
    pair.run(ranks.train, name=name, last=4, save=path, wrap=first)
    assert_close(pair.run(ranks.train, name=name, first=5, load=path, wrap=second), alone(name))


def test_saved_in_parts_and_continued_on_one_rank(pair, tmp_path):
    path = str(tmp_path / "half.pt")
    options = {"normalize": True, "keep": "uniform"}
    pair.run(ranks.train, name="msvr-v2", last=4, save=path, wrap="fsdp", **options)
    one = ranks.train("msvr-v2", first=5, load=path, **options)
    assert_close([one, one], ranks.train("msvr-v2", **options))


def test_sharded_ranks_resumed_equal_uninterrupted(pair, tmp_path):
    """Bit for bit, the iterate that the reservoir keeps among it."""
    path = str(tmp_path / "half.pt")
    whole = pair.run(ranks.train_on_draws, steps=10, wrap="fsdp", keep="uniform")
    pair.run(ranks.train_on_draws, steps=5, save=path, wrap="fsdp", keep="uniform")
    rest = pair.run(ranks.train_on_draws, steps=5, load=path, seed=9, wrap="fsdp", keep="uniform")
    for rank in range(2):
        assert_same(whole[rank][0], rest[rank][0])
        assert_same(whole[rank][2:], rest[rank][2:])


@pytest.mark.parametrize("how", ["g", "gradient"])
@pytest.mark.parametrize(("name", "t"), [("sox", 1), ("msvr-v2", 4), ("msvr-v3", 1)])
def test_not_finite_on_one_rank_raises_on_both_when_sharded(name, t, how, pair):
    """Nobody replays a pass alone, which all ranks have to take: a bad gradient is known by its rank at most."""
    answers = pair.run(ranks.fail_once, name=name, how=how, t=t, wrap="fsdp")
    for says, unchanged, _ in answers:
        assert "not finite" in says[0]
        assert unchanged
    if how == "g":
        assert 1 in answers[1][0][1]
    assert_close([answer[2] for answer in answers], alone(name, t + 2))


@pytest.mark.parametrize("name", ["soap", "msvr-v2"])
def test_diagnosis_when_sharded(name, pair):
    two, one = pair.run(ranks.diagnose, name=name, wrap="fsdp"), ranks.diagnose(name)
    assert two[0] == two[1]
    assert two[0] == pytest.approx(one, rel=1e-9)


def test_an_optimizer_that_raises_leaves_sharded_ranks_as_they_were(pair):
    for raised, unchanged, after in pair.run(ranks.refuse_once, name="msvr-v2", wrap="fsdp"):
        assert (raised, unchanged) == ("refused", True)
        assert_close([after, after], alone("msvr-v2", 5))


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("single point", "msvr-v1-sp needs Jacobian-vector products.*; take the method without -sp$"),
        ("objective", "fully_shard must be applied to the model inside the objective"),
        ("tensor parallel", r"parameter model.0.weight must be sharded by fully_shard over one mesh of all 2 ranks"),
        ("some ranks", r"parameter model.0.weight must be sharded by fully_shard over one mesh of all 2 ranks"),
    ],
)
def test_what_cannot_be_sharded_is_refused_by_name(how, says, pair):
    for kind, said, _ in pair.run(ranks.shard_badly, how=how):
        assert kind == "ValueError", said
        assert re.search(says, said)


# ---------------------------------------------------------------------- DDP


@pytest.mark.parametrize("name", TRACKED)
def test_two_ranks_under_ddp_equal_one_on_the_joined_batch(name, pair):
    assert_close(pair.run(ranks.train, name=name, wrap="ddp"), alone(name))


@pytest.mark.parametrize("name", ["msvr-v1-sp", "msvr-v2-sp"])
def test_jacobian_vector_products_by_double_backward_under_ddp(name, pair):
    assert_close(pair.run(ranks.train, name=name, wrap="ddp", forward_mode=False), alone(name))


@pytest.mark.parametrize("how", ["g", "gradient"])
def test_not_finite_on_one_rank_raises_on_both_under_ddp(how, pair):
    healthy, spoilt = pair.run(ranks.fail_once, name="msvr-v2", how=how, t=4, wrap="ddp")
    assert "another rank" in healthy[0][0]
    assert spoilt[0][1] == [1]
    assert (healthy[1], spoilt[1]) == (True, True)
    assert_close([healthy[2], spoilt[2]], alone("msvr-v2", 6))

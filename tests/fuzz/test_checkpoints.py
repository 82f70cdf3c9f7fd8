"""Five thousand damaged checkpoints, seeded: refused in one sentence, or the very state that was saved."""

import random
import sys

import pytest
import torch

import fcco
from fcco.checkpoint import read
from tests.helpers.runs import Run
from tests.helpers.same import difference

TRIALS = 5000


def flip(content, draw):
    for _ in range(draw.choice([1, 1, 1, 2, 8])):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)


def cut(content, draw):
    del content[draw.randrange(len(content)) :]


def drop(content, draw):
    start = draw.randrange(len(content))
    del content[start : start + draw.randrange(1, 200)]


def insert(content, draw):
    start = draw.randrange(len(content))
    content[start:start] = draw.randbytes(draw.randrange(1, 200))


def clear(content, draw):
    """A page of the disk that was never written."""
    start = draw.randrange(0, len(content), 512)
    content[start : start + 512] = bytes(len(content[start : start + 512]))


def move(content, draw):
    start = draw.randrange(len(content))
    other = draw.randrange(len(content))
    size = draw.randrange(1, 300)
    piece = bytes(content[start : start + size])
    content[other : other + len(piece)] = piece


DAMAGES = (flip, cut, drop, insert, clear, move)


@pytest.mark.slow
def test_nothing_is_loaded_that_was_not_saved(tmp_path, capsys):
    torch.set_num_threads(1)
    path = tmp_path / "run.pt"
    fcco.save(path, **Run(seed=1).steps(3).parts)
    whole = path.read_bytes()
    expected = read(path)["states"]
    draw = random.Random(0)
    refused = 0  # in one sentence each
    same = 0
    for trial in range(TRIALS):
        content = bytearray(whole)
        damage = draw.choice(DAMAGES)
        damage(content, draw)
        path.write_bytes(content)
        try:
            found = read(path)["states"]
        except fcco.CheckpointError as error:
            refused += len(str(error).splitlines()) == 1
        else:
            same += 1
            assert difference(expected, found) is None, f"trial {trial}, {damage.__name__}"
    with capsys.disabled():
        sys.stdout.write(f"\ndamaged checkpoints: {refused} refused, {same} the very state that was saved\n")
    assert refused + same == TRIALS
    assert refused > TRIALS // 2  # the others hit padding, or changed nothing

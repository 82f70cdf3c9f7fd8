"""BlockSampler's arguments: the right error, which names the argument and the value."""

import pytest

import fcco

SAMPLER = [
    ("num_blocks", 0, ValueError),
    ("num_blocks", 6.0, TypeError),
    ("num_blocks", None, TypeError),
    ("blocks", 0, ValueError),
    ("blocks", 7, ValueError),
    ("blocks", -1, ValueError),
    ("blocks", 2.0, TypeError),
    ("blocks", True, TypeError),
    ("seed", 1.5, TypeError),
    ("seed", "a", TypeError),
    ("seed", None, TypeError),
]


@pytest.mark.parametrize(("argument", "value", "error"), SAMPLER)
def test_sampler_argument(argument, value, error):
    with pytest.raises(error, match=f"{argument} .*{value}"):
        fcco.BlockSampler(**{"num_blocks": 6, "blocks": 2, "seed": 0} | {argument: value})

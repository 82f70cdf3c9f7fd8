"""A draw is the same sequence of operations on the same shapes every time, so that it can be captured."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.data.cases import CASES, WEIGHT, Case

EACH = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
WAITS = ("_local_scalar_dense", "nonzero", "unique", "masked_select", "repeat_interleave", "bincount", "equal")


class Record(TorchDispatchMode):
    """What runs: the names of operations and the shapes of what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masks = [a for a in torch.utils._pytree.tree_leaves(args) if isinstance(a, torch.Tensor)]
        name = func.overloadpacket.__name__
        assert not (name.startswith("index") and any(a.dtype == torch.bool for a in masks[1:])), "a mask as an index"
        result = func(*args, **(kwargs or {}))
        shapes = [tuple(t.shape) for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
        self.seen.append((name, tuple(shapes)))
        return result


@EACH
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["alike", "weighted"])
def test_nothing_depends_on_what_is_drawn(case: Case, weight: torch.Tensor | None) -> None:
    loader = case.make(weight=weight)
    generator = torch.Generator().manual_seed(0)
    runs = []
    for _ in range(12):
        with Record() as record:
            index = loader.share.draw(generator)
            batch = loader.structure.draw(index, loader.samples, loader.share, generator)
        assert len(batch) == loader.batch_size
        runs.append(record.seen)
    assert all(run == runs[0] for run in runs)
    used = {name for name, _ in runs[0]}
    assert not [name for name in used if any(wait in name for wait in WAITS)]

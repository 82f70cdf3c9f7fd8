"""Whether two nested states are the same, bit for bit."""

import math

import numpy as np
import torch


def difference(a, b, where=""):
    """Where two nested states differ, bit for bit; None where they do not."""
    if isinstance(a, np.ndarray):
        a, b = torch.from_numpy(a.astype("int64")), torch.from_numpy(b.astype("int64"))
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b))
        return None if same else f"{where}: {a} != {b}"
    if type(a) is not type(b):
        return f"{where}: {type(a).__name__} != {type(b).__name__}"
    if isinstance(a, dict):
        if list(a) != list(b):
            return f"{where}: keys {list(a)} != {list(b)}"
        pairs = [(a[key], b[key], f"{where}[{key!r}]") for key in a]
    elif isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return f"{where}: lengths {len(a)} != {len(b)}"
        if len(a) > 100 and all(type(item) is int for item in a):  # Python's random state
            return None if a == b else f"{where}: differ"
        pairs = [(x, y, f"{where}[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True))]
    else:
        same = a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))
        return None if same else f"{where}: {a!r} != {b!r}"
    return next((found for pair in pairs if (found := difference(*pair)) is not None), None)


def _bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def assert_same(a, b):
    found = difference(a, b)
    assert found is None, found

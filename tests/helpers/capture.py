"""Marks for tests of captured steps, on the CPU too; the fixture ``capturing`` is in conftest.py."""

import pytest
import torch

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]

CAPTURED = [
    pytest.mark.parametrize("device", DEVICES),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
    pytest.mark.usefixtures("capturing"),
]

"""Data of another kind than the objective is about are refused by one sentence."""

import pytest
import torch
from torch import nn

from fcco.data import Examples, Tasks
from fcco.objectives import AveragePrecision, PartialAUC, PNormPush

X = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("data", [Tasks, Examples])
@pytest.mark.parametrize("objective", [AveragePrecision, PartialAUC, PNormPush])
def test_the_wrong_kind_of_data_is_refused(objective, data):
    with pytest.raises(TypeError, match=rf"{objective.__name__} needs fcco\.data\.Points, got {data.__name__}"):
        objective(nn.Linear(3, 1), data(X, Y))

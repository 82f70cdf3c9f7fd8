"""A flag is True or False: what only counts as one would end in an error of torch's, or in the other branch."""

import pytest
import torch
from torch import nn

from fcco import data, losses, objectives

X = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])
FLAGS = {
    "trained_centers": lambda flag: objectives.MultiTaskAUC(nn.Linear(3, 1), data.Tasks(X, Y), trained_centers=flag),
    "relevant_only": lambda flag: objectives.ListNet(nn.Linear(3, 1), data.Queries(X, Y, Y), relevant_only=flag),
    "logarithm": lambda flag: objectives.PNormPush(nn.Linear(3, 1), data.Points(X, Y), logarithm=flag),
    "log_likelihood": lambda flag: objectives.NCA(nn.Linear(3, 2), data.Examples(X, Y), log_likelihood=flag),
    "two_modal": lambda flag: objectives.GlobalContrastive(nn.Linear(3, 2), data.Examples((X, X)), two_modal=flag),
    "normalize": lambda flag: losses.GlobalContrastive(10, normalize=flag),
    "per_example": lambda flag: objectives.LearnedTemperature(per_example=flag),
}


@pytest.mark.parametrize("flag", [1, 0.0, "no", None, torch.ones(3)])
@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_is_true_or_false(name, flag):
    with pytest.raises(TypeError, match=f"^{name} must be True or False, got "):
        FLAGS[name](flag)

"""A linear model and a multi-layer perceptron; both flatten what they are given."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn


class Linear(nn.Module):
    """One affine layer: (N, ...) with in_features values each -> (N, num_outputs).

    Args:
        in_features: values per example.
        num_outputs: scores per example.
    """

    def __init__(self, in_features: int, num_outputs: int) -> None:
        super().__init__()
        self.fc = nn.Linear(in_features, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(x.flatten(1))
        return out


class MLP(nn.Module):
    """Affine layers with ReLU between them: (N, ...) with in_features values each -> (N, num_outputs).

    Args:
        in_features: values per example.
        num_outputs: scores per example.
        hidden: units of each hidden layer.
    """

    def __init__(self, in_features: int, num_outputs: int, hidden: Sequence[int] = (256, 256)) -> None:
        super().__init__()
        if not hidden or min(hidden) < 1:
            raise ValueError(f"hidden must be one or more positive widths, got {hidden!r}")
        layers: list[nn.Module] = [nn.Flatten()]
        for width, following in pairwise((in_features, *hidden)):
            layers += [nn.Linear(width, following), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden[-1], num_outputs))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out

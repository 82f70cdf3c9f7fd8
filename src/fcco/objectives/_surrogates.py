"""Surrogate losses of a difference x = (score that should be lower) - (score that should be higher)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fcco._support import checks


@final
@dataclass(frozen=True)
class SquaredHinge:
    """scale * max(margin + x, 0)^2.

    Example:
        >>> SquaredHinge(margin=1.0)(torch.tensor([-2.0, 0.0, 1.0]))
        tensor([0., 1., 4.])
    """

    margin: float = 1.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        checks.non_negative("margin", self.margin)
        checks.positive("scale", self.scale)

    def __call__(self, x: Tensor) -> Tensor:
        return self.scale * (self.margin + x).clamp(min=0).square()


@final
@dataclass(frozen=True)
class Square:
    """scale * (margin + x)^2."""

    margin: float = 1.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        checks.non_negative("margin", self.margin)
        checks.positive("scale", self.scale)

    def __call__(self, x: Tensor) -> Tensor:
        return self.scale * (self.margin + x).square()


@final
@dataclass(frozen=True)
class Logistic:
    """log(1 + exp(sharpness * x)) / sharpness, smooth and never overflowing."""

    sharpness: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("sharpness", self.sharpness)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.softplus(x, beta=self.sharpness)


Surrogate = SquaredHinge | Square | Logistic

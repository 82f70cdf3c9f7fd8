"""Surrogate losses of a difference x = (score that should be lower) - (score that should be higher)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor

from fcco._support import checks

if TYPE_CHECKING:
    from fcco.memory.forms._kernels import Kernel

_FAR = -16.0  # where log(1 + e^x) and three terms of its series agree to the last digit of float64
_LEAST = -1.0e6  # no scale below e^_LEAST: where nothing is marked, the largest exponent would be -inf


class Surrogate(ABC):
    """A loss l >= 0 of a difference of two scores; a frozen dataclass, so that its ``repr`` says all about it."""

    #: whether l is made of exponentials: differences are then taken in double precision
    exponential: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """l(x), in x's shape."""

    def scaled(self, x: Tensor, mask: Tensor) -> tuple[Tensor | float, Tensor]:
        """l(x) as exp(log_scale) * values, so that an l made of exponentials neither vanishes nor overflows.

        Args:
            x: (B, K).
            mask: (B, K) or (1, K) bool, which of them count; the values of the others mean nothing.

        Returns:
            log_scale, a number or (B, 1) without graph, and values (B, K).
        """
        return 0.0, self(x)

    def kernel(self) -> Kernel | None:
        """Fast sums of l over pairs, for the output memory; None: there are none."""
        return None

    def exponential_kernel(self, temperature: float) -> Kernel | None:
        """Fast sums of exp(l / temperature) over pairs, for the output memory; None: there are none."""
        return None


@final
@dataclass(frozen=True)
class SquaredHinge(Surrogate):
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

    def scaled(self, x: Tensor, mask: Tensor) -> tuple[Tensor | float, Tensor]:
        inside = (x + self.margin).relu()
        return math.log(self.scale), inside * inside

    def kernel(self) -> Kernel:
        from fcco.memory.forms._kernels import Polynomial

        return Polynomial(self.margin, self.scale, hinge=True)

    def exponential_kernel(self, temperature: float) -> Kernel:
        from fcco.memory.forms._kernels import Exponential

        return Exponential(self.margin, self.scale / temperature, hinge=True)


@final
@dataclass(frozen=True)
class Square(Surrogate):
    """scale * (margin + x)^2."""

    margin: float = 1.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        checks.non_negative("margin", self.margin)
        checks.positive("scale", self.scale)

    def __call__(self, x: Tensor) -> Tensor:
        return self.scale * (self.margin + x).square()

    def kernel(self) -> Kernel:
        from fcco.memory.forms._kernels import Polynomial

        return Polynomial(self.margin, self.scale, hinge=False)

    def exponential_kernel(self, temperature: float) -> Kernel:
        from fcco.memory.forms._kernels import Exponential

        return Exponential(self.margin, self.scale / temperature, hinge=False)


@final
@dataclass(frozen=True)
class Logistic(Surrogate):
    """log(1 + exp(sharpness * x)) / sharpness, smooth and never overflowing."""

    exponential: ClassVar[bool] = True

    sharpness: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("sharpness", self.sharpness)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.softplus(x, beta=self.sharpness)

    def scaled(self, x: Tensor, mask: Tensor) -> tuple[Tensor | float, Tensor]:
        exponent = self.sharpness * x
        top = _largest(exponent, mask).clamp(max=0.0)  # above 0 the loss grows no faster than x
        exponent = torch.where(mask, exponent, top)
        near = torch.nn.functional.softplus(exponent) * (-top.clamp(min=_FAR)).exp()
        low = exponent.clamp(max=_FAR)
        y = low.exp()
        far = (low - top).exp() * (1.0 - y / 2.0 + y.square() / 3.0)  # log(1 + y) = y - y^2/2 + y^3/3 - ...
        return top - math.log(self.sharpness), torch.where(exponent > _FAR, near, far)


@final
@dataclass(frozen=True)
class Exponential(Surrogate):
    """exp(sharpness * x), the loss of Rudin's p-norm push.

    Example:
        >>> Exponential()(torch.tensor([0.0, 1.0]))
        tensor([1.0000, 2.7183])
    """

    exponential: ClassVar[bool] = True

    sharpness: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("sharpness", self.sharpness)

    def __call__(self, x: Tensor) -> Tensor:
        return (self.sharpness * x).exp()

    def scaled(self, x: Tensor, mask: Tensor) -> tuple[Tensor | float, Tensor]:
        exponent = self.sharpness * x
        top = _largest(exponent, mask)
        return top, torch.where(mask, exponent - top, 0.0).exp()


def _largest(exponent: Tensor, mask: Tensor) -> Tensor:
    """The largest of the marked exponents (B, 1), without graph."""
    marked = torch.where(mask, exponent.detach(), -torch.inf)
    return marked.amax(1, keepdim=True).clamp(min=_LEAST)


def check_surrogate(name: str, value: object, *kinds: type[Surrogate]) -> None:
    """Refuse a loss of another kind (of any kind of :class:`Surrogate` where none is named)."""
    wanted = kinds or (Surrogate,)
    if not isinstance(value, wanted):
        names = " or ".join(kind.__name__ for kind in wanted)
        raise TypeError(f"{name} must be a {names}, got {value!r}")

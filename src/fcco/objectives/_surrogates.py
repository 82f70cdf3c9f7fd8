"""Surrogate losses of a difference x = (score that should be lower) - (score that should be higher)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar, final

import torch
from torch import Tensor

from fcco._support import checks

if TYPE_CHECKING:
    from fcco.memory.forms._kernels import Kernel

_Loss = TypeVar("_Loss", bound="Surrogate")

_FAR = -16.0  # where log(1 + e^x) and three terms of its series agree to the last digit of float64
_LEAST = -1.0e6  # no scale below e^_LEAST: where nothing is marked, the largest exponent would be -inf


class Surrogate(ABC):
    """A loss l >= 0 of a difference of two scores. It is a frozen dataclass, so its ``repr`` says everything."""

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
        """Fast sums of exp(l / temperature) over pairs, for the output memory; None: there are none.

        Args:
            temperature: of the exponential.
        """
        return None


@dataclass(frozen=True)
class _Quadratic(Surrogate):
    """A square of margin + x, with its kernels; abstract."""

    margin: float = 1.0
    scale: float = 1.0
    hinge: ClassVar[bool]

    def __post_init__(self) -> None:
        checks.non_negative("margin", self.margin)
        checks.positive("scale", self.scale)

    @abstractmethod
    def inside(self, x: Tensor) -> Tensor:
        """What is squared: l is scale times its square, and l' is 2 scale times it.

        Args:
            x: differences of scores, of any shape.
        """

    def kernel(self) -> Kernel:
        from fcco.memory.forms._polynomial import Polynomial

        return Polynomial(self.margin, self.scale, hinge=self.hinge)

    def exponential_kernel(self, temperature: float) -> Kernel:
        from fcco.memory.forms._exponential import Exponential

        return Exponential(self.margin, self.scale / temperature, hinge=self.hinge)


@final
@dataclass(frozen=True)
class SquaredHinge(_Quadratic):
    """scale * max(margin + x, 0)^2.

    Args:
        margin: the lead of the positive from which a pair costs nothing.
        scale: a factor.

    Example:
        >>> SquaredHinge(margin=1.0)(torch.tensor([-2.0, 0.0, 1.0]))
        tensor([0., 1., 4.])
    """

    hinge: ClassVar[bool] = True

    def __call__(self, x: Tensor) -> Tensor:
        return self.scale * self.inside(x).square()

    def inside(self, x: Tensor) -> Tensor:
        return (x + self.margin).relu()

    def scaled(self, x: Tensor, mask: Tensor) -> tuple[Tensor | float, Tensor]:
        inside = (x + self.margin).relu()
        return math.log(self.scale), inside * inside


@final
@dataclass(frozen=True)
class Square(_Quadratic):
    """scale * (margin + x)^2.

    Args:
        margin: how far ahead the positive should be.
        scale: a factor.
    """

    hinge: ClassVar[bool] = False

    def __call__(self, x: Tensor) -> Tensor:
        return self.scale * self.inside(x).square()

    def inside(self, x: Tensor) -> Tensor:
        return x + self.margin


@dataclass(frozen=True)
class _Sharp(Surrogate):
    """A loss of sharpness * x that is made of exponentials; abstract."""

    sharpness: float = 1.0
    exponential: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.positive("sharpness", self.sharpness)


@final
@dataclass(frozen=True)
class Logistic(_Sharp):
    """log(1 + exp(sharpness * x)) / sharpness, smooth and never overflowing.

    Args:
        sharpness: how sharply it bends. A large value approaches a hinge.
    """

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.softplus(x, beta=self.sharpness)

    def scaled(self, x: Tensor, mask: Tensor) -> tuple[Tensor | float, Tensor]:
        exponent = self.sharpness * x
        # Far below 0 the loss is e^x, as good as 0 in any float: the row's largest exponent is taken out as its scale.
        top = _largest(exponent, mask).clamp(max=0.0)  # above 0 the loss grows no faster than x
        exponent = torch.where(mask, exponent, top)
        near = torch.nn.functional.softplus(exponent) * (-top.clamp(min=_FAR)).exp()
        low = exponent.clamp(max=_FAR)
        y = low.exp()
        far = (low - top).exp() * (1.0 - y / 2.0 + y.square() / 3.0)  # log(1 + y) = y - y^2/2 + y^3/3 - ...
        return top - math.log(self.sharpness), torch.where(exponent > _FAR, near, far)


@final
@dataclass(frozen=True)
class Exponential(_Sharp):
    """exp(sharpness * x), the loss of Rudin's p-norm push.

    Args:
        sharpness: how fast it grows.

    Example:
        >>> Exponential()(torch.tensor([0.0, 1.0]))
        tensor([1.0000, 2.7183])
    """

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


def loss_or_default(name: str, given: _Loss | None, default: _Loss, *kinds: type[Surrogate]) -> _Loss:
    """The loss that was given, refused where it is of another kind (of any kind of :class:`Surrogate` where none is
    named); None: the default."""
    if given is None:
        return default
    wanted = kinds or (Surrogate,)
    if not isinstance(given, wanted):
        names = " or ".join(kind.__name__ for kind in wanted)
        raise TypeError(f"{name} must be a {names}, got {given!r}")
    return given

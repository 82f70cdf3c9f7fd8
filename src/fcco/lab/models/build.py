"""A model by its name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import nn

from fcco.lab.errors import nearest

from .densenet import densenet121
from .plain import MLP, Linear
from .resnet import Stem, check_stem, resnet18, resnet34

CONVOLUTIONAL: dict[str, Callable[[int, int, Stem], nn.Module]] = {
    "resnet18": resnet18,
    "resnet34": resnet34,
    "densenet121": densenet121,
}
NAMES: tuple[str, ...] = ("linear", "mlp", *CONVOLUTIONAL)
SMALLEST = {("densenet121", "small"): 8, ("densenet121", "imagenet"): 29}  # pixels that survive every pooling


def build(
    name: str,
    in_shape: Sequence[int],
    num_outputs: int,
    *,
    stem: Stem | None = None,
    hidden: Sequence[int] | None = None,
) -> nn.Module:
    """Build a model for examples of shape `in_shape`; inputs are float.

    Args:
        name: one of linear, mlp, resnet18, resnet34, densenet121.
        in_shape: one example's shape, (C, H, W) for the convolutional networks, anything for the other two.
        num_outputs: outputs per example.
        stem: of the convolutional networks: "small" (the default) or "imagenet".
        hidden: widths of the MLP's hidden layers, (256, 256) by default.

    Example:
        >>> import torch
        >>> build("mlp", (1, 28, 28), 10, hidden=[64])(torch.zeros(5, 1, 28, 28)).shape
        torch.Size([5, 10])
    """
    _check(name, in_shape, num_outputs, stem, hidden)
    if name == "linear":
        return Linear(math.prod(in_shape), num_outputs)
    if name == "mlp":
        if hidden is None:
            hidden = (256, 256)
        return MLP(math.prod(in_shape), num_outputs, hidden)
    return _convolutional(name, in_shape, num_outputs, stem or "small")


def _check(
    name: str, in_shape: Sequence[int], num_outputs: int, stem: Stem | None, hidden: Sequence[int] | None
) -> None:
    if name not in NAMES:
        hint = nearest(str(name), NAMES, cutoff=0.4)
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}{hint}")
    if num_outputs < 1:
        raise ValueError(f"num_outputs must be at least 1, got {num_outputs}")
    if not in_shape or min(in_shape) < 1:
        raise ValueError(f"in_shape must be positive sizes, got {tuple(in_shape)}")
    if stem is not None and name not in CONVOLUTIONAL:
        raise ValueError(f"stem is for {', '.join(CONVOLUTIONAL)}, got {stem!r} for {name}")
    if hidden is not None and name != "mlp":
        raise ValueError(f"hidden is for mlp, got {hidden!r} for {name}")


def _convolutional(name: str, in_shape: Sequence[int], num_outputs: int, stem: Stem) -> nn.Module:
    check_stem(stem)
    if len(in_shape) != 3:
        raise ValueError(f"in_shape must be (C, H, W) for {name}, got {tuple(in_shape)}")
    smallest = SMALLEST.get((name, stem), 1)
    if min(in_shape[1:]) < smallest:
        raise ValueError(
            f"in_shape must be at least {smallest}x{smallest} pixels for {name} with stem {stem!r}, "
            f"got {tuple(in_shape)}"
        )
    return CONVOLUTIONAL[name](in_shape[0], num_outputs, stem)

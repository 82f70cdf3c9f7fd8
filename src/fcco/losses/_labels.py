"""The labels that a loss was made with, to be compared with those that come with each batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from fcco.data import Structure
from fcco.data._convert import is_missing, nested, numbers_or_objects

EVERY = 64  # calls between two comparisons of labels on an accelerator, each of which makes it wait


@final
class KnownLabels:
    """What the constructor of a loss was told of each example.

    Labels on the CPU are compared in every call; those on an accelerator in the first call and in every 64th, since
    the host has to wait for them.

    Args:
        owner: the loss, for error messages.
        data: the examples.
        y: (N, ...) numbers or strings, as the user gave them; a tuple: columns (N,) of numbers.
    """

    def __init__(self, owner: str, data: Structure, y: Any) -> None:
        self._owner = owner
        self._data = data
        self._calls = 0
        self._numbers: Tensor | None = None  # (N, ...)
        self._texts: list[Any] | None = None
        if isinstance(y, tuple):
            given: Tensor | list[Any] = torch.stack([_column(part) for part in y], 1)
        else:
            given = numbers_or_objects("y", y)
        if isinstance(given, Tensor):
            self._numbers = given.cpu()
        else:
            self._texts = given

    def check(self, y: Any, id: Tensor) -> None:
        """Refuse labels other than those of the examples (K,), which are on the CPU; None is not compared."""
        self._calls += 1
        if y is None:
            return
        if isinstance(y, Tensor) and not y.is_cpu and self._calls % EVERY != 1:
            return
        if self._texts is not None and not isinstance(y, Tensor):
            self._check_texts(nested(y), id)
        else:
            self._check_numbers(y, id)

    def _check_texts(self, y: list[Any], id: Tensor) -> None:
        assert self._texts is not None
        self._check_length(len(y), id)
        for given, example in zip(y, id.tolist(), strict=True):
            known = self._texts[example]
            if given != known and not (is_missing(given) and is_missing(known)):
                raise self._error(given, known, example)

    def _check_numbers(self, y: Any, id: Tensor) -> None:
        given = _numbers(y).cpu()
        known = self._known(id)  # (K, ...)
        if given.dim() == 0:
            given = given.unsqueeze(0)
        self._check_length(given.shape[0], id)
        if given.shape == (*known.shape, 1) or (*given.shape, 1) == known.shape:
            given = given.reshape(known.shape)
        if given.shape != known.shape:
            raise ValueError(
                f"y must have shape {tuple(known.shape)}, as {self._owner} knows it, got {tuple(given.shape)}"
            )
        if id.shape[0] == 0:
            return
        given, known = _comparable(given, known)
        same = (given == known) | (given.isnan() & known.isnan())
        wrong = (~same.reshape(id.shape[0], -1).all(1)).nonzero()[:, 0]
        if wrong.numel():
            place = int(wrong[0])
            raise self._error(given[place].tolist(), known[place].tolist(), int(id[place]))

    def _known(self, id: Tensor) -> Tensor:
        if self._numbers is not None:
            return self._numbers[id]
        labels = self._data.labels_at(id.to(self._data.device))  # of strings: the numbers that they became
        assert labels is not None
        return labels.cpu()

    def _check_length(self, length: int, id: Tensor) -> None:
        if length != id.shape[0]:
            raise ValueError(f"y must have one row per id, {id.shape[0]} of them, got {length}")

    def _error(self, given: Any, known: Any, example: int) -> ValueError:
        return ValueError(
            f"y must be the labels that {self._owner} was made with, got {given!r} for id {example}, whose label is "
            f"{known!r}"
        )


def _column(values: Any) -> Tensor:
    """(N,) numbers in double precision."""
    given = numbers_or_objects("y", values)
    assert isinstance(given, Tensor)  # the data have seen to it
    return given.double()


def _numbers(y: Any) -> Tensor:
    """The labels of a call as one tensor; a pair of columns (K,) becomes (K, 2)."""
    is_pair = isinstance(y, tuple | list) and len(y) > 0 and all(isinstance(part, Tensor) for part in y)
    if is_pair and all(part.dim() == 1 for part in y):
        return torch.stack([part.detach().double() for part in y], 1)
    if not isinstance(y, Tensor) and not isinstance(y, Sequence) and not hasattr(y, "__array__"):
        raise TypeError(f"y must be a tensor or a list of labels, got {type(y).__name__}")
    given = numbers_or_objects("y", y)
    if not isinstance(given, Tensor):
        raise TypeError(f"y must hold numbers, as the constructor's y does, got {given[0]!r}")
    return given


def _comparable(given: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """Both in one floating point type: the coarser of the two, since data sets round labels to single precision."""
    dtype = torch.float64
    if given.is_floating_point() and given.dtype.itemsize < 8:
        dtype = given.dtype
    elif known.is_floating_point() and known.dtype.itemsize < 8:
        dtype = known.dtype
    return given.to(dtype), known.to(dtype)

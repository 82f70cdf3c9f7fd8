"""The rules for labels: what is a task, which value is positive, what is missing.

- Two values are one task, whose positive is the larger: bool, 0/1, -1/1, integers or floats alike. Of strings it is
  the evident one ("yes" beside "no", "1" beside "0"); others need ``positive=``. With ``positive=`` given, that value
  is positive and every other one negative.
- NaN, None and pandas' NA are missing.
- Three or more integers, or strings, of shape (N,) are classes: one task per class, one-vs-rest. Integers that start
  at 0 are their own column numbers; other integers and strings are numbered in sorted order; ``classes=`` says the
  order outright.
- (N, T): one task per column, each by the rule for two values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from fcco._support import checks
from fcco._support.words import positive_word
from fcco.data._convert import numbers_or_objects, place
from fcco.data._draws import exact_dtype

_MOST_CLASSES = 1_000_000  # columns of a model's outputs


@final
@dataclass(frozen=True)
class Labels:
    """Labels of N examples, in one of two forms.

    Args:
        y: class numbers (N,) int64, -1 where missing; or targets (N,) or (N, T) in float32: 1, 0, NaN where missing.
        classes: what class 0, 1, ... is called; None: targets.
        columns: what the columns of a data frame are called; empty: they have numbers.
        positive: the value that was said to be positive, or the string that evidently is; None: neither.
    """

    y: Tensor
    classes: tuple[Any, ...] | None = None
    columns: tuple[str, ...] = ()
    positive: Any = None

    @property
    def num_tasks(self) -> int:
        """T, how many columns a model's outputs have for them."""
        if self.classes is not None:
            return len(self.classes)
        if self.y.dim() == 1:
            return 1
        return int(self.y.shape[1])

    @property
    def matrix(self) -> Tensor:
        """Targets as (N, T)."""
        if self.y.dim() == 1:
            return self.y.unsqueeze(1)
        return self.y

    def name(self, task: int) -> str:
        """What a task is called in messages."""
        if self.classes is not None:
            return f"class {self.classes[task]!r}"
        if self.columns:
            return f"column {self.columns[task]!r}"
        if self.y.dim() == 1:
            return "y"
        return f"column {task}"


def labels_of(
    name: str, value: Any, size: int | None, device: torch.device, *, positive: Any = None, classes: Any = None
) -> Labels:
    """Labels by the rules of this module.

    Args:
        name: what the argument is called.
        value: (N,) or (N, T).
        size: N; None: as many as there are.
        device: where they shall be.
        positive: the value that is positive.
        classes: the classes in the order of the model's columns.

    Example:
        >>> labels_of("y", [-1, 1, None], 3, torch.device("cpu")).y
        tensor([0., 1., nan])
        >>> labels_of("y", ["b", "a", "c"], 3, torch.device("cpu"))
        Labels(y=tensor([1, 0, 2]), classes=('a', 'b', 'c'), columns=(), positive=None)
    """
    if positive is not None and classes is not None:
        raise ValueError(
            "positive and classes must not both be given: positive makes one task, classes makes one per class"
        )
    given = numbers_or_objects(name, value)
    _check_rows(name, given, size)
    columns = tuple(str(column) for column in getattr(value, "columns", ()))
    if isinstance(given, Tensor):
        return _numbers(name, given.to(device), positive, classes, columns)
    if isinstance(given[0], list):
        return _text_columns(name, given, positive, columns, device)
    return _text(name, given, positive, classes, device)


def _numbers(name: str, given: Tensor, positive: Any, classes: Any, columns: tuple[str, ...]) -> Labels:
    """Labels from numbers (N,) or (N, T)."""
    if given.is_complex() or given.dim() > 2:
        raise ValueError(f"{name} must be labels of shape (N,) or (N, T), got {given.dtype} {tuple(given.shape)}")
    numbers = given.to(exact_dtype(given.device))
    if given.dim() == 2:
        return Labels(_targets(name, numbers, positive), columns=columns, positive=positive)
    if classes is not None:
        return Labels(_class_numbers(name, numbers, list(classes)), tuple(classes))
    if positive is not None or _two_values(numbers):
        return Labels(_targets(name, numbers.unsqueeze(1), positive).squeeze(1), positive=positive)
    return _classes(name, numbers)


class Values(NamedTuple):
    """What a loss compares outputs with.

    Args:
        y: (N, ...).
        classes: what 0, 1, ... were called; empty where the numbers stand for themselves.
    """

    y: Tensor
    classes: tuple[Any, ...] = ()


def values_of(name: str, value: Any, size: int, device: torch.device, classes: Any = None) -> Values:
    """What a loss compares outputs with: numbers stay as they are, strings become class numbers.

    Two values that are not 0 and 1 become 0 and 1, so that -1/1 does not reach a cross-entropy.

    Args:
        name: what the argument is called.
        value: (N, ...).
        size: N.
        device: where y shall be.
        classes: what 0, 1, ... are called; empty: numbers stay as they are; None: by the values.
    """
    given = numbers_or_objects(name, value)
    _check_rows(name, given, size)
    if isinstance(given, list):
        if isinstance(given[0], list):
            raise TypeError(f"{name} must be numbers, or one string per example, got strings in columns")
        names = classes or sorted({row for row in given if row is not None})
        return Values(labels_of(name, given, size, device, classes=names).y, tuple(names))
    given = given.to(device)
    if classes:
        return _values_of_classes(name, given, tuple(classes))
    if classes is not None or given.dim() != 1 or given.is_complex() or given.dtype == torch.bool:
        return Values(given)
    return _zero_and_one(given)


def _values_of_classes(name: str, given: Tensor, classes: tuple[Any, ...]) -> Values:
    """Numbers (N,) as positions in the list of classes; a missing one stays NaN where the dtype has it."""
    if given.dim() != 1:
        raise ValueError(f"{name} must have shape ({given.shape[0]},) with classes={classes}, got {tuple(given.shape)}")
    number = _class_numbers(name, given.to(exact_dtype(given.device)), list(classes))
    if given.is_floating_point():
        number = number.to(given.dtype).masked_fill(number < 0, torch.nan)
    return Values(number, classes)


def _zero_and_one(given: Tensor) -> Values:
    """Numbers (N,) of two values as 0 and 1, and all others as they are."""
    if not _two_values(given):
        return Values(given)
    low = given.min()
    high = given.max()
    if bool(high == low) or bool(high.isnan()):
        return Values(given)  # one value, or some are missing: nothing to compare
    return Values((given == high).to(given.dtype), (low.item(), high.item()))


def _check_rows(name: str, given: Tensor | list[Any], size: int | None) -> None:
    rows = len(given) if isinstance(given, list) or given.dim() > 0 else 0
    if rows == 0 or size not in (None, rows):
        shape = tuple(given.shape) if isinstance(given, Tensor) else (rows,)
        wanted = "at least one row" if size is None else f"one row per example, {size} of them"
        raise ValueError(f"{name} must have {wanted}, got shape {shape}")


def _two_values(numbers: Tensor) -> bool:
    """Whether (N,) holds at most two values besides NaN."""
    known = numbers
    if numbers.is_floating_point():
        known = numbers[~numbers.isnan()]
    if known.numel() == 0:
        return True
    return bool(((known == known.min()) | (known == known.max())).all())


def _targets(name: str, numbers: Tensor, positive: Any) -> Tensor:
    """Targets (N, T) in float32 from columns of two values."""
    missing = numbers.isnan()
    infinite = numbers.isinf().nonzero().tolist()
    if infinite:
        row, column = infinite[0]
        raise ValueError(f"{name} must be finite or NaN (missing), got {numbers[row, column].item()} "
                         f"in {place(row, column)}")  # fmt: skip
    if positive is not None:
        if isinstance(positive, str) or not bool((numbers == positive).any()):
            raise ValueError(f"positive must be one of the values of {name}, got {positive!r}")
        is_positive = numbers == positive
    else:
        low = numbers.masked_fill(missing, torch.inf).amin(0)  # (T,)
        high = numbers.masked_fill(missing, -torch.inf).amax(0)  # (T,)
        third = (~missing & (numbers != low) & (numbers != high)).nonzero().tolist()
        if third:
            row, column = third[0]
            values = [value.item() for value in (low[column], numbers[row, column], high[column])]
            raise ValueError(
                f"{name} must hold two values per column, got {values[0]:g}, {values[1]:g} and {values[2]:g} in column "
                f"{column} (the second in row {row})"
            )
        # A column of one value has no positives where that is 0 or below, else no negatives.
        is_positive = (numbers == high) & ((high > low) | (high > 0))
    targets: Tensor = is_positive.to(torch.float32)
    return targets.masked_fill_(missing, torch.nan)


def _classes(name: str, numbers: Tensor) -> Labels:
    missing = numbers.isnan()
    broken = (~missing & (numbers != numbers.round())).nonzero()[:, 0].tolist()
    if broken or bool(numbers.isinf().any()):
        row = broken[0] if broken else int(numbers.isinf().nonzero()[0])
        raise ValueError(
            f"{name} must hold two values, or integers for three or more classes, got {numbers[row].item():g} in "
            f"row {row}"
        )
    whole = numbers.masked_fill(missing, -1).to(torch.int64)
    values = whole[~missing].unique()
    if int(values[0]) == 0 and int(values[-1]) >= _MOST_CLASSES:
        row = int(whole.argmax())
        raise ValueError(
            f"{name} must hold classes below {_MOST_CLASSES} if they start at 0 (class c is column c), got "
            f"{int(values[-1])} in row {row}: number them 0, 1, ... or list them in classes="
        )
    if int(values[0]) == 0:  # as in torch's cross-entropy: class c is column c, whether or not it is seen
        return Labels(whole.masked_fill(missing, -1), tuple(range(int(values[-1]) + 1)))
    number = torch.searchsorted(values, whole)  # (N,) places in the sorted order
    return Labels(number.masked_fill(missing, -1), tuple(values.tolist()))


def _class_numbers(name: str, numbers: Tensor, classes: list[Any]) -> Tensor:
    number = torch.full(numbers.shape, -1, dtype=torch.int64, device=numbers.device)
    known = numbers.isnan()  # (N,) and then those whose class was found
    for column, entry in enumerate(classes):
        here = numbers == entry
        number[here] = column
        known |= here
    unknown = (~known).nonzero()[:, 0].tolist()
    if unknown:
        got = numbers[unknown[0]].item()
        raise ValueError(f"{name} must be one of classes={tuple(classes)}, got {got:g} in row {checks.some(unknown)}")
    return number


def _text(name: str, given: list[Any], positive: Any, classes: Any, device: torch.device) -> Labels:
    """Labels from strings (N,)."""
    seen = sorted({value for value in given if value is not None})
    if positive is None and classes is None:
        positive = positive_word(seen)
    if positive is not None:
        return Labels(_text_targets(name, given, positive).to(device), positive=positive)
    names = seen if classes is None else list(classes)
    if classes is None and len(seen) <= 2:
        example = repr(seen[-1]) if seen else "..."
        raise ValueError(
            f"{name} holds the strings {_quoted(seen)}: name the positive one by positive=..., as in "
            f"fcco.data.Points(x, y, positive={example})"
        )
    strange = [row for row, value in enumerate(given) if value is not None and value not in names]
    if strange:
        got = given[strange[0]]
        raise ValueError(f"{name} must be one of classes={tuple(names)}, got {got!r} in row {checks.some(strange)}")
    number = {value: column for column, value in enumerate(names)}
    return Labels(torch.tensor([number.get(value, -1) for value in given], device=device), tuple(names))


def _text_targets(name: str, given: list[Any], positive: Any) -> Tensor:
    if positive not in given:
        raise ValueError(f"positive must be one of the values of {name}, got {positive!r}")
    missing = torch.tensor([value is None for value in given])
    targets = torch.tensor([float(value == positive) for value in given])
    return targets.masked_fill_(missing, torch.nan)


def _text_columns(
    name: str, rows: list[list[Any]], positive: Any, columns: tuple[str, ...], device: torch.device
) -> Labels:
    """Labels (N, T) from rows with strings in them."""
    if positive is None:
        seen = {value for row in rows for value in row if value is not None}
        if all(isinstance(value, str) for value in seen):
            positive = positive_word(sorted(seen))
    if positive is None:
        raise ValueError(f"{name} holds strings: name the positive one by positive=...")
    if not any(positive in row for row in rows):
        raise ValueError(f"positive must be one of the values of {name}, got {positive!r}")
    missing = torch.tensor([[value is None for value in row] for row in rows])
    targets = torch.tensor([[float(value == positive) for value in row] for row in rows])
    return Labels(targets.masked_fill_(missing, torch.nan).to(device), columns=columns, positive=positive)


def _quoted(values: list[Any]) -> str:
    return " and ".join(repr(value) for value in values) or "of no kind"

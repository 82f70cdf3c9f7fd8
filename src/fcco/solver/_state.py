"""The record of what a solver carries between steps, and the walks over it: save, check, load, fork.

A record is a dataclass whose fields say how they are laid out over ranks (:func:`saved`) or that they follow from the
others (:func:`derived`). Saving, checking, loading (onto another device too) and rolling back walk these fields and
know none of them by name, so a new field is one line. Values are replaced, not written: a step works on a
:func:`fork` and the old record stays as it was until the step is committed. What must be written in place is written
at the commit, last.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum, auto
from typing import Any, NamedTuple, TypeVar, final

import torch
from torch import Tensor, nn

from fcco._support.flat import Flat
from fcco._support.parallel import gather_objects, gather_rows
from fcco._support.sharded import joined, spread, spread_like, whole

_Record = TypeVar("_Record")


class Layout(Enum):
    """How a value is laid out over ranks, hence how it is saved and loaded."""

    SAME = auto()  #: every rank has the same value
    PER_PARAMETER = auto()  #: one tensor per parameter, sharded as the parameter is
    PER_BLOCK = auto()  #: (owned, ...) one row per block that this rank owns
    PER_RANK = auto()  #: each rank has a value of its own
    BY_OWNER = auto()  #: :class:`OwnedRows`, of which each rank takes those of its blocks
    MODULE = auto()  #: a state_dict of the objective
    NESTED = auto()  #: another record


def saved(layout: Layout = Layout.SAME, *, record: type | None = None, host_only: bool = False, **default: Any) -> Any:
    """A field that a checkpoint holds.

    Args:
        layout: how it lies over ranks.
        record: the class of a nested record that may be None.
        host_only: whether no step puts another tensor in its place.
        default: ``default=`` or ``default_factory=``, as of :func:`dataclasses.field`.
    """
    return field(metadata={"layout": layout, "record": record, "host_only": host_only}, **default)


def derived(**default: Any) -> Any:
    """A field that follows from the others; the record's ``after_load`` makes it anew."""
    return field(metadata={"layout": None}, **default)


@final
@dataclass(frozen=True)
class OwnedRows:
    """Some blocks (B,) and a row (B, dim) for each."""

    index: Tensor
    rows: Tensor


@final
@dataclass(frozen=True)
class Placement:
    """Where a record lives: this rank, the parameters beside it, and the objective's state."""

    rank: int
    world: int
    num_blocks: int
    device: torch.device
    parameters: Sequence[nn.Parameter]
    module: nn.Module


class _Slot(NamedTuple):
    """A field that is saved; ``record``: the class of a nested record that may be None."""

    name: str
    layout: Layout
    record: Any


def _slots(record: Any) -> list[_Slot]:
    kept = [item for item in fields(record) if item.metadata.get("layout") is not None]
    return [_Slot(item.name, item.metadata["layout"], item.metadata.get("record")) for item in kept]


def _nested(value: Any, slot: _Slot) -> Any:
    """The nested record; where the solver has none yet, an empty one to check or load a state against."""
    if value is None:
        return slot.record.blank()
    return value


# ---------------------------------------------------------------------- rolling back


def fork(record: _Record) -> _Record:
    """A copy whose fields can be replaced without a trace in the original; tensors are shared."""
    # Shallow: tensors are shared, since values are replaced and not written.
    kind: Any = type(record)
    forked: _Record = object.__new__(kind)  # what copy.copy does, in a fifth of the time
    forked.__dict__.update(record.__dict__)
    for name in _nested_fields(kind):
        value = getattr(record, name)
        if value is not None:
            setattr(forked, name, fork(value))
    return forked


@functools.cache
def _nested_fields(kind: Any) -> tuple[str, ...]:
    return tuple(slot.name for slot in _slots(kind) if slot.layout is Layout.NESTED)


# ---------------------------------------------------------------------- fixed places, for captured steps


class NoPlace(ValueError):
    """A step puts something into the record that has no place to be written to."""


class Change(NamedTuple):
    """A tensor of a record (or a list with one per parameter), and what a step puts in its place."""

    old: Any
    new: Any


def changes(before: Any, after: Any, where: str = "the state") -> list[Change]:
    """What differs between two records of the same kind, nested ones too.

    Raises:
        NoPlace: where something was made, dropped or given another shape.
    """
    found: list[Change] = []
    for item in fields(before):
        if item.metadata.get("host_only"):
            continue
        name = f"{where}.{item.name}"
        _compare(getattr(before, item.name), getattr(after, item.name), name, found)
    return found


def _compare(before: Any, after: Any, name: str, found: list[Change]) -> None:
    if before is after:
        return
    if _comes_or_goes(before, after):
        raise NoPlace(f"{name} comes or goes")
    if isinstance(before, Tensor):
        _check_fits(before, after, name)
        found.append(Change(before, after))
    elif _is_list_of_tensors(before) and _is_list_of_tensors(after):
        found.append(Change(before, after))
    elif isinstance(before, tuple) and isinstance(after, tuple) and len(before) == len(after):
        for old, new in zip(before, after, strict=True):
            _compare(old, new, name, found)
    elif is_dataclass(before) and type(before) is type(after):
        found.extend(changes(before, after, name))


def _comes_or_goes(before: Any, after: Any) -> bool:
    """Whether one of the two is nothing, or a tensor, or has tensors, and the other is not or has fewer or more."""
    if isinstance(before, Tensor) != isinstance(after, Tensor):
        return True
    if _is_list_of_tensors(before) != _is_list_of_tensors(after):
        return True
    if isinstance(before, tuple) and isinstance(after, tuple) and len(before) != len(after):
        return True
    return (before is None) != (after is None)


def _check_fits(place: Tensor, value: Tensor, name: str) -> None:
    if place.shape != value.shape or place.dtype != value.dtype or place.device != value.device:
        raise NoPlace(f"{name} does not keep its shape")


def _is_list_of_tensors(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Tensor) for item in value)


@final
class FixedPlaces:
    """Gives every tensor of a record a place in memory that never changes, for captured steps.

    Args:
        device: tensors elsewhere are the host's and stay as they are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tensors: dict[tuple[Any, ...], Tensor] = {}  # by field, shape and dtype
        self._owners: dict[int, str] = {}  # whose place a tensor is
        self._lists: dict[tuple[Any, ...], Flat] = {}
        self._used: dict[str, int] = {}  # the place that each field has now, by its id
        self.flats: dict[int, Flat] = {}  # the flat storage behind a list, by the list's id

    def tensors(self) -> list[Tensor]:
        """Everything that has a place."""
        found = list(self._tensors.values())
        for flat in self._lists.values():
            found += flat.views
        return found

    @torch.no_grad()
    def move_in(self, record: Any) -> None:
        """Move the record's tensors to their places: values are copied, and the record refers to the places."""
        # A step may have handed one field's tensor to another, whose place is about to be written.
        self._owners = {id(place): key[0] for key, place in self._tensors.items()}
        self._used = {}
        self._replace(record, "", self._apart)
        self._replace(record, "", self._placed_tensor)

    def _replace(self, record: Any, path: str, replaced: Callable[[Tensor, str], Tensor]) -> None:
        for item in fields(record):
            if item.metadata.get("host_only"):
                continue
            value = getattr(record, item.name)
            new = self._replaced(value, f"{path}.{item.name}", replaced)
            if new is not value:
                setattr(record, item.name, new)

    def _replaced(self, value: Any, path: str, replaced: Callable[[Tensor, str], Tensor]) -> Any:
        if isinstance(value, Tensor):
            return replaced(value, path)
        if _is_list_of_tensors(value):
            return self._placed_list(value, path)
        if isinstance(value, OwnedRows):
            index = replaced(value.index, f"{path}.index")
            return OwnedRows(index, replaced(value.rows, f"{path}.rows"))
        if isinstance(value, tuple) and any(isinstance(part, Tensor) for part in value):
            parts = [self._replaced(part, f"{path}.{place}", replaced) for place, part in enumerate(value)]
            if hasattr(value, "_fields"):
                return type(value)(*parts)
            return tuple(parts)
        if is_dataclass(value) and any(item.metadata for item in fields(value)):
            self._replace(value, path, replaced)  # a nested record
        return value

    def _apart(self, value: Tensor, path: str) -> Tensor:
        """A copy of what stands at another field's place."""
        if self._owners.get(id(value), path) == path:
            return value
        return value.clone()

    def _placed_tensor(self, value: Tensor, path: str) -> Tensor:
        if value.device != self._device:
            return value
        key = (path, tuple(value.shape), value.dtype)
        place = self._tensors.get(key)
        if place is None:
            place = value.clone()
            self._tensors[key] = place
        elif value is not place:
            place.copy_(value)
        self._used[path] = id(place)
        return place

    def _placed_list(self, value: list[Tensor], path: str) -> list[Tensor]:
        if value[0].device != self._device:
            return value
        key = (path, *(tuple(tensor.shape) for tensor in value))
        flat = self._lists.get(key)
        if flat is None:
            flat = Flat(value)
            self._lists[key] = flat
            self.flats[id(flat.views)] = flat
        if value is not flat.views:
            flat.copy_from(value)
        self._used[path] = id(flat)
        return flat.views

    def used(self) -> tuple[tuple[str, int], ...]:
        """Which places the record's tensors have now: a graph knows these addresses."""
        return tuple(self._used.items())


# ---------------------------------------------------------------------- saving


def save_record(record: Any, place: Placement) -> dict[str, Any]:
    """The record as plain values and tensors over all ranks (each rank must call this)."""
    return {slot.name: _save(getattr(record, slot.name), slot.layout, place) for slot in _slots(record)}


def _save(value: Any, layout: Layout, place: Placement) -> Any:
    # None on one rank may be a value on another, so this comes first.
    if layout is Layout.PER_RANK:
        return gather_objects(cloned(value, device="cpu"))
    if value is None:
        return None
    if layout is Layout.NESTED:
        return save_record(value, place)
    if layout is Layout.PER_PARAMETER:
        return [cloned(joined(tensor, p)) for tensor, p in zip(value, place.parameters, strict=True)]
    if layout is Layout.PER_BLOCK:
        return gather_rows(value, place.num_blocks)
    if layout is Layout.BY_OWNER:
        parts = gather_objects((value.index.cpu(), value.rows.cpu()))
        return [torch.cat([index for index, _ in parts]), torch.cat([rows for _, rows in parts])]
    return cloned(value)


def cloned(value: Any, device: torch.device | str | None = None) -> Any:
    """A deep copy in which every tensor is detached, whole and cloned."""
    if isinstance(value, Tensor):
        copied = whole(value.detach()).clone()
        return copied if device is None else copied.to(device)
    if isinstance(value, Mapping):
        return {key: cloned(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(cloned(item, device) for item in value)
    return value


# ---------------------------------------------------------------------- checking


def check_record(record: Any, state: Any, place: Placement, where: str = "the state") -> None:
    """Raise where a saved state does not fit the record; names the field."""
    if not isinstance(state, dict):
        raise TypeError(f"{where} must be a dict, got {type(state).__name__}")
    slots = _slots(record)
    wanted = [slot.name for slot in slots]
    missing = [name for name in wanted if name not in state]
    unknown = [name for name in state if name not in wanted]
    if missing or unknown:
        reason = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown)}, which is unknown here"
        raise ValueError(f"{where} is not one of this {type(record).__name__}: it {reason}")
    for slot in slots:
        mine = getattr(record, slot.name)
        if slot.name == "engine" and state[slot.name] is None:
            raise ValueError(f"{where} lacks {slot.name}")
        if state[slot.name] is not None or _is_count(mine, slot):
            _check(mine, state[slot.name], slot, place)


def _check(value: Any, state: Any, slot: _Slot, place: Placement) -> None:
    name = slot.name
    layout = slot.layout
    if layout is Layout.NESTED:
        check_record(_nested(value, slot), state, place, f"the state's {name}")
    elif layout is Layout.PER_PARAMETER:
        wanted = [tuple(p.shape) for p in place.parameters]
        shapes = [tuple(tensor.shape) for tensor in state]
        if shapes != wanted:
            raise ValueError(f"the state's {name} has tensors of shapes {shapes}, this solver trains {wanted}")
    elif layout is Layout.PER_BLOCK:
        _check_rows(value, state, place, name)
    elif layout is Layout.MODULE:
        check_module_state(place.module, state, name)
    elif _is_count(value, slot):
        if not isinstance(state, int) or isinstance(state, bool) or state < 0:
            raise ValueError(f"the state's {name} must be a whole number >= 0, got {state!r}")
    elif layout is Layout.SAME and isinstance(value, Tensor):
        shape = tuple(torch.as_tensor(state).shape)
        if shape != tuple(value.shape):
            raise ValueError(f"the state's {name} has shape {shape}, this solver's {tuple(value.shape)}")


def _is_count(value: Any, slot: _Slot) -> bool:
    return slot.layout is Layout.SAME and isinstance(value, int) and not isinstance(value, bool)


def _check_rows(value: Tensor | None, state: Tensor, place: Placement, name: str) -> None:
    trailing = tuple(state.shape[1:]) if value is None else tuple(value.shape[1:])
    wanted = (place.num_blocks, *trailing)
    if tuple(state.shape) != wanted:
        raise ValueError(f"the state's {name} has shape {tuple(state.shape)}, this solver needs {wanted}")


def check_module_state(module: nn.Module, state: dict[str, Any], name: str = "objective") -> None:
    """Raise where a state_dict does not fit the module; names the entries."""
    own = module.state_dict()
    wrong = sorted(set(own) ^ set(state))
    wrong += [key for key in own if key not in wrong and not _same_kind(own[key], state[key])]
    if wrong:
        raise ValueError(f"the state's {name} does not fit this objective at: {', '.join(wrong)}")


def _same_kind(mine: Any, theirs: Any) -> bool:
    if not isinstance(mine, Tensor):
        return type(mine) is type(theirs)
    return isinstance(theirs, Tensor) and mine.shape == theirs.shape and mine.dtype == theirs.dtype


# ---------------------------------------------------------------------- loading


def load_record(record: _Record, state: dict[str, Any], place: Placement) -> _Record:
    """A record like the given one, with the values of a saved state; the given one is left alone."""
    loaded = copy.copy(record)
    for slot in _slots(record):
        setattr(loaded, slot.name, _load(getattr(record, slot.name), state[slot.name], slot, place))
    if hasattr(loaded, "after_load"):
        loaded.after_load()
    return loaded


def _load(value: Any, state: Any, slot: _Slot, place: Placement) -> Any:
    layout = slot.layout
    if layout is Layout.PER_RANK:
        if place.rank >= len(state):  # more ranks than there were: this one starts afresh
            return value
        return cloned(state[place.rank], place.device)
    if state is None:
        return None
    if layout is Layout.NESTED:
        return load_record(_nested(value, slot), state, place)
    if layout is Layout.PER_PARAMETER:
        return spread_like(state, place.parameters)
    if layout is Layout.PER_BLOCK:
        # Block i lies with rank i mod world, however many ranks there were.
        mine = state[place.rank :: place.world].to(place.device)
        return mine.clone() if value is None else mine.to(value.dtype, copy=True)
    if layout is Layout.BY_OWNER:
        index, rows = state
        kept = index % place.world == place.rank
        return OwnedRows(index[kept].to(place.device), rows[kept].to(place.device, value.rows.dtype))
    if layout is Layout.MODULE:
        return spread_module_state(place.module, state)
    return cloned(state, place.device)


def spread_module_state(module: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """A state of the objective, laid out over ranks as the objective is."""
    own = module.state_dict()
    return {name: spread(value, own[name]) for name, value in state.items()}

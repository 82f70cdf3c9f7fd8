"""Which form an objective gets: the one that it names, or the generic one."""

from __future__ import annotations

from typing import Protocol

from fcco.memory._table import OutputTable
from fcco.memory.forms._form import Form, TableObjective
from fcco.memory.forms._generic import GenericForm

#: what a form speaks of: where a subclass has another one, its parent's form is not its own
_DESCRIBED = ("values", "outer", "outer_and_slope")


class NamesItsForm(TableObjective, Protocol):
    """An objective that may name a fast form."""

    def table_form(self, table: OutputTable) -> Form | None:
        """The form; None: the generic one."""


def form_of(objective: NamesItsForm, table: OutputTable) -> Form:
    """F as a function of the table, in the fastest form that there is.

    Args:
        objective: what the table is for.
        table: the outputs.
    """
    form = None
    if speaks_for_itself(objective):
        form = objective.table_form(table)
    if form is None:
        form = GenericForm(objective, table)
    return form


def speaks_for_itself(objective: NamesItsForm) -> bool:
    """Whether no class below the one that names the form (and no instance) has changed what the form is of."""
    # A subclass with another f would else be evaluated by its parent's formula, in silence.
    classes = type(objective).__mro__
    named_at = _defined_at(classes, "table_form")
    changed_below = any(_defined_at(classes, name) < named_at for name in _DESCRIBED)
    changed_here = any(name in vars(objective) for name in _DESCRIBED)
    return not (changed_below or changed_here)


def _defined_at(classes: tuple[type, ...], name: str) -> int:
    """How far up the classes, the most special first, a method is defined."""
    return next(place for place, part in enumerate(classes) if name in vars(part))

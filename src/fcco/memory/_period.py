"""How often the whole table is evaluated."""

from __future__ import annotations

PAIR = 200.0  # operations of a network that take as long as a pair
SHARE = 0.1  # of the network's work, for evaluations of the whole table
OFTEN = 1 / 25  # of the table may always change between two of them


def choose_period(examples: int, draws: int, cost: int, work: int, max_changed_fraction: float) -> int:
    """Steps between two evaluations of the whole table.

    Often enough that a 25th of the table changes between two evaluations, and seldom enough that they take less than a
    tenth of the steps' work; but never so seldom that more changes than the form can do without. It depends on no
    clock, so that runs repeat.

    Args:
        examples: N.
        draws: per step, over all ranks.
        cost: of an evaluation, in pairs.
        work: the network's operations per step, over all ranks.
        max_changed_fraction: of the form.

    Example:
        >>> choose_period(100_000, 10, cost=10**6, work=10**15, max_changed_fraction=1 / 12)
        400
    """
    turn = examples / draws  # steps that renew every entry once
    cheap = PAIR * cost / (SHARE * max(work, 1))
    return max(1, round(min(max(turn * OFTEN, cheap), turn * max_changed_fraction)))

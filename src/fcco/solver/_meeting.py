"""Where the ranks of a step meet, and how all of them hear of one that fails on its way there."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from fcco._support.parallel import RankError, first_line, gather_objects, rank_and_world
from fcco.solver._gradients import NonFiniteError

Join = Callable[[Exception], None]


@final
class Meeting:
    """The next reduction over ranks of a step.

    The others wait there for this rank. Where it fails on its way, it goes there all the same and says so: every rank
    then raises, in the same step, and nobody waits until the group's time is up.

    Attributes:
        step: the step that this rank is at.
    """

    def __init__(self) -> None:
        self.step = 0
        self._join: Join | None = None

    def set_out(self, step: int, join: Join) -> None:
        """A step begins.

        Args:
            step: its number.
            join: takes part in its first reduction for a rank that has failed; raises its error.
        """
        self.step = step
        self._join = join

    def then(self, join: Join | None) -> None:
        """That reduction is over: the next one; None: there is none."""
        self._join = join

    def tell(self, error: Exception) -> None:
        """Take an error to where the others wait for this rank."""
        join = self._join
        self._join = None
        if join is None or isinstance(error, RankError) or rank_and_world()[1] == 1:
            return  # they have heard of it, or there is nobody
        join(error)


def nonfinite_everywhere(blame: Callable[[], NonFiniteError]) -> Exception:
    """The error of a step that was not finite on some rank; every rank must call this, and names the others' blocks."""
    try:
        error: Exception = blame()
    except Exception as other:  # the ranks wait for each other below
        error = other
    rank, world = rank_and_world()
    if world == 1:
        return error
    is_mine = not isinstance(error, NonFiniteError) or bool(error.blocks)
    said = None
    if is_mine:
        said = first_line(error)
    everyone = gather_objects(said)
    elsewhere = [f"rank {other}: {words}" for other, words in enumerate(everyone) if words and other != rank]
    if is_mine or not elsewhere:
        return error
    return NonFiniteError(f"not finite on another rank; {'; '.join(elsewhere)}", [])

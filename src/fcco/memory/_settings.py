"""output_memory: the recipe, and its settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from fcco._support import checks
from fcco.methods import estimators, trackers
from fcco.methods._recipes import Method
from fcco.methods.schedules import Schedule


@final
@dataclass(frozen=True)
class OutputMemory:
    """What the output memory does with its table.

    Args:
        importance: p in [0, 1]: the share of the draws that goes by how much an example matters.
        cap: no draw pushes more than this many times the mean push of its stratum; None: no cap.
        balance: rescale the pushes so that they add up to zero wherever F does not feel a common shift; where that
            is the whole table, both sides to what they add up to in it.
        refresh: steps between two evaluations of the whole table; None: chosen so that they stay cheap.
        renewal: in (0, 1]: how much of the chances each of them renews; 1: all, earlier ones are forgotten.
    """

    importance: float = 0.5
    cap: float | None = 3.0
    balance: bool = True
    refresh: int | None = None
    renewal: float = 0.2

    def __post_init__(self) -> None:
        checks.fraction("importance", self.importance)
        if self.cap is not None and checks.positive("cap", self.cap) < 1.0:
            raise ValueError(f"cap must be >= 1 or None, got {self.cap}")
        checks.flag("balance", self.balance)
        if self.refresh is not None:
            checks.positive_int("refresh", self.refresh)
        if checks.fraction("renewal", self.renewal) == 0.0:
            raise ValueError("renewal must be > 0: else the chances stay what they were at the start")


def output_memory(
    *,
    importance: float = 0.5,
    cap: float | None = 3.0,
    balance: bool = True,
    refresh: int | None = None,
    renewal: float = 0.2,
    alpha: Schedule | None = None,
) -> Method:
    r"""Output memory: exact weights from a table of the last output of every example, draws by those weights.

    ::

        draw examples k by q_k = (1 - p)/N + p |c_k| / sum |c|, a number B of each class (c: mean of the last refreshes)
        s_k = outputs of the drawn examples at w_t, written into the table
        c_k = dPhi/ds_k at the table, where F(w) = Phi(s_1(w), ..., s_n(w))
        v_k = c_k / (q_k B), capped, rescaled so that they add up to zero
        step along sum_k v_k grad s_k(w_t)

    For objectives that depend on the weights through one output an example (:class:`fcco.objectives.OutputObjective`),
    together with a :class:`fcco.memory.MemoryLoader`.

    Args:
        importance: p, see :class:`OutputMemory`; so are ``cap``, ``balance``, ``refresh`` and ``renewal``.
        alpha: momentum, z = (1 - alpha) z + alpha G; None: the plain gradient (Adam has momentum of its own).

    Example:
        >>> output_memory(cap=6.0).memory
        OutputMemory(importance=0.5, cap=6.0, balance=True, refresh=None, renewal=0.2)
    """
    memory = OutputMemory(importance, cap, balance, refresh, renewal)
    estimator = estimators.Plain() if alpha is None else estimators.Momentum(alpha)
    return Method("output-memory", trackers.NoTracker(), estimator, lag=0, memory=memory)

"""Draw: one draw of blocks and samples, probed from several points with the same randomness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, final

from torch import Tensor

from fcco._support.grad_mode import graph_kept
from fcco._support.module_state import Snapshot
from fcco._support.sharded import copies
from fcco.methods._box import Point, Probe, WeighAt
from fcco.methods.estimators import Weight
from fcco.solver._chunks import Pieces, by_block
from fcco.solver._evaluator import Evaluator
from fcco.solver._gradients import all_finite, clear, finite_rows

Weights = Sequence[Tensor] | None  # of the network; None: w_t, as they are


@final
class Draw:
    """One draw (index, xi), probed from several points: the same randomness at each, and of all passes
    only the one at w_t leaves its mark on buffers and random state.

    Args:
        evaluator: of the objective.
        index: (B,) the blocks.
        data: their samples.
        scale: what a block counts in the gradient: 1/B, and with several ranks a rank's share.
        before: buffers and random state before the first probe; None in a captured step.
        weights_at: the weights at each point; None: w_t, as they are.
        tangents: v, one tensor per parameter, where J v is wanted at w_t.
        pieces: the draw in pieces that fit into memory; None: whole.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        index: Tensor,
        data: tuple[Any, ...],
        scale: float,
        before: Snapshot | None,
        weights_at: Mapping[Point, Weights],
        tangents: Sequence[Tensor] | None = None,
        pieces: Pieces | None = None,
    ) -> None:
        self._evaluator = evaluator
        self.index = index
        self.data = data
        self._scale = scale
        self._before = before
        self._weights_at = weights_at
        self._tangents = tangents
        self._pieces = pieces
        # where a gradient was taken, at which u, with which weight: all that replaying it takes
        self._probed: list[tuple[Weights, Tensor, Weight]] = []
        self._begun = False
        self.now: list[Tensor] | None = None  # a copy of w_t, made for a probe elsewhere after the one at w_t
        self.seen: list[Tensor] = []  # (B, ...) each: what has to be finite

    def probe(self, point: Point, weigh_at: WeighAt, weight: Weight | None) -> Probe:
        """Evaluate at a point; where ``weight`` is given, add weight * G to ``p.grad``.

        Args:
            weigh_at: from the rows g and J v just seen, the rows at which grad f is taken.
        """
        weights = self._weights_at[point]
        scale = None
        if weight is not None:
            scale = weight * self._scale
        with self._at(weights):
            if self._pieces is None:
                probe = self._whole(weigh_at, scale, weights is None)
            else:
                probe = self._pieces.probe(weigh_at, scale)
        self._begun = True
        self.seen.append(probe.g)
        if weight is not None:
            assert probe.f is not None
            assert probe.u is not None
            self.seen.append(probe.f)
            self._probed.append((weights, probe.u, weight))
        return probe

    def _at(self, weights: Weights) -> AbstractContextManager[object]:
        """The same randomness at each point, and of all passes only the one at w_t leaves its mark."""
        evaluator = self._evaluator
        if weights is None:
            return evaluator.no_sync()
        # The graph of the probe at w_t is gone by now: room for a copy.
        if self._begun and self.now is None and evaluator.places.copies_weights:
            self.now = copies(evaluator.parameters)
        return evaluator.places.elsewhere(weights, self.now, self._before, self._begun)

    def _whole(self, weigh_at: WeighAt, scale: Weight | None, is_now: bool) -> Probe:
        evaluator = self._evaluator
        tangents = self._tangents if is_now else None  # J v is asked for at w_t alone
        product = None
        with graph_kept(scale is not None or tangents is not None):
            if tangents is None:
                g = evaluator.inner_to_weigh(self.index, self.data)
            else:
                g, product = evaluator.inner_and_jvp(self.index, self.data, tangents)
                product = product.to(evaluator.dtype)
        return evaluator.weighed(self.index, g, product, weigh_at, scale)

    @property
    def finite(self) -> Tensor:
        """Which blocks (B,) have nothing but finite numbers in what was seen of them."""
        return finite_rows(self.seen)

    # ------------------------------------------------------------------ whose gradient is not finite

    def blame(self) -> list[int]:
        """The blocks whose gradient is not finite, found by replaying the draw block by block.

        Under FSDP a pass is taken by all ranks or by none, and only some have blocks to replay: no block is named.
        """
        if self._evaluator.is_sharded:
            return []
        try:
            return self._replayed(alone=True)
        except Exception:  # a model may refuse a single block, as BatchNorm does
            return self._replayed(alone=False)

    def _replayed(self, *, alone: bool) -> list[int]:
        found = []
        for place, block in enumerate(self.index.tolist()):
            finite = [self._replay(place, alone, weights, u, weight) for weights, u, weight in self._probed]
            if not all(finite):
                found.append(block)
        return found

    def _replay(self, place: int, alone: bool, weights: Weights, u: Tensor, weight: Weight) -> bool:
        """Whether the gradient of one block is finite; ``alone``: with its own data only, where they can be told."""
        evaluator = self._evaluator
        only = slice(place, place + 1)
        index = self.index
        data = self.data
        row = only  # where in the rows of inner the block stands
        if alone and by_block(self.index, data):
            index = index[only]
            data = tuple(item[only] for item in data)
            row = slice(0, 1)
        # The same dropout masks as in the step, or the culprit may not show.
        assert self._before is not None
        evaluator.module_state.restore(self._before)
        with evaluator.at(weights):
            clear(evaluator.parameters)
            g = evaluator.inner(index, data)[row]
            _, slope = evaluator.outer(self.index[only], u[only], weight * self._scale)
            evaluator.backward(g, u[only], slope)
        return all_finite([p.grad for p in evaluator.parameters if p.grad is not None])

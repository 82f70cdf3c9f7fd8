"""Two published ideas for ranking losses, written anew from their descriptions; for one label.

Queue: imbalanced-losses warms up with cross-entropy, then blends into Smooth-AP (Brown et al., ECCV 2020) of the batch
together with a circular queue of earlier scores. roc-star: squared hinges between the batch and the last epoch's scores
of the other class, the margin set anew per epoch from how many pairs were in the wrong order.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.arena.network import Course, cosine, network, predict, run_length
from benchmarks.arena.plain import batch_size, shuffled
from benchmarks.arena.problems import Problem, Split
from benchmarks.kept import Row

Setting = dict[str, Any]
WARM = 0.25  # of a run, with cross-entropy alone
BLEND = 0.1  # of a run, from one loss to the other
QUEUE = 2048
ONE_LABEL = ("a9a", "hiv", "phishing", "sparse")  # tables


def settings(problem: Problem) -> list[Setting]:
    """12: learning rate, decay, and the loss's own knob."""
    if problem.table not in ONE_LABEL:
        return []
    return [
        {"lr": lr, "decay": decay, "knob": knob} for lr, decay, knob in product((3e-4, 1e-3, 3e-3), (0.0, 1.0), (0, 1))
    ]


class SmoothAPQueue:
    """1 - Smooth-AP of the batch's positives among batch and queue.

    Args:
        temperature: of the sigmoid in place of the step.
        size: scores kept.
    """

    def __init__(self, temperature: float, size: int = QUEUE) -> None:
        self.temperature = temperature
        self.size = size
        self.scores = torch.zeros(0)
        self.positive = torch.zeros(0, dtype=torch.bool)

    def __call__(self, scores: Tensor, y: Tensor) -> Tensor:
        """Of scores (B,) and labels (B,); 0 with a graph where there is no positive."""
        positive = y == 1
        pool = torch.cat([scores, self.scores])  # (M,)
        pool_positive = torch.cat([positive, self.positive])
        self.scores = pool.detach()[: self.size]
        self.positive = pool_positive[: self.size]
        if not bool(positive.any()):
            return 0.0 * scores.sum()
        above = torch.sigmoid((pool.unsqueeze(0) - scores[positive].unsqueeze(1)) / self.temperature)  # (P, M)
        own = positive.nonzero()[:, 0]
        above = above.scatter(1, own.unsqueeze(1), 0.0)  # nobody stands above itself
        rank = 1 + above.sum(1)
        rank_positive = 1 + above[:, pool_positive].sum(1)
        return 1 - (rank_positive / rank).mean()


class RocStar:
    """Squared hinges of batch scores against the last epoch's of the other class.

    Args:
        delta: how many pairs in the right order, per pair in the wrong one, the margin takes in.
        most: scores of each class that are compared with.
    """

    def __init__(self, delta: float, most: int = 1000) -> None:
        self.delta = delta
        self.most = most
        self.margin = 0.0
        self.pools: tuple[Tensor, Tensor] | None = None  # of negatives and positives

    def begin_epoch(self, scores: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Take over the scores (N,) of the epoch before, and the margin that they ask for."""
        pools = []
        for value in (0, 1):
            pool = scores[y == value]
            pools.append(pool[torch.randperm(len(pool), generator=generator)[: self.most]])
        gaps = (pools[1].unsqueeze(1) - pools[0].unsqueeze(0)).flatten()
        wrong = int((gaps < 0).sum())
        right = gaps[gaps >= 0].sort().values
        self.margin = 0.0
        if len(right) > 0:
            place = min(int(self.delta * wrong), len(right) - 1)
            self.margin = float(right[place])
        self.pools = (pools[0], pools[1])

    def __call__(self, scores: Tensor, y: Tensor) -> Tensor:
        """Of scores (B,) in (0, 1) and labels (B,)."""
        assert self.pools is not None
        negatives, positives = self.pools
        from_positives = self._hinge(scores[y == 1].unsqueeze(1) - negatives.unsqueeze(0))
        from_negatives = self._hinge(positives.unsqueeze(0) - scores[y == 0].unsqueeze(1))
        return from_positives + from_negatives

    def _hinge(self, gap: Tensor) -> Tensor:
        if gap.numel() == 0:
            return gap.sum()
        return (self.margin - gap).clamp(min=0).square().mean()


def _blend(progress: float) -> float:
    """The ranking loss's share."""
    return min(max((progress - WARM) / BLEND, 0.0), 1.0)


def run_queue(split: Split, setting: Setting, seed: int) -> Row:
    """Cross-entropy, then Smooth-AP with a queue; the knob chooses its temperature."""
    loss = SmoothAPQueue((0.1, 1.0)[setting["knob"]])
    model = network(split, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=setting["lr"], weight_decay=setting["decay"])
    course = Course(split, model, run_length(split))
    model.train()
    for rows in shuffled(len(split.x_train), batch_size(split), seed):
        progress = course.seen / course.length
        share = _blend(progress)
        cosine(optimizer, setting["lr"], progress)
        scores = model(split.x_train[rows])[:, 0]
        y = split.y_train[rows]
        total = (1 - share) * functional.binary_cross_entropy_with_logits(scores, y)
        if share > 0:
            total = total + share * loss(scores, y)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        course.advance(len(rows))
        if course.ended:
            break
    return course.row()


def run_roc_star(split: Split, setting: Setting, seed: int) -> Row:
    """Cross-entropy for the first epoch, then roc-star's loss of probabilities; the knob chooses delta."""
    loss = RocStar((1.0, 2.0)[setting["knob"]])
    model = network(split, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=setting["lr"], weight_decay=setting["decay"])
    course = Course(split, model, run_length(split))
    generator = torch.Generator().manual_seed(seed)
    model.train()
    epoch = 0
    for rows in shuffled(len(split.x_train), batch_size(split), seed):
        due = course.seen // len(split.x_train)
        if due > epoch:
            epoch = due
            before = torch.sigmoid(predict(model, split.x_train)[:, 0])
            loss.begin_epoch(before, split.y_train, generator)
        cosine(optimizer, setting["lr"], course.seen / course.length)
        scores = model(split.x_train[rows])[:, 0]
        y = split.y_train[rows]
        if epoch == 0:
            total = functional.binary_cross_entropy_with_logits(scores, y)
        else:
            total = loss(torch.sigmoid(scores), y)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        course.advance(len(rows))
        if course.ended:
            break
    return course.row()

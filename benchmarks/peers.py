"""fcco against LibAUC 2.0.1 in one run: the same u and score gradients, step times, and inputs that are hard.

Run: .venv/bin/python benchmarks/peers.py --out results/peers/peers.json
LibAUC is installed without its dependencies (pip install --no-deps libauc==2.0.1); its losses and optimizers import.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import itertools
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

import fcco
from fcco.data import Batch, Examples, Points, Queries
from fcco.lab.bench.operations import operations
from fcco.objectives import NDCG, AveragePrecision, GlobalContrastive, ListNet, Logistic, PartialAUC, SquaredHinge
from fcco.objectives._ndcg import ideal_dcg

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import libauc
    from libauc import losses, optimizers

CPU = torch.device("cpu")
EMPTY = -1.0e4  # log u at the start: 0 in value, as LibAUC's u
BATCH, POSITIVES = 640, 64  # the batch of the speed table, and of AP and pAUC throughout
QUERIES, RELEVANT, OTHERS = 8, 8, 72  # the same 640 and 64 as queries
AP_BOUND = 4.0  # LibAUC's step over ours
BOUND = 1.0  # of the other losses
COPIES = 32  # of a batch, fed in turn: fcco remembers what follows from the last batch, which training never repeats

Draw = Callable[[torch.Generator], Batch]


class Table(nn.Module):
    """A free score (or two feature vectors) for each example: score gradients are then ``h.grad``."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.h = nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.h[x]


class Whole(Table):
    """The same where a batch is the whole table: no lookup, so that a step's time is the loss's own."""

    def forward(self, x: Tensor) -> Tensor:
        return self.h


# ---------------------------------------------------------------------- the same u and the same gradients


@dataclass
class Pair:
    """One loss of LibAUC and the objective of fcco that means the same.

    Attributes:
        objective: fcco's, over a :class:`Table`.
        shape: of the table.
        draw: a step's batch.
        loss: LibAUC's, from the outputs (K, ...) and the batch.
        rows: LibAUC's u of the blocks as fcco's rows (B, dim) (log u where fcco has log u), from the same two.
        u0: fcco's start, 0 in value.
        ours: what of fcco's rows is compared, where that is not all of them.
        prepare: changes the scores before a step.
        factor: LibAUC's gradient over fcco's.
        factor_is: the factor in words.
        definition: what has to be set or kept in mind for the two to be the same thing.
    """

    name: str
    gamma: float
    steps: int
    objective: fcco.Objective
    shape: tuple[int, ...]
    draw: Draw
    loss: Callable[[Tensor, Batch], Tensor]
    rows: Callable[[Tensor, Batch], Tensor]
    u0: float
    factor: float
    factor_is: str
    definition: str
    ours: Callable[[Tensor, Tensor], Tensor] = field(default=lambda rows, outputs: rows)
    prepare: Callable[[Tensor, Batch], Tensor] = field(default=lambda h, batch: h)
    loose: float = 0.0  # what LibAUC's own single-precision steps cost in float64


@dataclass
class Agreement:
    name: str
    dtype: str
    gamma: float
    steps: int
    u: float
    gradient: float
    bound: float
    factor: float
    factor_is: str
    definition: str

    @property
    def holds(self) -> bool:
        return self.u <= self.bound and self.gradient <= self.bound


def first_positive(num_positives: int, num_examples: int) -> Points:
    """Examples whose x is their number, the first ones positive."""
    number = torch.arange(num_examples)
    return Points(number, number < num_positives)


def imbalanced(num_positives: int, num_examples: int) -> Draw:
    """Draws 64 of the positives (the first examples of the set) and 576 negatives, 0/1 labels."""

    def draw(generator: torch.Generator) -> Batch:
        index = torch.randperm(num_positives, generator=generator)[:POSITIVES]
        negatives = torch.randperm(num_examples - num_positives, generator=generator)[: BATCH - POSITIVES]
        id = torch.cat([index, num_positives + negatives])
        return Batch(id, id, index, y=(id < num_positives).long(), block_pos=torch.arange(POSITIVES))

    return draw


def average_precision(gamma: float) -> Pair:
    theirs = losses.AveragePrecisionLoss(data_len=2000, gamma=gamma, device=CPU)
    theirs.u_all, theirs.u_pos = (u.to(torch.get_default_dtype()) for u in (theirs.u_all, theirs.u_pos))
    return Pair(
        name="AP (AveragePrecisionLoss)",
        gamma=gamma,
        steps=8,
        objective=AveragePrecision(Table(2000), first_positive(100, 2000)),
        shape=(2000,),
        draw=imbalanced(100, 2000),
        loss=lambda h, batch: theirs(h, batch.y, batch.id),
        rows=lambda h, batch: torch.cat([theirs.u_pos[batch.index], theirs.u_all[batch.index]], 1).log(),
        u0=EMPTY,
        factor=1.0,
        factor_is="1",
        definition="the same at every gamma; batch.weight None (plain means over the batch, as LibAUC's)",
    )


def one_way(gamma: float) -> Pair:
    theirs = losses.pAUC_DRO_Loss(data_len=2000, gamma=gamma, Lambda=1.0, device=CPU)
    theirs.u_pos = theirs.u_pos.to(torch.get_default_dtype())
    return Pair(
        name="pAUC one-way (pAUC_DRO_Loss)",
        gamma=gamma,
        steps=8,
        objective=PartialAUC(Table(2000), first_positive(100, 2000), temperature=1.0),
        shape=(2000,),
        draw=imbalanced(100, 2000),
        loss=lambda h, batch: theirs(h, batch.y, batch.id),
        rows=lambda h, batch: theirs.u_pos[batch.index].log(),
        u0=EMPTY,
        factor=1.0,
        factor_is="1",
        definition="the same at every gamma; batch.weight None",
    )


def pairs_of_views(num_examples: int, size: int) -> Draw:
    def draw(generator: torch.Generator) -> Batch:
        id = torch.randperm(num_examples, generator=generator)[:size]
        return Batch(id, id, id, block_pos=torch.arange(size))

    return draw


def one_modal(gamma: float, *, equal_views: bool) -> Pair:
    size, tau = 48, 0.5
    with silent():
        theirs = losses.GCLoss_v1(N=100, tau=tau, gamma=gamma, device=CPU)
        theirs.adjust_gamma(1)  # from its first epoch on LibAUC uses gamma itself; before it, 1 for new blocks

    def ours(rows: Tensor, outputs: Tensor) -> Tensor:
        first, second = normalize(outputs.detach(), dim=2).unbind(1)
        return (rows + (first * second).sum(1, keepdim=True) / tau).logsumexp(1, keepdim=True) - torch.tensor(2.0).log()

    alike = "two equal views: both u of an example are then one, and the positive pair's similarity is always 1"
    apart = (
        "gamma = 1 only: LibAUC keeps one u for both views (their mean) and leaves the positive pair out of u, so "
        "that u and its moving average are other quantities; here u times exp(positive/tau), averaged over views"
    )
    return Pair(
        name="contrastive, one modality (GCLoss_v1)" + (", equal views" if equal_views else ""),
        gamma=gamma,
        steps=6,
        objective=GlobalContrastive(Table(100, 2, 16), Examples(torch.arange(100)), temperature=tau),
        shape=(100, 2, 16),
        draw=pairs_of_views(100, size),
        loss=lambda h, batch: theirs(h[:, 0], h[:, 1], batch.index),
        rows=lambda h, batch: theirs.u[batch.index].log(),
        u0=EMPTY,
        factor=2.0,
        factor_is="2 (LibAUC adds up the two views, fcco takes their mean)",
        definition=alike if equal_views else apart,
        ours=ours,
        prepare=(lambda h, batch: h[:, :1].expand_as(h)) if equal_views else (lambda h, batch: h),
    )


def two_modal(gamma: float) -> Pair:
    size, tau = 48, 0.5
    with silent():
        theirs = losses.GCLoss_v2(N=100, tau=tau, gamma=gamma)
        theirs.adjust_gamma(1)

    def loss(h: Tensor, batch: Batch) -> Tensor:
        first, second = normalize(h, dim=2).unbind(1)  # LibAUC takes features of length 1
        return theirs(first, second, batch.index)[0]

    def rows(h: Tensor, batch: Batch) -> Tensor:
        index = batch.index
        return torch.cat([u[index].log() + b[index] for u, b in ((theirs.u1, theirs.b1), (theirs.u2, theirs.b2))], 1)

    return Pair(
        name="contrastive, two modalities (GCLoss_v2)",
        gamma=gamma,
        steps=6,
        objective=GlobalContrastive(Table(100, 2, 16), Examples(torch.arange(100)), temperature=tau, two_modal=True),
        shape=(100, 2, 16),
        draw=pairs_of_views(100, size),
        loss=loss,
        rows=rows,
        u0=EMPTY,
        factor=size - 1.0,
        factor_is="B - 1 (LibAUC adds up the negatives, though its u is their mean)",
        definition="the same at every gamma; LibAUC's log u is log u1 + b1, it divides by a running maximum",
    )


def queries_of(num_queries: int) -> Draw:
    """Draws whole queries: items are numbered by query, the relevant ones first, and so are the blocks."""
    length = RELEVANT + OTHERS

    def draw(generator: torch.Generator) -> Batch:
        chosen = torch.randperm(num_queries, generator=generator)[:QUERIES].unsqueeze(1)
        id = (chosen * length + torch.arange(length)).flatten()
        index = (chosen * RELEVANT + torch.arange(RELEVANT)).flatten()
        block_pos = (torch.arange(QUERIES).unsqueeze(1) * length + torch.arange(RELEVANT)).flatten()
        return Batch(id, id, index, block_pos=block_pos)

    return draw


def graded(num_queries: int) -> Queries:
    """Items whose x is their number, with relevances 1, 2, 3, 1, 2, ... for the relevant ones of each query."""
    query = torch.arange(num_queries).repeat_interleave(RELEVANT + OTHERS)
    one = torch.cat([torch.arange(RELEVANT) % 3 + 1, torch.zeros(OTHERS, dtype=torch.int64)])
    return Queries(torch.arange(len(query)), query, one.repeat(num_queries))


def without_relevant(draw: Draw) -> Draw:
    """The same draws weighted as LibAUC has it: the mean over the other items alone."""

    def weighted(generator: torch.Generator) -> Batch:
        one = torch.cat([torch.zeros(RELEVANT), torch.full((OTHERS,), 1.0 / OTHERS)])
        return replace(draw(generator), weight=one.repeat(QUERIES))

    return weighted


def by_query(h: Tensor) -> Tensor:
    return h.reshape(QUERIES, RELEVANT + OTHERS)


def blocks_by_query(index: Tensor) -> Tensor:
    """LibAUC's user_item_id: it reads the columns of the relevant items only."""
    return torch.nn.functional.pad(index.reshape(QUERIES, RELEVANT), (0, OTHERS))


def largest_margin(h: Tensor) -> Tensor:
    rows = by_query(h)
    return (rows[:, RELEVANT:].amax(1) - rows[:, :RELEVANT].amin(1)).amax()


def listnet(gamma: float, *, equal_tops: bool) -> Pair:
    num_queries = 20
    data = graded(num_queries)
    theirs = losses.ListwiseCELoss(N=num_queries * RELEVANT, num_pos=RELEVANT, gamma=gamma, eps=0.0, device=CPU)
    weight = torch.full((num_queries * RELEVANT,), 1.0 / RELEVANT)

    def scaled(h: Tensor, batch: Batch) -> Tensor:
        return h * 3.0 / largest_margin(h[batch.id])

    apart = "gamma = 1 only: LibAUC divides by the batch's largest exponential, another one each step"
    alike = "scores scaled so that each batch's largest margin, which LibAUC leaves out of u, is the same"
    return Pair(
        name="ListNet (ListwiseCELoss)" + (", equal largest margins" if equal_tops else ""),
        gamma=gamma,
        steps=8,
        objective=ListNet(Table(len(data)), data, block_weight=weight, relevant_only=True),
        shape=(len(data),),
        draw=without_relevant(queries_of(num_queries)),
        loss=lambda h, batch: theirs(by_query(h), {"user_item_id": blocks_by_query(batch.index)}),
        rows=lambda h, batch: (theirs.u[batch.index].log() + largest_margin(h.detach())).unsqueeze(1),
        u0=EMPTY,
        factor=float(RELEVANT * OTHERS),
        factor_is="positives x negatives of a query (LibAUC adds up both and averages over queries alone)",
        definition=(alike if equal_tops else apart)
        + "; LibAUC has no relevances and leaves the relevant items out of the sum: block_weight and batch.weight say so",
        prepare=scaled if equal_tops else (lambda h, batch: h),
    )


def ndcg(gamma: float) -> Pair:
    num_queries, length = 20, RELEVANT + OTHERS
    data = graded(num_queries)
    query, relevance = data.query, data.relevance
    theirs = losses.NDCGLoss(
        N=num_queries * RELEVANT, num_user=num_queries, num_item=length, num_pos=RELEVANT, gamma0=gamma, device=CPU
    )
    best = ideal_dcg(torch.exp2(relevance.double()) - 1, query)

    def loss(h: Tensor, batch: Batch) -> Tensor:
        given = {
            "rating": by_query(relevance[batch.id]),
            "user_id": query[batch.id[::length]],
            "num_pos_items": torch.full((QUERIES,), RELEVANT),
            "ideal_dcg": best[query[batch.id[::length]]],
            "user_item_id": blocks_by_query(batch.index),
        }
        return theirs(by_query(h), given)

    return Pair(
        name="NDCG (NDCGLoss, SONG)",
        gamma=gamma,
        steps=8,
        objective=NDCG(Table(len(data)), data),
        shape=(len(data),),
        draw=queries_of(num_queries),
        loss=loss,
        rows=lambda h, batch: theirs.u[batch.index].unsqueeze(1),
        u0=0.0,
        factor=1.0,
        factor_is="1",
        definition="the same at every gamma while N u >= l(0), which scores this close see to (below it fcco "
        "continues f by its tangent); queries whole and of one length, since LibAUC has one num_item; batch.weight None",
        prepare=lambda h, batch: 0.2 * h,
        loose=1e-6,  # it rounds the ideal DCG to single precision
    )


def all_pairs() -> list[Callable[[], Pair]]:
    return [
        lambda: average_precision(0.3),
        lambda: one_way(0.3),
        lambda: one_modal(1.0, equal_views=False),
        lambda: one_modal(0.3, equal_views=True),
        lambda: two_modal(0.3),
        lambda: listnet(1.0, equal_tops=False),
        lambda: listnet(0.3, equal_tops=True),
        lambda: ndcg(0.3),
    ]


def relative(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def agreement(make: Callable[[], Pair], dtype: torch.dtype) -> Agreement:
    """The largest relative differences over a few steps from the same start, the scores moving at random."""
    with default_dtype(dtype):
        pair = make()
        solver = fcco.Solver(
            pair.objective.to(dtype),
            torch.optim.SGD(pair.objective.parameters(), lr=0.0),
            fcco.soap(beta=pair.gamma),
            u0=pair.u0,
        )
        ours, theirs = pair.objective.get_parameter("model.h"), Table(*pair.shape)
        generator = torch.Generator().manual_seed(0)
        h = torch.randn(pair.shape, generator=generator, dtype=dtype)
        of_u = of_gradient = 0.0
        for _ in range(pair.steps):
            h = h + 0.1 * torch.randn(pair.shape, generator=generator, dtype=dtype)
            batch = pair.draw(generator)
            for table in (ours, theirs.h):
                table.data.copy_(pair.prepare(h, batch))
            solver.step(batch)
            theirs.h.grad = None
            outputs = theirs(batch.id)
            pair.loss(outputs, batch).backward()
            # u itself is compared, not log u: e to the difference of the logs is the ratio
            mine, other = pair.ours(solver.u()[batch.index], outputs), pair.rows(outputs, batch)
            if any(pair.objective.log_domain):
                mine, other = (mine - other.to(mine)).exp(), torch.ones_like(mine)
            of_u = max(of_u, float(((mine - other).abs() / other.abs()).max()))
            assert ours.grad is not None
            assert theirs.h.grad is not None
            of_gradient = max(of_gradient, relative(pair.factor * ours.grad, theirs.h.grad))
    bound = 1e-4 if dtype == torch.float32 else max(1e-10, pair.loose)
    name = str(dtype).removeprefix("torch.")
    return Agreement(
        pair.name, name, pair.gamma, pair.steps, of_u, of_gradient, bound, pair.factor, pair.factor_is, pair.definition
    )


# ---------------------------------------------------------------------- step times

Step = Callable[[], object]


def scores_of(size: int) -> Whole:
    table = Whole(size)
    table.h.data.copy_(torch.randn(size, generator=torch.Generator().manual_seed(0)))
    return table


def optimizer_of(kind: str, parameters: Any) -> torch.optim.Optimizer:
    """torch's optimizer of the same kind as LibAUC's mode of that name, with its defaults."""
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, dampening=0.1, weight_decay=1e-5)
    if kind == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=1e-6)
    return torch.optim.Adam(parameters, lr=1e-3, weight_decay=1e-5)


def ours_step(objective: fcco.Objective, kind: str, batch: Batch) -> Step:
    solver = fcco.Solver(objective, optimizer_of(kind, objective.parameters()), fcco.soap(beta=0.1))
    batches = itertools.cycle([copy.deepcopy(batch) for _ in range(COPIES)])
    return lambda: solver.step(next(batches))


def theirs_step(table: Table, optimizer: Any, loss: Callable[[Tensor], Tensor]) -> Step:
    everything = torch.arange(len(table.h))

    def step() -> None:
        value = loss(table(everything))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    return step


def imbalanced_batch() -> Batch:
    id = torch.arange(BATCH)
    return Batch(id, id, id[:POSITIVES], y=(id < POSITIVES).long(), block_pos=id[:POSITIVES])


def the_points() -> Points:
    """The data that such a batch is the whole of."""
    return first_positive(POSITIVES, BATCH)


def time_average_precision(kind: str) -> tuple[Step, Step]:
    batch = imbalanced_batch()
    mine, other = scores_of(BATCH), scores_of(BATCH)
    loss = losses.AveragePrecisionLoss(data_len=BATCH, gamma=0.1, device=CPU)
    optimizer = optimizers.SOAP(other.parameters(), lr=1e-3, mode=kind, device=CPU)
    ours = ours_step(AveragePrecision(mine, the_points()), kind, batch)
    return ours, theirs_step(other, optimizer, lambda h: loss(h, batch.y, batch.id))


def time_one_way(kind: str) -> tuple[Step, Step]:
    batch = imbalanced_batch()
    mine, other = scores_of(BATCH), scores_of(BATCH)
    loss = losses.pAUC_DRO_Loss(data_len=BATCH, gamma=0.1, Lambda=1.0, device=CPU)
    optimizer = optimizers.SOPAs(other.parameters(), lr=1e-3, mode=kind, device=CPU)
    ours = ours_step(PartialAUC(mine, the_points(), temperature=1.0), kind, batch)
    return ours, theirs_step(other, optimizer, lambda h: loss(h, batch.y, batch.id))


def time_contrastive(two: bool) -> tuple[Step, Step]:
    size, width = 128, 64
    mine, other = Whole(size, 2, width), Whole(size, 2, width)
    for table in (mine, other):
        table.h.data.copy_(torch.randn(size, 2, width, generator=torch.Generator().manual_seed(0)))
    index = torch.arange(size)
    with silent():
        loss: Any = losses.GCLoss_v2(N=size, tau=0.5, gamma=0.1) if two else losses.GCLoss_v1(
            N=size, tau=0.5, gamma=0.1, device=CPU
        )  # fmt: skip
        loss.adjust_gamma(1)
    optimizer = optimizers.SogCLR(other.parameters(), lr=1e-3, mode="adamw", device=CPU)
    objective = GlobalContrastive(mine, Examples(index), temperature=0.5, two_modal=two)
    ours = ours_step(objective, "adamw", Batch(index, index, index, block_pos=index))

    def value(h: Tensor) -> Tensor:
        if two:
            first, second = normalize(h, dim=2).unbind(1)
            return loss(first, second, index)[0]
        return loss(h[:, 0], h[:, 1], index)

    return ours, theirs_step(other, optimizer, value)


def time_queries(make: Callable[..., fcco.Objective]) -> tuple[Step, Step]:
    data = graded(QUERIES)
    query, relevance = data.query, data.relevance
    id, blocks, index = torch.arange(BATCH), (relevance > 0).nonzero()[:, 0], torch.arange(QUERIES * RELEVANT)
    mine, other, batch = scores_of(BATCH), scores_of(BATCH), Batch(id, id, index, block_pos=blocks)
    number, length = QUERIES * RELEVANT, RELEVANT + OTHERS
    given = {
        "rating": by_query(relevance),
        "user_id": torch.arange(QUERIES),
        "num_pos_items": torch.full((QUERIES,), RELEVANT),
        "ideal_dcg": ideal_dcg(torch.exp2(relevance.double()) - 1, query),
        "user_item_id": blocks_by_query(index),
    }
    if make is NDCG:
        loss: Any = losses.NDCGLoss(number, QUERIES, length, RELEVANT, gamma0=0.1, device=CPU)
        objective: fcco.Objective = NDCG(mine, data)
    else:
        loss = losses.ListwiseCELoss(number, RELEVANT, gamma=0.1, device=CPU)
        objective = ListNet(mine, data, relevant_only=True)
    optimizer = optimizers.SONG(other.parameters(), lr=1e-3, mode="sgd", device=CPU)
    return ours_step(objective, "sgd", batch), theirs_step(other, optimizer, lambda h: loss(by_query(h), given))


def contenders() -> dict[str, tuple[Step, Step]]:
    return {
        "AP, sgd": time_average_precision("sgd"),
        "AP, adam": time_average_precision("adam"),
        "pAUC, sgd": time_one_way("sgd"),
        "contrastive, one modality, adamw": time_contrastive(two=False),
        "contrastive, two modalities, adamw": time_contrastive(two=True),
        "ListNet, sgd": time_queries(ListNet),
        "NDCG, sgd": time_queries(NDCG),
    }


@dataclass
class Speed:
    name: str
    ours_ms: float
    theirs_ms: float
    ratio: float
    bound: float
    ours_operations: int  # tensor operations of a step
    theirs_operations: int

    @property
    def holds(self) -> bool:
        return self.ratio >= self.bound


def speeds(rounds: int, steps: int, clock: Callable[[], float]) -> list[Speed]:
    """Interleaved: in each round every contender takes a few steps; the median of the rounds' ratios."""
    runs = contenders()
    spent: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in runs}
    for turn in range(rounds + 2):
        for name, pair in runs.items():
            for which, step in enumerate(pair):
                start = clock()
                for _ in range(steps):
                    step()
                if turn >= 2:
                    spent[name][which].append((clock() - start) / steps)
    table = []
    for name, (ours, theirs) in spent.items():
        ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
        bound = AP_BOUND if name.startswith("AP") else BOUND
        counts = [operations(step) for step in runs[name]]
        table.append(Speed(name, 1e3 * statistics.median(ours), 1e3 * statistics.median(theirs), ratio, bound, *counts))
    return table


# ---------------------------------------------------------------------- hard inputs


@dataclass
class Hard:
    """What the two give on inputs whose plain form overflows, underflows or is 0/0."""

    name: str
    theirs_u: str
    theirs_gradient: str
    ours_u: str
    ours_gradient: str
    error: float  # of fcco's gradient against a double-precision log-domain reference, relative
    holds: bool


def says(x: Tensor) -> str:
    """'finite', or which of nan and inf are there."""
    kinds = [kind for kind, found in (("nan", x.isnan().any()), ("inf", x.isinf().any())) if bool(found)]
    return " and ".join(kinds) or "finite"


def one_step(objective: fcco.Objective, h: Tensor) -> tuple[Tensor, Tensor]:
    """u and the score gradient of one step with u = g, single precision."""
    table = objective.get_parameter("model.h")
    table.data.copy_(h)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.0), fcco.soap(beta=1.0))
    solver.step(imbalanced_batch())
    assert table.grad is not None
    return solver.u(), table.grad


def their_step(loss: Any, u: Callable[[], Tensor], h: Tensor) -> tuple[Tensor, Tensor]:
    batch = imbalanced_batch()
    scores = h.detach().clone().requires_grad_()
    loss(scores, batch.y, batch.id).backward()
    assert scores.grad is not None
    return u(), scores.grad


def reference(h: Tensor, value: Callable[[Tensor], Tensor]) -> Tensor:
    """The gradient of a function of the differences h_j - h_i (B, K), in double precision."""
    scores = h.detach().double().requires_grad_()
    value(scores - scores[:POSITIVES].unsqueeze(1)).backward()
    assert scores.grad is not None
    return scores.grad


def hinge(x: Tensor, margin: float) -> Tensor:
    return (margin + x).clamp(min=0).square()


def precision(l: Tensor) -> Tensor:
    """-mean over positives of sum_pos l / sum l; perfect where the sum is 0."""
    total = l.sum(1)
    ratio = l[:, :POSITIVES].sum(1) / torch.where(total > 0, total, 1.0)
    return -torch.where(total > 0, ratio, 1.0).mean()


def hard_inputs() -> list[Hard]:
    generator = torch.Generator().manual_seed(3)
    h = torch.randn(BATCH, generator=generator)
    up = torch.where(torch.arange(BATCH) < POSITIVES, 1.0, 0.0)
    apart = 0.1 * h + 5.0 * up  # every positive above every negative
    mixed = apart.clone()
    mixed[POSITIVES : POSITIVES + 3] += 5.0  # but for three negatives
    below = 0.1 * h - 200.0 * up

    def partial(x: Tensor) -> Tensor:
        return 0.01 * (hinge(x, 1.0)[:, POSITIVES:] / 0.01).logsumexp(1).mean()

    cases = [
        (
            "pAUC, Lambda = 0.01",
            h,
            partial,
            PartialAUC(scores_of(BATCH), the_points(), temperature=0.01),
            pauc_of(0.01),
        ),
        ("AP, margin 0, separated", apart, lambda x: precision(hinge(x, 0.0)), ap_at(0.0), ap_of("squared_hinge", 0.0)),
        (
            "AP, margin 0, three above",
            mixed,
            lambda x: precision(hinge(x, 0.0)),
            ap_at(0.0),
            ap_of("squared_hinge", 0.0),
        ),
        (
            "AP, logistic at -200",
            below,
            lambda x: precision(softplus(x)),
            AveragePrecision(scores_of(BATCH), the_points(), loss=Logistic()),
            ap_of("logistic", 1.0),
        ),
    ]
    return [hard(name, scores, value, objective, loss) for name, scores, value, objective, loss in cases]


def ap_at(margin: float) -> AveragePrecision:
    return AveragePrecision(scores_of(BATCH), the_points(), loss=SquaredHinge(margin=margin))


def pauc_of(temperature: float) -> tuple[Any, Callable[[], Tensor]]:
    loss = losses.pAUC_DRO_Loss(data_len=BATCH, gamma=1.0, Lambda=temperature, device=CPU)
    return loss, lambda: loss.u_pos[:POSITIVES]


def ap_of(surrogate: str, margin: float) -> tuple[Any, Callable[[], Tensor]]:
    loss = losses.AveragePrecisionLoss(data_len=BATCH, gamma=1.0, margin=margin, surr_loss=surrogate, device=CPU)
    return loss, lambda: torch.cat([loss.u_pos[:POSITIVES], loss.u_all[:POSITIVES]], 1)


def hard(name: str, h: Tensor, value: Any, objective: fcco.Objective, loss: tuple[Any, Callable[[], Tensor]]) -> Hard:
    u, gradient = one_step(objective, h)
    their_u, their_gradient = their_step(*loss, h)
    wanted = reference(h, value)
    error = float((gradient - wanted).norm() / wanted.norm().clamp(min=1e-12))
    finite = says(u) == says(gradient) == "finite"
    broken = says(their_gradient) != "finite"
    good = finite and error <= 1e-4 and broken
    return Hard(name, says(their_u), says(their_gradient), says(u), says(gradient), error, good)


# ---------------------------------------------------------------------- the run


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """LibAUC prints; its seeds and results do not depend on that."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """LibAUC makes its u in torch's default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def show(agreements: list[Agreement], table: list[Speed], cases: list[Hard]) -> None:
    verdict = {True: "holds", False: "MISSED"}
    print("\nSame start, same scores: largest relative difference of u and of the score gradient")
    print(f"{'loss':<62}{'dtype':<9}{'gamma':>6}{'steps':>6}{'u':>10}{'gradient':>10}{'bound':>8}")
    for row in agreements:
        print(
            f"{row.name:<62}{row.dtype:<9}{row.gamma:>6}{row.steps:>6}{row.u:>10.1e}{row.gradient:>10.1e}"
            f"{row.bound:>8.0e}  {verdict[row.holds]}"
        )
    print("\nLibAUC's gradient over fcco's, and what makes the two the same thing")
    for row in agreements:
        if row.dtype == "float32":
            print(f"  {row.name}: factor {row.factor:g} = {row.factor_is}; {row.definition}")
    if table:
        print("\nFrom scores to the optimizer's step: milliseconds, and LibAUC's over fcco's (median of rounds)")
        print(f"{'loss':<38}{'LibAUC':>9}{'fcco':>9}{'ratio':>8}{'bound':>7}{'operations':>14}")
        for speed in table:
            counts = f"{speed.theirs_operations} / {speed.ours_operations}"
            print(
                f"{speed.name:<38}{speed.theirs_ms:>9.3f}{speed.ours_ms:>9.3f}{speed.ratio:>8.2f}{speed.bound:>7.0f}"
                f"{counts:>14}  {verdict[speed.holds]}"
            )
    print("\nHard inputs, single precision, u = g; fcco's gradient against a double-precision reference")
    print(f"{'case':<28}{'LibAUC: u':<14}{'gradient':<12}{'fcco: u':<10}{'gradient':<10}{'error':>9}")
    for case in cases:
        print(
            f"{case.name:<28}{case.theirs_u:<14}{case.theirs_gradient:<12}{case.ours_u:<10}{case.ours_gradient:<10}"
            f"{case.error:>9.1e}  {verdict[case.holds]}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=10, help="steps of each contender in a round")
    parser.add_argument("--threads", type=int, help="torch's threads; its own choice by default")
    parser.add_argument("--cpu-time", action="store_true", help="count this process's time only: for a busy machine")
    parser.add_argument("--no-speed", action="store_true", help="leave the step times out")
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    clock = time.process_time if options.cpu_time else time.perf_counter
    print(
        f"fcco {fcco.__version__} and LibAUC {libauc.__version__} on torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads, {platform.machine()}, {'CPU' if options.cpu_time else 'wall'} time"
    )
    agreements = [agreement(make, dtype) for dtype in (torch.float32, torch.float64) for make in all_pairs()]
    table = [] if options.no_speed else speeds(options.rounds, options.steps, clock)
    cases = hard_inputs()
    show(agreements, table, cases)
    results: list[Agreement | Speed | Hard] = [*agreements, *table, *cases]
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        settings = {
            "torch": torch.__version__,
            "libauc": libauc.__version__,
            "threads": torch.get_num_threads(),
            "clock": "process_time" if options.cpu_time else "perf_counter",
            "rounds": options.rounds,
            "steps": options.steps,
        }
        groups: dict[str, list[Any]] = {"agreement": agreements, "speed": table, "hard": cases}
        figures = {name: [asdict(row) | {"holds": row.holds} for row in rows] for name, rows in groups.items()}
        options.out.write_text(json.dumps({"settings": settings} | figures, indent=1) + "\n")
    return int(not all(row.holds for row in results))


if __name__ == "__main__":
    raise SystemExit(main())

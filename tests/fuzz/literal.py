"""F of every ready objective, written out in plain loops over pairs: what a fuzzed objective's value is checked by."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fcco import objectives


def value(objective: Any) -> float:
    """F at the objective's weights."""
    h = outputs(objective)
    weight = objective.data.weight
    if weight is None:
        weight = torch.ones(objective.data.num_examples, dtype=torch.float64)
    return float(FORMULAS[type(objective)](objective, h, weight))


@torch.no_grad()
def outputs(objective: Any) -> Tensor:
    """What the model says of every example, in double precision."""
    x = objective.data.source.take(torch.arange(objective.data.num_examples))
    if not isinstance(x, tuple):
        return objective.model(x.to(_dtype(objective))).double()
    if getattr(objective, "two_modal", False):
        return torch.stack(objective.model(*(part.to(_dtype(objective)) for part in x)), 1).double()
    return torch.stack([objective.model(part.to(_dtype(objective))) for part in x], 1).double()


def _dtype(objective: Any) -> torch.dtype:
    return next(objective.model.parameters()).dtype


def own(parameter: Any) -> Tensor:
    return parameter.detach().double()


# ------------------------------------------------------------------ points


def tasks_of(objective: Any, h: Tensor) -> list[tuple[int, Tensor, list[int], list[int]]]:
    """Of every task with both classes: its column, its scores, its positives and its negatives."""
    y = objective.data.y
    if h.dim() == 1:
        h = h.unsqueeze(1)
    weight = objective.data.weight
    found = []
    for t in range(h.shape[1]):
        label = y
        if y.dim() == 2:
            label = y[:, t]
        elif h.shape[1] > 1:
            label = (y == t).double().masked_fill(y < 0, torch.nan)
        there = [i for i in range(len(label)) if weight is None or weight[i] > 0]
        positive = [i for i in there if label[i] == 1]
        negative = [i for i in there if label[i] == 0]
        if positive and negative:
            found.append((t, h[:, t], positive, negative))
    return found


def mean(values: list[Tensor], of: list[int], w: Tensor) -> Tensor:
    """The mean over some examples, by their weights."""
    total = sum(w[i] * value for i, value in zip(of, values, strict=True))
    return total / w[of].sum()


def soft(x: Tensor, v: Tensor, scale: float, size: Tensor) -> Tensor:
    """v + scale (phi((x - v)/scale) - 1): an exponential that goes on straight above ``size``."""
    t = (x - v) / scale
    top = size.log()
    phi = t.exp() if t <= top else size * (1 + t - top)
    return v + scale * (phi - 1)


def partial_auc(o: Any, h: Tensor, w: Tensor) -> Tensor:
    F = []
    for place, (_, s, positive, negative) in enumerate(tasks_of(o, h)):
        f = []
        for i in positive:
            terms = torch.stack([(w[j].log() + o.loss(s[j] - s[i]) / o.temperature) for j in negative])
            f.append(o.temperature * (torch.logsumexp(terms, 0) - w[negative].sum().log()))
        if o.positive_temperature is not None:
            size = w[positive].sum() / w[positive].min()
            f = [soft(x, v_of(o, place), o.positive_temperature, size) for x in f]
        F.append(mean(f, positive, w))
    return torch.stack(F).mean()


def v_of(o: Any, place: int) -> Tensor:
    """The trained variable of a task."""
    used = o.blocks.tasks.used
    v = own(o.v)
    if len(v) == 1:
        return v[0]
    return v[used[place]] if len(v) == o.blocks.num_tasks else v[place]


def average_precision(o: Any, h: Tensor, w: Tensor) -> Tensor:
    F = []
    for _, s, positive, negative in tasks_of(o, h):
        f = []
        for i in positive:
            above = sum(w[j] * o.loss(s[j] - s[i]) for j in positive)
            every = above + sum(w[j] * o.loss(s[j] - s[i]) for j in negative)
            f.append(-above / every if every > 0 else torch.tensor(-1.0, dtype=torch.float64))
        F.append(mean(f, positive, w))
    return torch.stack(F).mean()


def push(o: Any, h: Tensor, w: Tensor) -> Tensor:
    F = []
    for place, (_, s, positive, negative) in enumerate(tasks_of(o, h)):
        g = [mean([o.loss(s[i] - s[j]) for j in positive], positive, w) for i in negative]
        if o.v is not None:
            size = w[negative].sum() / w[negative].min()
            f = [soft(x.log(), v_of(o, place), 1 / o.p, size) for x in g]
        else:
            f = [x**o.p for x in g]
        F.append(mean(f, negative, w))
    return torch.stack(F).mean()


def tasks_auc(o: Any, h: Tensor, w: Tensor) -> Tensor:
    F = []
    for t, s, positive, negative in tasks_of(o, h):
        high = mean([s[i] for i in positive], positive, w)
        low = mean([s[i] for i in negative], negative, w)
        a, b = high, low
        if o.a is not None:
            a, b = own(o.a)[t], own(o.b)[t]
        f = mean([(s[i] - a).square() for i in positive], positive, w)
        f = f + mean([(s[i] - b).square() for i in negative], negative, w) + o.loss(low - high)
        F.append(f if o.task_weight is None else f * o.task_weight[t])
    return torch.stack(F).mean()


# ------------------------------------------------------------------ queries and risk sets


def flat(h: Tensor) -> Tensor:
    return h.squeeze(1) if h.dim() == 2 else h


def ndcg(o: Any, h: Tensor, w: Tensor) -> Tensor:
    s, y, query = flat(h), o.data.relevance.double(), o.data.query
    total = torch.zeros((), dtype=torch.float64)
    queries = [q for q in query.unique() if any(w[i] > 0 and y[i] > 0 for i in _items(query, q))]
    for q in queries:
        items = [i for i in _items(query, q) if w[i] > 0]
        ideal = 0.0
        place = 0
        for i in sorted(items, key=lambda i: -y[i]):
            copies = int(w[i])
            assert copies == w[i], "whole weights only"
            for _ in range(copies):
                place += 1
                ideal += (2.0 ** float(y[i]) - 1) / math.log2(1 + place)
        for i in items:
            rank = sum(w[j] * o.surrogate(s[j] - s[i]) for j in items)
            total = total - w[i] * (2.0 ** y[i] - 1) / (ideal * torch.log2(1 + rank))
    return total / len(queries)  # one without anything relevant has no NDCG


def _items(query: Tensor, q: Tensor) -> list[int]:
    return (query == q).nonzero()[:, 0].tolist()


def listnet(o: Any, h: Tensor, w: Tensor) -> Tensor:
    s, y, query = flat(h), o.data.relevance.double(), o.data.query
    total = torch.zeros((), dtype=torch.float64)
    count = 0
    for q in query.unique():
        items = [i for i in _items(query, q) if w[i] > 0]
        if not items or (o.relevant_only and not any(y[i] > 0 for i in items)):
            continue  # without a block
        count += 1
        share = sum(w[j] * torch.exp(y[j] - y[items].max()) for j in items)
        logs = torch.logsumexp(torch.stack([w[j].log() + s[j] for j in items]), 0)
        for i in items:
            if o.relevant_only and y[i] <= 0:
                continue
            total = total - w[i] * torch.exp(y[i] - y[items].max()) / share * (s[i] - logs)
    return total / count


def cox(o: Any, h: Tensor, w: Tensor) -> Tensor:
    s, time = flat(h), o.data.time
    events = [i for i in range(len(s)) if o.data.event[i] and w[i] > 0]
    f = []
    for i in events:
        terms = [w[j].log() + s[j] - s[i] for j in range(len(s)) if time[j] >= time[i] and w[j] > 0]
        f.append(torch.logsumexp(torch.stack(terms), 0))
    return mean(f, events, w)


# ------------------------------------------------------------------ groups and bags


def group_dro(o: Any, h: Tensor, w: Tensor) -> Tensor:
    losses = o.loss(h, o.data.y)
    v = own(o.v)
    share = own(o.share)
    F = v.clone()
    for place in range(o.num_blocks):
        members = [i for i in range(len(h)) if o.data.group[i] == place and w[i] > 0]
        g = mean([losses[i] for i in members], members, w)
        F = F + share[place] * o.risk((g - v).reshape(1), share[place].reshape(1))[0]
    return F


def multi_instance(o: Any, h: Tensor, w: Tensor) -> Tensor:
    s, a, b = flat(h), own(o.a), own(o.b)
    label = o.data.bag_label
    parts: dict[int, list[Tensor]] = {0: [], 1: []}
    for place in range(len(label)):
        members = [i for i in range(len(s)) if o.data.bag[i] == place and w[i] > 0]
        terms = torch.stack([w[i].log() + s[i] / o.temperature for i in members])
        pooled = o.temperature * (torch.logsumexp(terms, 0) - w[members].sum().log())
        parts[int(label[place])].append((pooled - (a if label[place] else b)).square())
    return torch.stack(parts[1]).mean() + torch.stack(parts[0]).mean() + o.loss(b - a)


# ------------------------------------------------------------------ features


def contrastive(o: Any, h: Tensor, w: Tensor) -> Tensor:
    if o.normalize:
        h = h / h.norm(dim=2, keepdim=True)
    rho = getattr(o.temperature, "rho", 0.0)
    present = [i for i in range(len(h)) if w[i] > 0]
    f = []
    for i in present:
        tau = o.tau(torch.tensor([i]))
        taus = torch.as_tensor(tau, dtype=torch.float64).detach().expand(1, 2)[0]
        total = torch.zeros((), dtype=torch.float64)
        for v in (0, 1):
            others = [j for j in present if j != i]
            views = (1 - v,) if o.two_modal else (0, 1)
            terms = [w[j].log() + (h[i, v] @ h[j, k] - h[i, 0] @ h[i, 1]) / taus[v] for j in others for k in views]
            u = torch.logsumexp(torch.stack(terms), 0) - (len(views) * w[others].sum()).log()
            if o.epsilon > 0:
                u = torch.logaddexp(u, torch.tensor(math.log(o.epsilon), dtype=torch.float64))
            total = total + taus[v] * (u + rho) / 2
        f.append(total)
    return mean(f, present, w)


def nca(o: Any, h: Tensor, w: Tensor) -> Tensor:
    if h.dim() == 1:
        h = h.unsqueeze(1)
    present = [i for i in range(len(h)) if w[i] > 0]
    f = []
    for i in present:
        near = {j: w[j] * torch.exp(-(h[i] - h[j]).square().sum()) for j in present if j != i}
        p = sum(x for j, x in near.items() if o.data.y[j] == o.data.y[i]) / sum(near.values())
        f.append(-torch.log(p) if o.log_likelihood else -p)
    return mean(f, present, w)


FORMULAS = {
    objectives.PartialAUC: partial_auc,
    objectives.AveragePrecision: average_precision,
    objectives.PNormPush: push,
    objectives.MultiTaskAUC: tasks_auc,
    objectives.NDCG: ndcg,
    objectives.ListNet: listnet,
    objectives.Cox: cox,
    objectives.GroupDRO: group_dro,
    objectives.MultiInstance: multi_instance,
    objectives.GlobalContrastive: contrastive,
    objectives.NCA: nca,
}

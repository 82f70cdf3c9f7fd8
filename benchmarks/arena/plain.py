"""The plain loss, tuned: cross-entropy, squared error (rankings) or the mini-batch's Cox likelihood (survival).

12 settings per problem and seed, chosen by validation; AdamW, a cosine, the network of ``network.py``, 20 checks per run.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.arena.network import Course, cosine, network, run_length
from benchmarks.arena.problems import Split

Setting = dict[str, float]

LRS = (3e-4, 1e-3, 3e-3)
DECAYS = (0.0, 0.1, 1.0, 3.0)
SETTINGS: list[Setting] = [{"lr": lr, "decay": decay} for lr, decay in product(LRS, DECAYS)]
FASTER: list[Setting] = [{"lr": 1e-2, "decay": decay} for decay in DECAYS]  # beyond the edge of that grid
BATCH = 256


def batch_size(split: Split) -> int:
    """256, but 64 where there are fewer than 2,000 training rows."""
    if len(split.x_train) < 2000:
        return 64
    return BATCH


def shuffled(count: int, size: int, seed: int) -> Iterator[Tensor]:
    """Row numbers of mini-batches, pass after pass."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(count, generator=generator)
        yield from order.split(size)


def plain_loss(split: Split, outputs: Tensor, rows: Tensor) -> Tensor:
    """Of a mini-batch: outputs (B, T) of the training rows ``rows`` (B,)."""
    y = split.y_train[rows]
    if split.metric == "ndcg":
        return functional.mse_loss(outputs[:, 0], y)
    if split.metric == "concordance":
        return batch_cox(outputs[:, 0], y[:, 0], y[:, 1])
    y = y.reshape(outputs.shape)
    known = ~y.isnan()
    return functional.binary_cross_entropy_with_logits(outputs[known], y[known])


def batch_cox(risk: Tensor, time: Tensor, event: Tensor) -> Tensor:
    """The partial likelihood of a mini-batch taken for the data set: all (B,)."""
    at_risk = time.unsqueeze(0) >= time.unsqueeze(1)  # (B, B)
    total = torch.where(at_risk, risk.unsqueeze(0), -torch.inf).logsumexp(1)  # (B,)
    return ((total - risk) * event).sum() / event.sum().clamp(min=1)


def train_plain(split: Split, setting: Setting, seed: int, length: int | None = None) -> tuple[nn.Module, Course]:
    """One run with one setting.

    Args:
        split: of the problem.
        setting: "lr" and AdamW's "decay".
        seed: of weights and draws.
        length: examples through the network; ``run_length(split)`` by default.
    """
    model = network(split, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=setting["lr"], weight_decay=setting["decay"])
    course = Course(split, model, length or run_length(split))
    model.train()
    for rows in shuffled(len(split.x_train), batch_size(split), seed):
        cosine(optimizer, setting["lr"], course.seen / course.length)
        optimizer.zero_grad()
        plain_loss(split, model(split.x_train[rows]), rows).backward()
        optimizer.step()
        course.advance(len(rows))
        if course.ended:
            break
    return model, course

"""Survival analysis by libraries of its own: lifelines' linear Cox model, torchsurv's Cox loss on the arena's network."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.arena.network import Course, cosine, network, run_length
from benchmarks.arena.plain import SETTINGS, batch_size, shuffled
from benchmarks.arena.problems import Problem, Split
from benchmarks.arena.scoring import score
from benchmarks.kept import Row

Setting = dict[str, Any]


def lifelines_settings(problem: Problem) -> list[Setting]:
    if problem.metric != "concordance":
        return []
    return [{"penalizer": penalizer} for penalizer in (0.001, 0.01, 0.1, 1.0)]


def run_lifelines(split: Split, setting: Setting, seed: int) -> Row:
    """A linear model of all columns."""
    import lifelines
    import pandas as pd

    frame = pd.DataFrame(split.x_train.numpy()).add_prefix("x")
    frame["time"] = split.train.time.numpy()
    frame["event"] = split.train.event.numpy()
    model = lifelines.CoxPHFitter(penalizer=setting["penalizer"])
    model.fit(frame, "time", "event")
    weights = torch.tensor(model.params_.to_list())  # (F,), in the order of the columns
    return {
        "valid": score(split, split.x_valid @ weights, "valid"),
        "test": score(split, split.x_test @ weights),
    }


def torchsurv_settings(problem: Problem) -> list[Setting]:
    if problem.metric != "concordance":
        return []
    return list(SETTINGS)


def run_torchsurv(split: Split, setting: Setting, seed: int) -> Row:
    """Its negative partial log-likelihood (Efron's ties) of mini-batches."""
    from torchsurv.loss.cox import neg_partial_log_likelihood

    model = network(split, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=setting["lr"], weight_decay=setting["decay"])
    course = Course(split, model, run_length(split))
    event = split.train.event.bool()
    model.train()
    for rows in shuffled(len(split.x_train), batch_size(split), seed):
        if bool(event[rows].any()):
            cosine(optimizer, setting["lr"], course.seen / course.length)
            optimizer.zero_grad()
            loss = neg_partial_log_likelihood(model(split.x_train[rows])[:, 0], event[rows], split.train.time[rows])
            loss.backward()
            optimizer.step()
        course.advance(len(rows))
        if course.ended:
            break
    return course.row()

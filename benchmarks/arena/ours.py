"""fcco on the arena: SOX and the output memory with tuned settings, and ``fcco.fit`` without any."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

import fcco
from benchmarks.arena.network import Course, cosine, network, predict, run_length
from benchmarks.arena.plain import SETTINGS, batch_size
from benchmarks.arena.problems import Part, Problem, Split
from benchmarks.arena.scoring import score
from benchmarks.kept import Row
from fcco import objectives as zoo

Setting = dict[str, Any]
PAIR_LOSSES = {  # margin and hardness (margin^2 / temperature) by metric
    "average_precision": ((1.0, 3.0), (3.0, 9.0)),
    "partial_auc": ((1.0, 3.0), (3.0, 9.0)),
    "roc_auc": ((1.0, 0.3), (3.0, 1.0)),
}


def settings(problem: Problem) -> list[Setting]:
    """12, like the plain loss: learning rate, decay, and where the objective has it the pair loss."""
    if problem.metric not in PAIR_LOSSES:
        return list(SETTINGS)
    grid = product((3e-4, 1e-3, 3e-3), (0.0, 1.0), PAIR_LOSSES[problem.metric])
    return [{"lr": lr, "decay": decay, "margin": pair[0], "hardness": pair[1]} for lr, decay, pair in grid]


def structure(split: Split, part: Part) -> fcco.data.Structure:
    """The part as data of fcco."""
    if split.metric == "ndcg":
        return fcco.data.Queries(part.x, part.query, part.y)
    if split.metric == "concordance":
        return fcco.data.RiskSets(part.x, part.time, part.event)
    return fcco.data.Points(part.x, part.y)


def objective(split: Split, model: nn.Module, setting: Setting) -> zoo.OutputObjective:
    """NDCG, Cox, or the partial AUC, which by AP too beats the surrogate of AP itself (docs/memory.md)."""
    data: Any = structure(split, split.train)
    if split.metric == "ndcg":
        return zoo.NDCG(model, data)
    if split.metric == "concordance":
        return zoo.Cox(model, data)
    loss = zoo.SquaredHinge(margin=setting["margin"])
    return zoo.PartialAUC(model, data, temperature=setting["margin"] ** 2 / setting["hardness"], loss=loss)


def sizes(split: Split, method: str) -> tuple[int, int]:
    """Blocks and samples; all methods see about the same number of examples per step."""
    size = batch_size(split)
    blocks = size // 4
    if method == "memory":
        return blocks, size - blocks
    if split.metric == "concordance":
        return 8, size // 8
    if split.metric == "ndcg":
        return size // 8, 8
    if split.outputs > 1:
        return blocks, max(4, (size - blocks) // split.outputs)
    return blocks, size - blocks


def run_solver(method: str, split: Split, setting: Setting, seed: int) -> Row:
    """One run of a Solver."""
    model = network(split, seed)
    made = objective(split, model, setting)
    optimizer = torch.optim.AdamW(made.parameters(), lr=setting["lr"], weight_decay=setting["decay"])
    chosen = fcco.sox(beta=0.5)
    if method == "memory":
        chosen = fcco.output_memory()
    solver = fcco.Solver(made, optimizer, chosen)
    loader = solver.loader(*sizes(split, method), seed=seed)
    course = Course(split, model, run_length(split))
    made.train()
    while not course.ended:
        for batch in loader:
            cosine(optimizer, setting["lr"], course.seen / course.length)
            before = solver.samples
            solver.step(batch)
            course.advance(solver.samples - before)
            if course.ended:
                break
    return course.row()


def fit_method(split: Split, seed: int) -> tuple[Tensor, Any]:
    """Scores of the test part by ``fcco.fit`` as it comes, and its result."""
    model = network(split, seed)
    data: Any = (split.x_train, split.y_train)
    valid: Any = (split.x_valid, split.y_valid)
    if split.metric in ("ndcg", "concordance"):
        data = structure(split, split.train)
        valid = structure(split, split.valid)
    more = {}
    if split.max_fpr is not None:
        more["max_fpr"] = split.max_fpr
    result = fcco.fit(model, data, metric=split.metric, validation=valid, seed=seed, progress=False, **more)
    return result.predict(split.x_test), result


def run_fit(split: Split, setting: Setting, seed: int) -> Row:
    """``fcco.fit``: its model, and beside it the plain-loss model that was among its candidates, and its trials."""
    scores, result = fit_method(split, seed)
    plain_model = network(split, seed)
    plain_model.load_state_dict(result.plain_weights)
    return {
        "valid": score(split, result.predict(split.x_valid), "valid"),
        "test": score(split, scores),
        "examples": result.examples,
        "chosen": result.chosen,
        "chosen_setting": result.setting,
        "plain_valid": result.plain_value,
        "plain_test": score(split, predict(plain_model, split.x_test)),
        "trials": {trial["trial"]: [trial["setting"], trial["examples"], trial["value"]] for trial in result.trials},
    }

"""How long a plain loss goes on getting better on LibAUC's image problems: validation and test along each plain setting.

    python -m benchmarks.arena.lengths --data cifar10.npz --device cuda --workers 14 --out curves.jsonl

What convolutional networks get in :func:`fcco.fitting._recipe.recipe_for` was chosen on these curves, of the problem with
2 % positives alone: by average precision with its own ResNet-18, and by AUROC with the ResNet-20 of another problem.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.arena.cifar import image_network, make_images, read_arrays
from benchmarks.arena.images import PROBLEMS, ImageProblem
from fcco.fitting import Goal, Recipe
from fcco.fitting._data import parts_of
from fcco.fitting._scoring import score
from fcco.fitting._trial import Problem, Trial

NO_END = 10**6  # checks without a better one
CASES: dict[str, ImageProblem] = {
    "resnet18, average_precision": PROBLEMS["cifar-ap"],
    "resnet20, roc_auc": replace(PROBLEMS["cifar-ap"], net="resnet20", metric="roc_auc"),
}


def curve(path: str, device: str, epochs: int, case: str, seed: int, number: int) -> dict[str, Any]:
    """One plain setting of the usual recipe in training; the test images are looked at, and choose nothing."""
    torch.set_num_threads(1)
    chosen = CASES[case]
    data = make_images(read_arrays(path), chosen.ratio, chosen.data_seed, chosen.test_ratio, 0.1, seed, device)
    goal = Goal(chosen.metric)
    train, valid = parts_of((data.x_train, data.y_train), (data.x_valid, data.y_valid), goal, seed)
    _, test = parts_of((data.x_train, data.y_train), (data.x_test, data.y_test), goal, seed)
    assert test is not None
    recipe = Recipe(patience=NO_END)
    size = train.num_examples
    problem = Problem(
        train=train, valid=valid, goal=goal, recipe=recipe, batch_size=recipe.batch_size(size),
        run_length=recipe.run_length(size), precision="fp32", num_workers=0, backbone=frozenset(), backbone_lr=1.0, seed=seed,
    )  # fmt: skip
    trial = Trial("plain", recipe.plain_settings()[number], image_network(chosen.net, seed).to(device), problem, number)
    points: list[tuple[float, float, float, float]] = []

    def told(trial: Trial) -> None:
        check = trial.checks[-1]
        assert trial._live is not None
        value = goal.value(score(trial._live._average, test.source), test)
        points.append((check.examples / size, check.value, value, check.loss))

    trial.train(epochs * size, told, lambda: None)
    return {"case": case, "seed": seed, "setting": trial.setting.describe(), "failure": trial.failure, "curve": points}


def jobs(seeds: list[int]) -> Iterator[tuple[str, int, int]]:
    """Every case, seed and setting."""
    for number in range(len(Recipe().plain_settings())):
        for case in CASES:
            for seed in seeds:
                yield case, seed, number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="cifar10.npz")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seeds", nargs="*", type=int, default=[10, 11])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    call = partial(curve, str(options.data), options.device, options.epochs)
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool, open(options.out, "a") as lines:
        for future in as_completed([pool.submit(call, *job) for job in jobs(options.seeds)]):
            lines.write(json.dumps(future.result()) + "\n")
            lines.flush()


if __name__ == "__main__":
    main()

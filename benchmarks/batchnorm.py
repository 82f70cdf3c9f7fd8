"""What a full pass sees of a network with BatchNorm: batches composed as in training, or plain chunks of the data.

A ResNet18 is trained a little; then, at fixed weights, the mean of g over many training draws is the truth that v3's
reference should hold, and the two kinds of full pass are set against it.

Run: .venv/bin/python benchmarks/batchnorm.py --out results/bench/batchnorm.json    (minutes on two cores)
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from fcco.data import Batch
from fcco.lab.config import TrainConfig
from fcco.lab.parts import build
from fcco.lab.passes import ComposedPass
from fcco.objectives import OutputObjective


def size(x: Tensor) -> float:
    """Root mean square over the tasks of the rows' norms."""
    return float(x.square().sum(1).mean().sqrt())


def whole(objective: OutputObjective, batches: Iterable[Batch]) -> Tensor:
    """g (m, dim) by a full pass."""
    g = torch.zeros(objective.num_blocks, objective.dim)
    for batch in batches:
        assert batch.index is not None
        g.index_add_(0, batch.index, objective.inner(batch.index, batch).to(g.dtype))
    return g


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40, help="of training before")
    parser.add_argument("--draws", type=int, default=200, help="training batches whose mean is the truth")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    started = time.perf_counter()
    parts = build(TrainConfig(dataset="digits", model="resnet18", method="sox", lr=0.002, samples=32, seed=0))
    objective = parts.solver.objective
    assert isinstance(objective, OutputObjective)
    sizes = {"blocks": parts.loader.blocks, "samples": parts.loader.samples, "seed": 0}
    for batch in objective.loader(**sizes, steps_per_epoch=given.steps):
        parts.solver.step(batch)
    total, squares = torch.zeros(2, objective.num_blocks, objective.dim)
    count = torch.zeros(objective.num_blocks, 1)
    with torch.no_grad():
        passes = {
            "composed": whole(objective, ComposedPass(objective.blocks, **sizes)()),
            "plain": whole(objective, objective.full_pass()),
        }
        for batch in objective.loader(**sizes | {"seed": 1}, steps_per_epoch=given.draws):
            index = batch.index
            assert index is not None
            g = objective.inner(index, batch)
            total[index] += g
            squares[index] += g.square()
            count[index] += 1
    mean = total / count
    error = ((squares / count - mean.square()).clamp(min=0) / count).sqrt()
    found = {
        "size of g": size(mean),
        "standard error of the mean over draws": size(error),
        "seconds": round(time.perf_counter() - started),
        "settings": {"steps": given.steps, "draws": given.draws, "torch": torch.__version__},
    }
    found |= {f"{name} pass less the mean over draws": size(g - mean) for name, g in passes.items()}
    text = json.dumps(found, indent=1)
    print(text)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()

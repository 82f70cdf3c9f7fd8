"""CIFAR-10 with a rare class (500 of 23,000 images), ResNet18: pAUC, with a tracker and with the output memory, against
cross-entropy, on an accelerator.

    python benchmarks/cifar_rare.py --data cifar10.npz --more 0 1 2 4 5 6 7 8 9      # table.md
    python benchmarks/cifar_rare.py --data cifar10.npz --seeds 10 --runs memory SOX  # ten-seeds.md

The data file holds x_train (N, 32, 32, 3) uint8, y_train, x_test, y_test. The first half of the test images chooses
learning rate and knobs, the second half is reported. Every run is searched in the same way. First on one class
(``--tune-on``): settings drawn from its ladders, all on one seed, the best eight of them on a second, the best four on two
more; then settings one step away from the winner on two seeds, the best two of them on two more. Then for all classes: a
second list, drawn up from what the first search showed (the same for both partial AUC runs), all on that class, the best six
on three more classes, the best three on all ten; last the other values of the winner's own knob. AdamW with a cosine, bf16,
random flips and crops, cutout; every run sees the same number of images (32 + 224 per step). Every network is evaluated twice: with the
batch-norm statistics of its own training batches, and with those of 20 uniform batches
(``torch.optim.swa_utils.update_bn``), since draws by importance or by class are not the data; which of the two a method
uses is chosen like its knobs. Runs are kept in runs.jsonl, and those that are there are not run again: a call that was
stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from kept import Choice, Job, Kept, Row, adam
from metrics import auroc, average_precision
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import update_bn

import fcco
from fcco import objectives as zoo
from fcco.lab.models import resnet18

# What is searched. decay: AdamW's. cutout: the side of the square that is hidden in every training image. hardness:
# margin^2 / temperature, the exponent of a pair with equal scores. knob: beta of SOX, importance of the memory, L2 (inside
# Adam's moments) of cross-entropy.
BASE = {"lr": (5e-4, 1e-3), "decay": (0.0, 1.0, 3.0, 10.0), "cutout": (0.0, 8.0, 16.0)}
PAUC = BASE | {"margin": (8.0, 20.0), "hardness": (9.0, 16.0)}
LADDERS: dict[str, dict[str, tuple[float, ...]]] = {
    "memory": PAUC | {"knob": (0.25, 0.5)},
    "SOX": PAUC | {"knob": (0.5, 0.9)},
    "cross-entropy": BASE | {"margin": (0.0,), "hardness": (0.0,), "knob": (0.0, 5e-4)},
}
DRAWN = {"memory": 20, "SOX": 20, "cross-entropy": 12}  # settings from the ladders; SOX and memory get the same ones
WIDE: dict[
    str, list[Choice]
] = {  # the best four of a first search: lr 2.5e-4 to 2e-3, decay to 3, margin 5 to 20, hardness 1 to 9
    "memory": [
        (5e-4, 1.0, 0.0, 8.0, 9.0, 0.5),
        (1e-3, 0.0, 0.0, 20.0, 9.0, 0.5),
        (1e-3, 1.0, 0.0, 5.0, 9.0, 0.25),
        (1e-3, 3.0, 0.0, 20.0, 9.0, 0.25),
    ],
    "SOX": [
        (1e-3, 0.0, 0.0, 20.0, 9.0, 0.9),
        (5e-4, 1.0, 0.0, 12.0, 9.0, 0.9),
        (1e-3, 3.0, 0.0, 20.0, 9.0, 0.5),
        (5e-4, 1.0, 0.0, 8.0, 9.0, 0.9),
    ],
    "cross-entropy": [
        (1e-3, 0.0, 0.0, 0.0, 0.0, 0.0),
        (1e-3, 0.3, 0.0, 0.0, 0.0, 1e-4),
        (1e-3, 0.0, 0.0, 0.0, 0.0, 5e-4),
        (5e-4, 1.0, 0.0, 0.0, 0.0, 5e-4),
    ],
}
SEEDS = (100, 101, 102, 103)
RUNGS = ((1, 24), (2, 8), (4, 4))  # how many of the seeds, and how many settings get them at most
STEPS: tuple[dict[str, float], ...] = (  # away from the winner: factors
    {"decay": 2.0},
    {"lr": 0.5, "decay": 2.0},
    {"lr": 0.5, "decay": 4.0},
    {"margin": 2.0},
    {"hardness": 16 / 9},
)
AROUND = ((2, 12), (4, 2))  # like RUNGS, for the settings one step away
WALKS = 1  # how often the winner may move to one of those
_DECAYS = {  # learning rate, decay: the first search went to small rates with a product of the two of 0.005
    "first": (2.5e-4, 20.0),
    "more": (2.5e-4, 28.0),
    "less": (2.5e-4, 14.0),
    "slower": (1.25e-4, 40.0),
    "slower, more": (1.25e-4, 56.0),
    "slower, less": (1.25e-4, 28.0),
    "slowest": (6.25e-5, 80.0),
}
_LOSSES = (0.0, 8.0, 9.0), (0.0, 20.0, 9.0), (0.0, 8.0, 16.0), (0.0, 20.0, 16.0)  # cutout, margin, hardness
_FURTHER = [
    *product(("first", "less", "slower"), (*_LOSSES, (8.0, 20.0, 9.0))),
    *product(("more", "slower, less"), _LOSSES),
    *product(("slower, more", "slowest"), _LOSSES[:2]),
    ("first", (8.0, 8.0, 9.0)),
    ("slower", (0.0, 4.0, 9.0)),
]
FURTHER: dict[str, list[Choice]] = {  # the second search
    "memory": [(*_DECAYS[name], *loss, 0.5) for name, loss in _FURTHER],
    "SOX": [(*_DECAYS[name], *loss, 0.5) for name, loss in _FURTHER],
    "cross-entropy": [
        (lr, decay, cutout, 0.0, 0.0, 0.0) for lr, decay, cutout in product((5e-4, 1e-3), (1.0, 3.0), (8.0, 16.0))
    ],
}
KNOBS = {"memory": (0.25, 0.75), "SOX": (0.25, 0.9), "cross-entropy": (1e-4, 5e-4)}  # other values for its winner
SECOND = ((1, 32), (4, 6), (10, 3))  # like RUNGS, but classes for seeds
LAST = ((4, 2), (10, 1))  # for the other values of the knob
BATCHES = 20  # uniform ones, for the batch-norm statistics
NAMES = ("class", "run", "lr", "decay", "cutout", "margin", "hardness", "knob", "seed")  # of a run


class Network(nn.Module):
    """uint8 images (K, 3, 32, 32) -> scores (K,); flips, shifts and cutout in training, bf16 inside."""

    def __init__(self, cutout: int = 0) -> None:
        super().__init__()
        self.cutout = cutout
        self.net = resnet18(num_outputs=1, stem="small").to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        x = x.float().div(127.5).sub(1.0).contiguous(memory_format=torch.channels_last)
        if self.training:
            x = _augment(x, self.cutout)
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.net(x).float()[:, 0]


def _augment(x: Tensor, cutout: int) -> Tensor:
    """Every image flipped or not, shifted by up to 4 pixels, and a square of it set to grey, on its own."""
    flip = torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5
    x = functional.pad(torch.where(flip, x.flip(3), x), (4, 4, 4, 4))
    top, left = torch.randint(9, (2, len(x), 1), device=x.device)
    span = torch.arange(32, device=x.device)
    image = torch.arange(len(x), device=x.device)[:, None, None]
    cut = x.permute(0, 2, 3, 1)[image, (top + span)[:, :, None], (left + span)[:, None, :]]
    x = cut.permute(0, 3, 1, 2)
    if not cutout:
        return x
    rows, columns = torch.randint(32, (2, len(x), 1), device=x.device) - cutout // 2  # centres anywhere, as usual
    hidden = [(span >= start) & (span < start + cutout) for start in (rows, columns)]
    return x.masked_fill((hidden[0][:, :, None] & hidden[1][:, None, :])[:, None], 0.0)


@cache
def load(path: str, positive: int, device: str) -> dict[str, Tensor]:
    """500 images of the rare class and 22,500 others to train (fewer where the file holds fewer)."""
    with np.load(path, allow_pickle=False) as file:
        y, test_y = file["y_train"], file["y_test"]
        rows = np.concatenate([np.flatnonzero(y == positive)[:500], np.flatnonzero(y != positive)[:22500]])
        x = torch.from_numpy(file["x_train"][rows]).permute(0, 3, 1, 2).contiguous()
        test = torch.from_numpy(file["x_test"]).permute(0, 3, 1, 2).contiguous()
    arrays = {"x": x, "y": torch.from_numpy((y[rows] == positive).astype("int64")), "test_x": test}
    arrays["test_y"] = torch.from_numpy((test_y == positive).astype("int64"))
    return {name: value.to(device) for name, value in arrays.items()}


def train(run: str, data: dict[str, Tensor], choice: Choice, seed: int, epochs: int) -> nn.Module:
    torch.manual_seed(seed)
    model = Network(int(choice[2])).to(data["x"].device)
    steps = epochs * (len(data["y"]) // 256)
    (_train_plain if run == "cross-entropy" else partial(_train_ours, run))(
        model, data["x"], data["y"], choice, seed, steps
    )
    return model


def _train_plain(model: nn.Module, x: Tensor, y: Tensor, choice: Choice, seed: int, steps: int) -> None:
    """Cross-entropy on as many of the rare class per step as the others get."""
    lr, decay, *_, l2 = choice
    generator = torch.Generator(x.device).manual_seed(seed)
    pools = (y == 1).nonzero()[:, 0], (y == 0).nonzero()[:, 0]
    optimizer = adam(model.parameters(), lr, decay, l2)
    for step in range(steps):
        _cosine(optimizer, lr, step, steps)
        sizes = zip(pools, (32, 224), strict=True)
        rows = torch.cat([p[torch.randint(len(p), (n,), generator=generator, device=x.device)] for p, n in sizes])
        optimizer.zero_grad()
        functional.binary_cross_entropy_with_logits(model(x[rows]), y[rows].float()).backward()
        optimizer.step()


def _train_ours(run: str, model: nn.Module, x: Tensor, y: Tensor, choice: Choice, seed: int, steps: int) -> None:
    lr, decay, _, margin, hardness, knob = choice
    loss, temperature = zoo.SquaredHinge(margin=margin), margin**2 / hardness
    objective = zoo.PartialAUC(model, fcco.data.Points(x, y), temperature=temperature, loss=loss).to(x.device)
    optimizer = adam(objective.parameters(), lr, decay)
    method = fcco.output_memory(importance=knob) if run == "memory" else fcco.soap(beta=knob)
    solver = fcco.Solver(objective, optimizer, method)
    for step, batch in enumerate(solver.loader(blocks=32, samples=224, seed=seed, steps_per_epoch=steps)):
        _cosine(optimizer, lr, step, steps)
        solver.step(batch)


def _cosine(optimizer: torch.optim.Optimizer, lr: float, step: int, steps: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr * 0.5 * (1 + float(np.cos(np.pi * step / steps)))


def evaluate(model: nn.Module, data: dict[str, Tensor], seed: int) -> dict[str, float]:
    """Metrics with the network's own batch-norm statistics, and (``uniform_...``) with those of uniform batches."""
    found = _metrics(model, data)
    generator = torch.Generator(data["x"].device).manual_seed(seed)
    rows = torch.randint(len(data["x"]), (BATCHES, 256), generator=generator, device=data["x"].device)
    update_bn((data["x"][batch] for batch in rows), model)
    return found | {f"uniform_{name}": value for name, value in _metrics(model, data).items()}


@torch.no_grad()
def _metrics(model: nn.Module, data: dict[str, Tensor]) -> dict[str, float]:
    model.eval()
    scores = torch.cat([model(part) for part in data["test_x"].split(2000)]).cpu()
    trained = torch.cat([model(part) for part in data["x"].split(2000)]).cpu()
    y, half = data["test_y"].cpu(), len(scores) // 2
    return {
        "train_ap": average_precision(trained, data["y"].cpu()),
        "valid_auroc": auroc(scores[:half], y[:half]),
        "valid_ap": average_precision(scores[:half], y[:half]),
        "auroc": auroc(scores[half:], y[half:]),
        "ap": average_precision(scores[half:], y[half:]),
    }


def one(path: str, device: str, epochs: int, positive: int, run: str, *choice_and_seed: float) -> Row:
    """A run; one that gave up on values that are not finite has AP 0."""
    torch.set_num_threads(1)
    choice, seed = choice_and_seed[:-1], int(choice_and_seed[-1])
    data, start = load(path, positive, device), time.perf_counter()
    row: Row = dict(zip(NAMES, (positive, run, *choice, seed), strict=True))
    try:
        row |= evaluate(train(run, data, choice, seed, epochs), data, seed)
    except fcco.NonFiniteError as error:
        names = ("train_ap", "valid_auroc", "valid_ap", "auroc", "ap")
        row |= {which + name: 0.0 for which in ("", "uniform_") for name in names} | {"error": str(error)}
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def value(rows: list[Row]) -> tuple[float, str]:
    """Mean AP on the choosing half, with the better batch-norm statistics: "" (the network's own) or "uniform_"."""
    return max((statistics.mean(row[f"{which}valid_ap"] for row in rows), which) for which in ("", "uniform_"))


def search(kept: Kept, run: str, positive: int) -> Choice:
    """The best setting found for one class."""

    def job(choice: Choice, seed: int) -> Job:
        return (positive, run, *choice, seed)

    drawn: list[Choice] = random.Random(0).sample(list(product(*LADDERS[run].values())), DRAWN[run])
    best = kept.halved(list(dict.fromkeys([*WIDE[run], *drawn])), SEEDS, RUNGS, job, value)[0]
    for _ in range(WALKS):
        near = kept.halved(neighbours(run, best[1]), SEEDS, AROUND, job, value)[0]
        if near <= best:
            break
        best = near
    return best[1]


def search_further(kept: Kept, run: str, first: Choice, classes: list[int]) -> tuple[str, Choice]:
    """Which batch-norm statistics, and the best setting for all classes; ``first`` is what one class alone chose."""

    def job(choice: Choice, positive: int) -> Job:
        return (positive, run, *choice, SEEDS[0])

    best = kept.halved(list(dict.fromkeys([first, *FURTHER[run]])), classes, SECOND, job, value)[0]
    knobs = [(*best[1][:-1], knob) for knob in KNOBS[run]]
    (_, which), choice = max(best, kept.halved(knobs, classes, LAST, job, value)[0])
    return which, choice


def neighbours(run: str, choice: Choice) -> list[Choice]:
    """One step away from a setting, or the other knob of the ladder."""
    names = tuple(LADDERS[run])
    found = [tuple(value * step.get(name, 1.0) for name, value in zip(names, choice, strict=True)) for step in STEPS]
    found += [(*choice[:-1], knob) for knob in LADDERS[run]["knob"]]
    return [other for other in dict.fromkeys(found) if other != choice]


def study(kept: Kept, options: argparse.Namespace, run: str) -> tuple[str, Choice, list[Row]]:
    first = options.tune_on
    order = [first, *(c for c in range(10) if c != first)]
    which, choice = search_further(kept, run, search(kept, run, first), order)
    cases = [(c, seed) for c in options.classes for seed in range(options.seeds)]
    cases += [(c, seed) for seed in range(options.more_seeds) for c in options.more]
    return which, choice, kept.gather([(c, run, *choice, seed) for c, seed in cases])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--classes", type=int, nargs="*", default=[3])
    parser.add_argument("--more", type=int, nargs="*", default=[], help="classes that get --more-seeds seeds only")
    parser.add_argument("--more-seeds", type=int, default=2)
    parser.add_argument("--runs", nargs="*", choices=LADDERS, default=list(LADDERS))
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tune-on", type=int, default=3, help="the class on which the searches begin")
    parser.add_argument("--out", type=Path, default=Path("results/cifar_rare"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    start, call = time.perf_counter(), partial(one, options.data, options.device, options.epochs)
    with Kept(options.out / "runs.jsonl", NAMES, call, options.workers) as kept, ThreadPoolExecutor() as threads:
        found = dict(zip(options.runs, threads.map(partial(study, kept, options), options.runs), strict=True))
    text = table(found, [*options.classes, *options.more])
    (options.out / "table.md").write_text(text + "\n")
    minutes = round((time.perf_counter() - start) / 60, 1)
    device = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    facts = {"torch": torch.__version__, "fcco": fcco.__version__, "device": device, "epochs": options.epochs,
             "ladders": LADDERS, "drawn": DRAWN, "wide": WIDE, "rungs": RUNGS, "steps": STEPS, "around": AROUND, "walks": WALKS, "tuned on first": options.tune_on, "further": FURTHER, "knobs": KNOBS, "second": SECOND, "last": LAST, "classes": options.classes, "seeds": options.seeds, "more": options.more, "more seeds": options.more_seeds,
             "chosen": {run: (which, *choice) for run, (which, choice, _) in found.items()},
             "minutes of the last call": minutes}  # fmt: skip
    (options.out / "configuration.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(text)
    print(f"{minutes} minutes")


def table(found: dict[str, tuple[str, Choice, list[Row]]], classes: list[int]) -> str:
    names, lines = NAMES[2:-1], ["| run | chosen (of the ladders) | batch-norm statistics |", "|---|---|---|"]
    for run, (which, choice, _) in found.items():
        knobs = ", ".join(f"{name} {value:g}" for name, value in zip(names, choice, strict=True))
        lines.append(f"| {run} | {knobs} | {'uniform' if which else 'own'} |")
    lines += ["", "| class | run | seeds | train AP | test AUROC | test AP |", "|---" * 6 + "|"]
    means: dict[str, list[float]] = {run: [] for run in found}
    for c in classes:
        for run, (which, _, rows) in found.items():
            own = [r for r in rows if r["class"] == c]
            columns = {metric: [r[which + metric] for r in own] for metric in ("train_ap", "auroc", "ap")}
            cells = [
                f"{statistics.mean(values):.4f} ± {statistics.stdev(values) if len(values) > 1 else 0:.4f}"
                for values in columns.values()
            ]
            means[run].append(statistics.mean(columns["ap"]))
            lines.append(f"| {c} | {run} | {len(own)} | {' | '.join(cells)} |")
    if len(classes) > 1:
        lines += [f"| mean | {run} | | | | {statistics.mean(aps):.4f} |" for run, aps in means.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

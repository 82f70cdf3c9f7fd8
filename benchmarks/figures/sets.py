"""The data sets at hand, as the plan counts on them, and how they differ from the published ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Set:
    """A data set.

    Args:
        classes: m.
        train: n, training examples at hand.
        size: height and width of an image; 0: a table.
        note: how it differs from the published set; "" where it does not.
        made_of: the set that it is derived from by `prepare`; None: it comes as it is.
        components: of a derived set: whitened principal components of its n examples, the first ones of that set.
    """

    classes: int
    train: int
    size: int
    note: str = ""
    made_of: str | None = None
    components: int = 0


SETS = {
    "cifar10": Set(10, 50_000, 32),
    "fashion-mnist": Set(10, 60_000, 28),
    "svhn": Set(10, 25_000, 32, "part: first 25,000 of train, first 5,000 of test"),
    "stl10": Set(10, 5_000, 32, "derived: 32x32 means of the 96x96 images"),
    "mnist": Set(10, 60_000, 28),
    "cifar100": Set(100, 25_000, 32, "part: first half of train"),
    "digits": Set(10, 1_442, 8, "scikit-learn's, for tests"),
    "mnist-pca32": Set(10, 6_000, 0, "derived: 32 whitened components, first 6,000", "mnist", 32),
    "cifar10-pca64": Set(10, 50_000, 0, "derived: 64 whitened components", "cifar10", 64),
    "cifar100-pca64": Set(100, 25_000, 0, "derived: 64 whitened components, half of train", "cifar100", 64),
    "cifar10-2k-pca64": Set(10, 2_000, 0, "derived: 64 whitened components, first 2,000", "cifar10", 64),
    "fashion-mnist-2k-pca64": Set(10, 2_000, 0, "derived: 64 whitened components, first 2,000", "fashion-mnist", 64),
    "svhn-2k-pca64": Set(10, 2_000, 0, "derived: 64 whitened components, first 2,000", "svhn", 64),
    "stl10-2k-pca64": Set(10, 2_000, 0, "derived: 64 components of 32x32 means, first 2,000", "stl10", 64),
    "mnist-2k-pca64": Set(10, 2_000, 0, "derived: 64 whitened components, first 2,000", "mnist", 64),
    "cifar100-2k-pca64": Set(100, 2_000, 0, "derived: 64 whitened components, first 2,000", "cifar100", 64),
}


def prepare(folder: Path) -> list[Path]:
    """Write the derived sets beside the sets that they are made of."""
    written = []
    for name, facts in SETS.items():
        if facts.made_of is None or not (folder / f"{facts.made_of}.npz").exists():
            continue
        target = folder / f"{name}.npz"
        _whiten(folder / f"{facts.made_of}.npz", target, facts)
        written.append(target)
    return written


def _whiten(source: Path, target: Path, facts: Set) -> None:
    """Principal components with unit variance: a linear model's problem is then well conditioned."""
    import numpy as np

    with np.load(source) as arrays:
        n = facts.train
        train = arrays["x_train"][:n].reshape(n, -1).astype(np.float64)  # (N, F)
        test = arrays["x_test"].reshape(len(arrays["x_test"]), -1).astype(np.float64)
        labels = {"y_train": arrays["y_train"][:n], "y_test": arrays["y_test"]}
    mean = train.mean(0)
    values, vectors = np.linalg.eigh(np.cov(train.T))  # ascending
    turned = vectors[:, -facts.components :] / np.sqrt(values[-facts.components :])  # (F, components)
    parts = {"x_train": ((train - mean) @ turned), "x_test": ((test - mean) @ turned)}
    np.savez(target, **{name: part.astype(np.float32) for name, part in parts.items()}, **labels)

"""LibAUC's image problems: CIFAR-10 in two halves with rare positives, its two networks, its draws and its metrics.

Classes 0 to 4 are negative, 5 to 9 positive. The generator, the transforms and the draws are those of LibAUC's notebooks,
written anew from their description; images are uint8 on the device and augmented there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor, nn
from torch.nn import functional

from fcco.lab.models import resnet18

SIDE, CROP = 32, 30


def imbalanced(y: np.ndarray, ratio: float, seed: int) -> np.ndarray:
    """Row numbers of all negatives and as many positives as make their share ``ratio``, shuffled; 0.5 keeps all.

    Args:
        y: (N,) classes; the upper half of them is positive.
        ratio: the share of positives.
        seed: of NumPy's legacy generator.
    """
    order = np.random.RandomState(seed).permutation(len(y))
    positive = y[order] > y.max() // 2
    kept = order
    if ratio < 0.5:
        count = int(ratio / (1 - ratio) * np.count_nonzero(~positive))
        kept = np.concatenate([order[~positive], order[positive][:count]])
    return kept[np.random.RandomState(seed).permutation(len(kept))]


@dataclass(frozen=True)
class Images:
    """x (N, 3, 32, 32) uint8 and y (N,) of three parts, on the device; validation is empty where nothing is held out."""

    x_train: Tensor
    y_train: Tensor
    x_valid: Tensor
    y_valid: Tensor
    x_test: Tensor
    y_test: Tensor


def make_images(
    arrays: dict[str, np.ndarray],
    ratio: float,
    data_seed: int,
    test_ratio: float,
    hold_out: float,
    seed: int,
    device: str,
) -> Images:
    """LibAUC's training and test images; a share of the training images, per class, is held out by ``seed``.

    Args:
        arrays: x_train (N, 32, 32, 3) uint8, y_train, x_test, y_test.
        ratio, data_seed: of the training images' generator.
        test_ratio: of the test images' generator.
        hold_out: the share that validates.
        seed: of what is held out.
        device: where the images lie.
    """
    rows = imbalanced(arrays["y_train"], ratio, data_seed)
    y = arrays["y_train"][rows] > arrays["y_train"].max() // 2
    held = np.zeros(len(rows), dtype=bool)
    generator = np.random.RandomState(seed)
    for value in (False, True):
        places = np.flatnonzero(y == value)
        held[generator.permutation(places)[: round(hold_out * len(places))]] = True
    test = imbalanced(arrays["y_test"], test_ratio, data_seed)
    test_y = arrays["y_test"][test] > arrays["y_test"].max() // 2

    def images(x: np.ndarray) -> Tensor:
        return torch.from_numpy(x).permute(0, 3, 1, 2).contiguous().to(device)

    def labels(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values.astype("float32")).to(device)

    x = arrays["x_train"][rows]
    return Images(
        images(x[~held]),
        labels(y[~held]),
        images(x[held]),
        labels(y[held]),
        images(arrays["x_test"][test]),
        labels(test_y),
    )


@cache
def read_arrays(path: str) -> dict[str, np.ndarray]:
    """The arrays of an npz file, once per process."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


class Augmented(nn.Module):
    """uint8 images (K, 3, 32, 32) -> (K, 1); in training a random 30x30 crop, a flip, and back to 32x32."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        x = x.float() / 255
        if self.training:
            x = augment(x)
        outputs: Tensor = self.net(x)
        return outputs


def augment(x: Tensor) -> Tensor:
    """Every image (K, 3, 32, 32) cropped and flipped on its own."""
    count = len(x)
    top, left = torch.randint(SIDE - CROP + 1, (2, count, 1), device=x.device)
    span = torch.arange(CROP, device=x.device)
    image = torch.arange(count, device=x.device)[:, None, None]
    columns = left + span  # (K, 30)
    flip = torch.rand(count, 1, device=x.device) < 0.5
    columns = torch.where(flip, columns.flip(1), columns)
    cropped = x.permute(0, 2, 3, 1)[image, (top + span)[:, :, None], columns[:, None, :]]  # (K, 30, 30, 3)
    return functional.interpolate(cropped.permute(0, 3, 1, 2), size=(SIDE, SIDE), mode="bilinear", align_corners=False)


class _Block(nn.Module):
    """Two 3x3 convolutions; the shortcut drops every second pixel and fills new channels with zeros."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.stride = after // before
        self.extra = (after - before) // 2  # channels on either side
        self.conv1 = nn.Conv2d(before, after, 3, stride=self.stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.extra, self.extra))
        residual = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(residual)) + shortcut)


class ResNet20(nn.Module):
    """The CIFAR network of He et al. (2016), section 4.2: (K, 3, 32, 32) -> (K, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        widths = (16, 16, 16, 16, 32, 32, 32, 64, 64, 64)
        self.blocks = nn.Sequential(*[_Block(widths[k], widths[k + 1]) for k in range(9)])
        self.fc = nn.Linear(64, 1)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.xavier_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(x)))
        outputs: Tensor = self.fc(self.blocks(x).mean((2, 3)))
        return outputs


class Tiny(nn.Module):
    """A stand-in for tests: (K, 3, 32, 32) -> (K, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 8, stride=8)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.fc(functional.relu(self.bn(self.conv(x))).flatten(1))
        return outputs


def image_network(name: str, seed: int) -> Augmented:
    """ResNet-18 with ImageNet's stem, ResNet-20 or the stand-in; its last layer is called ``fc``."""
    torch.manual_seed(seed)
    if name == "resnet20":
        return Augmented(ResNet20())
    if name == "tiny":
        return Augmented(Tiny())
    return Augmented(resnet18(num_outputs=1, stem="imagenet"))


class DualDraws:
    """Batches with a fixed number of positives in front, then negatives; either class is gone through, then shuffled anew.

    Args:
        y: (N,) of 0 and 1.
        batch: rows per batch.
        rate: the share of positives in it.
        seed: of the shuffles.
    """

    def __init__(self, y: np.ndarray, batch: int, rate: float, seed: int) -> None:
        self.random = np.random.RandomState(seed)
        positives = max(1, int(rate * batch))
        self.pools = [np.flatnonzero(y == 1), np.flatnonzero(y == 0)]
        self.sizes = [positives, batch - positives]
        self.places = [0, 0]
        for pool in self.pools:
            self.random.shuffle(pool)
        self.steps = max(len(pool) // size for pool, size in zip(self.pools, self.sizes, strict=True))

    def epoch(self) -> Iterator[np.ndarray]:
        """Row numbers of the batches of one epoch."""
        for _ in range(self.steps):
            yield np.concatenate([self._take(which) for which in (0, 1)])

    def _take(self, which: int) -> np.ndarray:
        pool = self.pools[which]
        taken = pool[self.places[which] : self.places[which] + self.sizes[which]]
        self.places[which] += self.sizes[which]
        while len(taken) < self.sizes[which]:
            self.random.shuffle(pool := pool.copy())
            missing = self.sizes[which] - len(taken)
            taken = np.concatenate([taken, pool[:missing]])
            self.pools[which] = pool
            self.places[which] = missing
        return taken


class ShuffledDraws:
    """Plain shuffled batches; the last one may be smaller."""

    def __init__(self, count: int, batch: int, seed: int) -> None:
        self.random = np.random.RandomState(seed)
        self.count = count
        self.batch = batch
        self.steps = -(-count // batch)

    def epoch(self) -> Iterator[np.ndarray]:
        order = self.random.permutation(self.count)
        for start in range(0, self.count, self.batch):
            yield order[start : start + self.batch]


def image_score(metric: str, scores: Tensor, y: Tensor) -> float:
    """AUROC, AP, pAUC(FPR <= 0.3) as scikit-learn has it, or TPAUC(0.3, 0.7)."""
    values = scores.detach().double().cpu().numpy()
    labels = y.cpu().numpy()
    if metric == "average_precision":
        return float(average_precision_score(labels, values))
    if metric == "roc_auc":
        return float(roc_auc_score(labels, values))
    if metric == "partial_auc":
        return float(roc_auc_score(labels, values, max_fpr=0.3))
    return two_way(values, labels)


def two_way(scores: np.ndarray, y: np.ndarray, max_fpr: float = 0.3, min_tpr: float = 0.7) -> float:
    """The AUROC of the hardest positives (a share of 1 - min_tpr) against the hardest negatives (max_fpr)."""
    positives = np.sort(scores[y == 1])
    negatives = np.sort(scores[y == 0])[::-1]
    positives = positives[: max(1, round((1 - min_tpr) * len(positives)))]
    negatives = negatives[: max(1, round(max_fpr * len(negatives)))]
    both = np.concatenate([positives, negatives])
    return float(roc_auc_score(np.arange(len(both)) < len(positives), both))

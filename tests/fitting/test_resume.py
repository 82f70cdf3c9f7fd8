"""A fit that is stopped goes on bit for bit; one of something else is refused."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fcco
from fcco.fitting import Progress, Recipe, Setting

PLAIN = (Setting("plain", 1e-2, 0.1), Setting("plain", 3e-3, 1.0))
QUICK = Recipe(epochs=3, least_examples=1, checks=6, plain=PLAIN)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))


def rare(size: int = 300) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, 6, generator=generator)
    return x, (x[:, 0] + 0.3 * torch.randn(size, generator=generator) > 1.2).long()


class Interrupt:
    """Presses Ctrl-C at the n-th check."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.calls = 0

    def __call__(self, progress: Progress) -> None:
        self.calls += 1
        if self.calls == self.at:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("at", [1, 9, 17])
def test_interrupted_fits_go_on_bit_for_bit(tmp_path: Path, at: int) -> None:
    options: dict[str, Any] = {"metric": "average_precision", "recipe": QUICK, "progress": False}
    whole = fcco.fit(net(), rare(), **options)
    path = tmp_path / "fit.pt"
    with pytest.raises(KeyboardInterrupt):
        fcco.fit(net(), rare(), checkpoint=path, callbacks=[Interrupt(at)], **options)
    counted: list[Progress] = []
    resumed = fcco.fit(net(), rare(), checkpoint=path, callbacks=[counted.append], **options)
    assert resumed.history == whole.history
    assert resumed.chosen == whole.chosen
    assert resumed.examples == whole.examples
    assert torch.equal(resumed.predict(rare()[0]), whole.predict(rare()[0]))
    assert len(counted) < len(whole.history)


def test_a_finished_fit_is_not_trained_again(tmp_path: Path) -> None:
    path = tmp_path / "fit.pt"
    first = fcco.fit(net(), rare(), checkpoint=path, recipe=QUICK, progress=False)
    heard: list[Progress] = []
    second = fcco.fit(net(), rare(), checkpoint=path, recipe=QUICK, progress=False, callbacks=[heard.append])
    assert heard == []
    assert torch.equal(first.predict(rare()[0]), second.predict(rare()[0]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metric": "roc_auc"}, "another fit: its metric is"),
        ({"seed": 1}, "another fit: its seed is 0, but here it is 1"),
        ({"batch_size": 16}, "another fit: its batch_size is"),
        ({"recipe": Recipe(epochs=4, least_examples=1, checks=6, plain=PLAIN)}, "another fit: its recipe is"),
    ],
)
def test_a_checkpoint_of_another_fit_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = tmp_path / "fit.pt"
    options: dict[str, Any] = {"metric": "average_precision", "recipe": QUICK, "progress": False}
    fcco.fit(net(), rare(), checkpoint=path, **options)
    with pytest.raises(fcco.CheckpointError, match=words):
        fcco.fit(net(), rare(), checkpoint=path, **(options | change))


def test_a_checkpoint_of_other_data_or_another_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fit.pt"
    x, y = rare()
    fcco.fit(net(), (x, y), checkpoint=path, recipe=QUICK, progress=False)
    changed = x.clone()
    changed[3, 1] += 1e-3
    with pytest.raises(fcco.CheckpointError, match=r"another fit: its (training|validation) data is"):
        fcco.fit(net(), (changed, y), checkpoint=path, recipe=QUICK, progress=False)
    other = net()
    other[0].weight.data[0, 0] += 1.0
    with pytest.raises(fcco.CheckpointError, match="another fit: its model is"):
        fcco.fit(other, (x, y), checkpoint=path, recipe=QUICK, progress=False)

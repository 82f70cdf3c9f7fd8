"""A trained model on its own: the network, how its inputs are scaled, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fcco._support.files import replace_file, save_content
from fcco.lab import models
from fcco.lab.errors import LabError, one_line

if TYPE_CHECKING:
    from fcco.lab.config import TrainConfig
    from fcco.lab.parts import Parts


class Prepared(nn.Module):
    """Raw examples in, scores out: scales the examples, then runs the network.

    Args:
        net: the network.
        mean: of the training data, one number per channel or feature, broadcastable to an example.
        spread: their standard deviation.
        bf16: run the network under bfloat16 autocast.
    """

    def __init__(self, net: nn.Module, mean: Tensor, spread: Tensor, *, bf16: bool = False) -> None:
        super().__init__()
        self.net = net
        self._bf16 = bf16
        self.mean: Tensor
        self.spread: Tensor
        self.register_buffer("mean", mean)
        self.register_buffer("spread", spread)

    def forward(self, x: Tensor) -> Tensor:
        scaled = (x.to(self.mean.dtype) - self.mean) / self.spread
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self._bf16):
            out: Tensor = self.net(scaled)
        if self._bf16:
            return out.float()
        return out


def scaling(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and spread of examples, one number per channel (C, 1, 1) or feature (F,); constant ones have spread 1."""
    axes: tuple[int, ...] = (0,)
    if x.dim() == 4:
        axes = (0, 2, 3)
    some = x[:: max(1, x.shape[0] // 10_000)].double()
    spread, mean = torch.std_mean(some, axes, correction=0, keepdim=True)
    return mean[0].float(), torch.where(spread > 0, spread, 1.0)[0].float()


def network(config: TrainConfig, in_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """The network that a configuration names."""
    if config.model == "mlp":
        return models.build("mlp", in_shape, num_outputs, hidden=config.hidden)
    if config.model == "linear":
        return models.build("linear", in_shape, num_outputs)
    return models.build(config.model, in_shape, num_outputs, stem=config.stem)


def save_weights(path: Path, parts: Parts) -> None:
    """Write the trained model to a file of its own; :func:`load_model` reads it."""
    config = parts.config
    content = {
        "model": config.model,
        "hidden": list(config.hidden),
        "stem": config.stem,
        "in_shape": list(parts.data.in_shape),
        "classes": list(parts.data.classes),
        "state": parts.model.state_dict(),
    }
    replace_file(path, lambda file: save_content(content, file))


def load_model(run: str | Path) -> Prepared:
    """The model of a finished run, ready to score raw examples (N, ...): one column per task.

    Args:
        run: the run's folder, or its weights.pt.
    """
    from fcco.lab.config import TrainConfig

    path = Path(run)
    if path.is_dir():
        path = path / "weights.pt"
    try:
        content: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
        config = TrainConfig(model=content["model"], hidden=tuple(content["hidden"]), stem=content["stem"])
        net = network(config, tuple(content["in_shape"]), len(content["classes"]))
        net = net.to(content["state"]["mean"].dtype)  # double where it was trained so
        model = Prepared(net, content["state"]["mean"], content["state"]["spread"])
        model.load_state_dict(content["state"])
    except FileNotFoundError as error:
        raise LabError(f"no trained model at {path}") from error
    except Exception as error:
        raise LabError(f"{path} is damaged or holds no trained model: {one_line(error)}") from error
    return model.eval()

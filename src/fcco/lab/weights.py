"""A trained model on its own: the network, how its inputs are scaled, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from fcco._support.files import replace_file, save_content
from fcco.lab import models
from fcco.lab.config import DataConfig
from fcco.lab.errors import LabError, one_line
from fcco.lab.files import read_json
from fcco.lab.loaded import Loaded
from fcco.tables import TableEncoder, TableNetwork

if TYPE_CHECKING:
    from fcco.lab.parts import Parts

FORMAT = "fcco inputs"
VERSION = 1
INPUTS_FILE = "inputs.json"


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
    """Return mean and spread per channel (C, 1, 1) or feature (F,); the spread of constant ones is 1."""
    axes: tuple[int, ...] = (0,)
    if x.dim() == 4:
        axes = (0, 2, 3)
    some = x[:: max(1, x.shape[0] // 10_000)].double()
    spread, mean = torch.std_mean(some, axes, correction=0, keepdim=True)
    return mean[0].float(), torch.where(spread > 0, spread, 1.0)[0].float()


def new_model(settings: Mapping[str, Any], data: Loaded, *, bf16: bool = False) -> Prepared:
    """Return a network with fresh weights, which scales by the training part (tables are scaled by their encoder)."""
    net = network(settings, data.in_shape, data.encoder)
    if data.encoder is None:
        mean, spread = scaling(data.x_train)
    else:
        mean = torch.zeros(data.in_shape)
        spread = torch.ones(data.in_shape)
    return Prepared(net, mean, spread, bf16=bf16)


def network(settings: Mapping[str, Any], in_shape: tuple[int, ...], encoder: TableEncoder | None = None) -> nn.Module:
    """Build the network that settings name: model, outputs, hidden, stem; for tables dropout too."""
    model = settings["model"]
    outputs = settings["outputs"]
    hidden = tuple(settings["hidden"])
    if encoder is not None and model == "mlp":
        if len(set(hidden)) != 1:
            raise LabError(f"--hidden must be layers of one width for a table, got {', '.join(map(str, hidden))}")
        return TableNetwork(encoder, outputs, width=hidden[0], depth=len(hidden), dropout=settings["dropout"])
    if model == "table":
        assert encoder is not None
        return TableNetwork(encoder, outputs)
    if encoder is not None and encoder.categories:
        name = encoder.categories[0].name
        raise LabError(
            f"--model {model} takes only numbers, but column {name!r} holds words: use mlp, or --drop the column"
        )
    if model == "mlp":
        return models.build("mlp", in_shape, outputs, hidden=hidden)
    if model == "linear":
        return models.build("linear", in_shape, outputs)
    return models.build(model, in_shape, outputs, stem=settings["stem"])


# ------------------------------------------------------------------ what a run leaves behind


def describe_inputs(settings: Mapping[str, Any], data: Loaded, config: DataConfig) -> dict[str, Any]:
    """Describe how new data become a network's inputs, and what its scores are of: everything but the weights."""
    encoder = None
    if data.encoder is not None:
        encoder = data.encoder.to_dict()
    roles = [*config.target, config.query, config.time, config.event, config.group]
    return {
        "format": FORMAT,
        "version": VERSION,
        "network": dict(settings),
        "in_shape": list(data.in_shape),
        "images": data.x_train.dtype == torch.uint8,
        "outputs": list(data.outputs),
        "negative": data.negative,
        "roles": [name for name in roles if name is not None],
        "drop": list(config.drop),
        "encoder": encoder,
    }


@final
@dataclass(frozen=True, eq=False)
class Inputs:
    """What :func:`describe_inputs` wrote, read again.

    Args:
        model: the network, its weights still to come.
        described: the description as it is.
        encoder: from a table to the network's inputs; None: the data were no table.
    """

    model: Prepared
    described: Mapping[str, Any]
    encoder: TableEncoder | None


def read_inputs(run: Path) -> Inputs:
    """Read the description in a run's folder, with its network."""
    path = run / INPUTS_FILE
    if not path.exists():
        raise LabError(f"there is no trained model in {run} (it has no {INPUTS_FILE})")
    described = read_json(path)
    if described.get("format") != FORMAT or described.get("version") != VERSION:
        raise LabError(f"{path} was not written by this version of fcco")
    try:
        encoder = None
        if described["encoder"] is not None:
            encoder = TableEncoder.from_dict(described["encoder"])
        in_shape = tuple(described["in_shape"])
        net = network(described["network"], in_shape, encoder)
    except (KeyError, TypeError, ValueError) as error:
        raise LabError(f"{path} is damaged: {one_line(error)}") from error
    shape = in_shape
    if len(in_shape) == 3:
        shape = (in_shape[0], 1, 1)
    return Inputs(Prepared(net, torch.zeros(shape), torch.ones(shape)), described, encoder)


def save_weights(path: Path, parts: Parts) -> None:
    """Write the weights that a run keeps to a file of their own; :func:`load_model` reads it."""
    # Of the objective's state the network's part.
    state = {
        name.removeprefix("model."): value for name, value in parts.solver.kept().items() if name.startswith("model.")
    }
    replace_file(path, lambda file: save_content({"state": state}, file))


def load_model(run: str | Path) -> Prepared:
    """Load the model of a finished run of one method: it scores raw examples (N, ...), one column per task.

    Args:
        run: the run's folder, or its weights.pt.
    """
    path = Path(run)
    if path.is_dir():
        path = path / "weights.pt"
    if not path.exists():
        raise LabError(f"there is no trained model at {path}")
    model = read_inputs(path.parent).model
    try:
        content: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
        model = model.to(content["state"]["mean"].dtype)  # double where it was trained so
        model.load_state_dict(content["state"])
    except Exception as error:
        raise LabError(f"{path} is damaged or holds no trained model: {one_line(error)}") from error
    return model.eval()

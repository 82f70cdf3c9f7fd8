"""From a configuration to its objective: every one of fcco.objectives that a table, images or arrays can be for."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

import fcco.objectives as zoo
from fcco.data import Examples, Groups, Queries, RiskSets, Structure, Tasks
from fcco.lab.config import TrainConfig
from fcco.lab.errors import LabError
from fcco.lab.loaded import inputs_of
from fcco.lab.texts import OBJECTIVES
from fcco.objectives import OutputObjective, Square, SquaredHinge

_KINDS: dict[str, type[Structure]] = {
    "Tasks": Tasks,
    "Points": Tasks,
    "Examples": Tasks,
    "Queries": Queries,
    "RiskSets": RiskSets,
    "Groups": Groups,
}


def make_objective(config: TrainConfig, model: nn.Module, data: Structure) -> OutputObjective:
    """Make the objective over the training part."""
    return _MAKERS[config.objective](config, model, data)


def check_kind(config: TrainConfig, data: Structure) -> None:
    """Refuse an objective that the data are not for."""
    text = OBJECTIVES[config.objective]
    if text.flags is None:
        raise LabError(
            f"{config.objective} is for fcco.data.{text.data}, which a file cannot describe: use it from Python"
        )
    if not isinstance(data, _KINDS[text.data]):
        raise LabError(f"--objective {config.objective} needs {text.flags} and no other column flags")
    if config.objective == "NCA" and isinstance(data, Tasks) and data.y.dim() == 2 and data.y.shape[1] > 1:
        raise LabError("--objective NCA needs classes, but the data have several labels")
    owners = {"temperature": "PartialAUC", "strength": "GroupDRO"}
    for name, owner in owners.items():
        if getattr(config, name) is not None and config.objective != owner:
            raise LabError(f"--{name} is for --objective {owner}, got {config.objective}")


def num_outputs(config: TrainConfig, num_classes: int) -> int:
    """Return how many numbers the network gives per example."""
    if config.objective == "NCA":
        return config.embedding
    return num_classes


def _pair_loss(config: TrainConfig) -> SquaredHinge | Square:
    if config.loss == "squared-hinge":
        return SquaredHinge(margin=config.margin)
    return Square(margin=config.margin)


def _multi_task_auc(config: TrainConfig, model: nn.Module, data: Structure) -> OutputObjective:
    assert isinstance(data, Tasks)
    loss: SquaredHinge | Square
    if config.loss == "squared-hinge":
        loss = SquaredHinge(margin=config.margin, scale=0.5)
    else:
        loss = Square(margin=config.margin)  # not halved: so F is the pairwise square loss
    return zoo.MultiTaskAUC(
        model, data, loss=loss, trained_centers=config.trained_centers, positive_fraction=config.positive_fraction
    )


def _partial_auc(config: TrainConfig, model: nn.Module, data: Structure) -> OutputObjective:
    assert isinstance(data, Tasks)
    return zoo.PartialAUC(model, data.as_points(), temperature=config.temperature or 1.0, loss=_pair_loss(config))


def _average_precision(config: TrainConfig, model: nn.Module, data: Structure) -> OutputObjective:
    assert isinstance(data, Tasks)
    return zoo.AveragePrecision(model, data.as_points(), loss=_pair_loss(config))


def _p_norm_push(config: TrainConfig, model: nn.Module, data: Structure) -> OutputObjective:
    assert isinstance(data, Tasks)
    return zoo.PNormPush(model, data.as_points(), loss=_pair_loss(config))


def _nca(config: TrainConfig, model: nn.Module, data: Structure) -> OutputObjective:
    assert isinstance(data, Tasks)
    classes = data.y
    if classes.dim() == 2:
        classes = classes[:, 0].long()
    return zoo.NCA(model, Examples(inputs_of(data), classes))


def _ndcg(config: TrainConfig, model: nn.Module, data: Structure) -> OutputObjective:
    assert isinstance(data, Queries)
    return zoo.NDCG(model, data, surrogate=_pair_loss(config))


def _list_net(config: TrainConfig, model: nn.Module, data: Structure) -> OutputObjective:
    assert isinstance(data, Queries)
    return zoo.ListNet(model, data)


def _cox(config: TrainConfig, model: nn.Module, data: Structure) -> OutputObjective:
    assert isinstance(data, RiskSets)
    return zoo.Cox(model, data)


def _group_dro(config: TrainConfig, model: nn.Module, data: Structure) -> OutputObjective:
    assert isinstance(data, Groups)
    return zoo.GroupDRO(model, data, zoo.KLRisk(config.strength or 1.0))


_MAKERS: dict[str, Callable[[TrainConfig, nn.Module, Structure], OutputObjective]] = {
    "MultiTaskAUC": _multi_task_auc,
    "PartialAUC": _partial_auc,
    "AveragePrecision": _average_precision,
    "PNormPush": _p_norm_push,
    "NCA": _nca,
    "NDCG": _ndcg,
    "ListNet": _list_net,
    "Cox": _cox,
    "GroupDRO": _group_dro,
}

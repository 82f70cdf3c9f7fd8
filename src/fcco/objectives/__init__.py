"""Ready objectives, one file an application: each works with every method."""

from fcco.objectives.average_precision import AveragePrecision
from fcco.objectives.base import OutputObjective
from fcco.objectives.cox import Cox
from fcco.objectives.global_contrastive import GlobalContrastive, LearnedTemperature
from fcco.objectives.group_dro import CVaRRisk, GroupDRO, KLRisk
from fcco.objectives.listnet import ListNet
from fcco.objectives.multi_instance import MultiInstance
from fcco.objectives.multitask_auc import MultiTaskAUC
from fcco.objectives.nca import NCA
from fcco.objectives.ndcg import NDCG
from fcco.objectives.partial_auc import PartialAUC
from fcco.objectives.pnorm_push import Exponential, PNormPush
from fcco.objectives.smoothed import smoothed
from fcco.objectives.surrogates import Logistic, Square, SquaredHinge

__all__ = [
    "NCA",
    "NDCG",
    "AveragePrecision",
    "CVaRRisk",
    "Cox",
    "Exponential",
    "GlobalContrastive",
    "GroupDRO",
    "KLRisk",
    "LearnedTemperature",
    "ListNet",
    "Logistic",
    "MultiInstance",
    "MultiTaskAUC",
    "OutputObjective",
    "PNormPush",
    "PartialAUC",
    "Square",
    "SquaredHinge",
    "smoothed",
]

"""Ready objectives, one file per application: each works with every method."""

from fcco.objectives._average_precision import AveragePrecision
from fcco.objectives._base import OutputObjective
from fcco.objectives._cox import Cox
from fcco.objectives._global_contrastive import GlobalContrastive, LearnedTemperature
from fcco.objectives._group_dro import GroupDRO
from fcco.objectives._listnet import ListNet
from fcco.objectives._multi_instance import MultiInstance
from fcco.objectives._multitask_auc import MultiTaskAUC
from fcco.objectives._nca import NCA
from fcco.objectives._ndcg import NDCG
from fcco.objectives._partial_auc import PartialAUC
from fcco.objectives._pnorm_push import PNormPush
from fcco.objectives._risks import CVaRRisk, KLRisk
from fcco.objectives._smoothed import CVaR, Hinge, Max, smoothed
from fcco.objectives._surrogates import Exponential, Logistic, Square, SquaredHinge, Surrogate

__all__ = [
    "NCA",
    "NDCG",
    "AveragePrecision",
    "CVaR",
    "CVaRRisk",
    "Cox",
    "Exponential",
    "GlobalContrastive",
    "GroupDRO",
    "Hinge",
    "KLRisk",
    "LearnedTemperature",
    "ListNet",
    "Logistic",
    "Max",
    "MultiInstance",
    "MultiTaskAUC",
    "OutputObjective",
    "PNormPush",
    "PartialAUC",
    "Square",
    "SquaredHinge",
    "Surrogate",
    "smoothed",
]

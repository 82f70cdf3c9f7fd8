"""Ready objectives, one file an application: each works with every method."""

from fcco.objectives.base import OutputObjective
from fcco.objectives.multitask_auc import MultiTaskAUC
from fcco.objectives.surrogates import Logistic, Square, SquaredHinge

__all__ = ["Logistic", "MultiTaskAUC", "OutputObjective", "Square", "SquaredHinge"]

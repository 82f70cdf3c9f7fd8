"""From data to a model by naming the metric: :func:`fcco.fit`, the recipe behind it, and what it returns."""

from fcco.fitting._callbacks import Callback, MLflow, Progress, TensorBoard, WandB
from fcco.fitting._fit import fit
from fcco.fitting._goal import METRICS, Goal
from fcco.fitting._recipe import Recipe, Rung, Setting
from fcco.fitting._result import FitResult, load_result

__all__ = [
    "METRICS",
    "Callback",
    "FitResult",
    "Goal",
    "MLflow",
    "Progress",
    "Recipe",
    "Rung",
    "Setting",
    "TensorBoard",
    "WandB",
    "fit",
    "load_result",
]

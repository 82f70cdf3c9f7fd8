"""Methods: a tracker times an estimator. Recipes by name, and the parts that they are made of."""

from fcco.methods import estimators, schedules, stages, trackers
from fcco.methods._adaptive import Adaptive
from fcco.methods._output_memory import OutputMemory
from fcco.methods._recipes import (
    METHODS,
    Method,
    alexr,
    bsgd,
    bspiderboost,
    msvr_v1,
    msvr_v1_sp,
    msvr_v2,
    msvr_v2_sp,
    msvr_v3,
    output_memory,
    scent,
    soap,
    sonex,
    sonx,
    sox,
    storm_v1,
    storm_v2,
    variant_v1,
    variant_v2,
    variant_v3,
)
from fcco.methods.schedules import LRSchedule
from fcco.methods.stages import Stage

__all__ = [
    "METHODS",
    "Adaptive",
    "LRSchedule",
    "Method",
    "OutputMemory",
    "Stage",
    "alexr",
    "bsgd",
    "bspiderboost",
    "estimators",
    "msvr_v1",
    "msvr_v1_sp",
    "msvr_v2",
    "msvr_v2_sp",
    "msvr_v3",
    "output_memory",
    "scent",
    "schedules",
    "soap",
    "sonex",
    "sonx",
    "sox",
    "stages",
    "storm_v1",
    "storm_v2",
    "trackers",
    "variant_v1",
    "variant_v2",
    "variant_v3",
]

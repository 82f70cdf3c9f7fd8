"""fcco: finite-sum coupled compositional optimization, min_w (1/m) sum_i f_i(g_i(w)), in PyTorch."""

from fcco import estimators, memory, objectives, sampling, schedules, stages, trackers
from fcco.adaptive import Adaptive
from fcco.checkpoint import CheckpointError, load, save
from fcco.evaluate import NonFiniteError
from fcco.memory import output_memory
from fcco.methods import (
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
from fcco.objective import Objective, objective
from fcco.objectives import smoothed
from fcco.report import Diagnosis, Oracle, Report
from fcco.sampling import (
    Average,
    BagLoader,
    Batch,
    BlockLoader,
    BlockSampler,
    ExampleLoader,
    GroupLoader,
    MultiLabelPointLoader,
    PointLoader,
    QueryItemLoader,
    QueryLoader,
    RiskSetLoader,
)
from fcco.schedules import LRSchedule
from fcco.solver import Keep, NonFinite, Solver
from fcco.stages import Stage, StageWise
from fcco.watch import CorrectionWarning

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "Adaptive",
    "Average",
    "BagLoader",
    "Batch",
    "BlockLoader",
    "BlockSampler",
    "CheckpointError",
    "CorrectionWarning",
    "Diagnosis",
    "ExampleLoader",
    "GroupLoader",
    "Keep",
    "LRSchedule",
    "Method",
    "MultiLabelPointLoader",
    "NonFinite",
    "NonFiniteError",
    "Objective",
    "Oracle",
    "PointLoader",
    "QueryItemLoader",
    "QueryLoader",
    "Report",
    "RiskSetLoader",
    "Solver",
    "Stage",
    "StageWise",
    "alexr",
    "bsgd",
    "bspiderboost",
    "estimators",
    "load",
    "memory",
    "msvr_v1",
    "msvr_v1_sp",
    "msvr_v2",
    "msvr_v2_sp",
    "msvr_v3",
    "objective",
    "objectives",
    "output_memory",
    "sampling",
    "save",
    "scent",
    "schedules",
    "smoothed",
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

"""Solver: a transaction around an engine, an estimator and an optimizer."""

from fcco.solver._gradients import NonFiniteError
from fcco.solver._record import Keep, NonFinite, Pending
from fcco.solver._report import Diagnosis, Oracle, Report
from fcco.solver._solver import Solver
from fcco.solver._stagewise import StageWise
from fcco.solver._tracked import TrackedBlocks
from fcco.solver._watch import CorrectionWarning

__all__ = [
    "CorrectionWarning",
    "Diagnosis",
    "Keep",
    "NonFinite",
    "NonFiniteError",
    "Oracle",
    "Pending",
    "Report",
    "Solver",
    "StageWise",
    "TrackedBlocks",
]

"""The theory, measured: ``fcco rates`` fits the slopes that the paper's Table 1 claims."""

from fcco.lab.rates.fit import Row
from fcco.lab.rates.runner import EXPERIMENTS, main, run

__all__ = ["EXPERIMENTS", "Row", "main", "run"]

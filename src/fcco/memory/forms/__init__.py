"""Forms: F as a function of a table of outputs, one file per way of comparing examples."""

from fcco.memory.forms._choice import form_of
from fcco.memory.forms._features import ContrastiveForm
from fcco.memory.forms._form import Evaluation, Form
from fcco.memory.forms._generic import GenericForm
from fcco.memory.forms._lists import ListForm, QueryExponentials, QueryPairs, RiskExponentials
from fcco.memory.forms._moments import MomentForm, moment_form
from fcco.memory.forms._pairwise import PairwiseForm, pairwise_form

__all__ = [
    "ContrastiveForm",
    "Evaluation",
    "Form",
    "GenericForm",
    "ListForm",
    "MomentForm",
    "PairwiseForm",
    "QueryExponentials",
    "QueryPairs",
    "RiskExponentials",
    "form_of",
    "moment_form",
    "pairwise_form",
]

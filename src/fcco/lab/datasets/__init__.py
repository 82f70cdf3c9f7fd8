"""Data sets by name from their original files, and ways in for your own data."""

from .dataset import Dataset
from .errors import DataError, DataMissing
from .folder import from_folder
from .loading import NAMES, load
from .npz import from_npz
from .table import Labelled, from_table, read_labelled
from .wrap import from_dataset

__all__ = [
    "NAMES",
    "DataError",
    "DataMissing",
    "Dataset",
    "Labelled",
    "from_dataset",
    "from_folder",
    "from_npz",
    "from_table",
    "load",
    "read_labelled",
]

"""What can go wrong with data, and the sentence for a missing package."""

import importlib
from typing import Any


class DataError(ValueError):
    """A file, an array or a label is not what it should be; the message names it."""


class DataMissing(DataError):
    """The files of a data set are nowhere at hand; the message says which, and where to put them."""


PACKAGES = {"PIL": "Pillow", "sklearn": "scikit-learn"}  # import name -> package name, where they differ


def require(module: str, purpose: str, install: str = "'fcco[lab]'") -> Any:
    """Import `module`, or raise one sentence with the install command."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        top = module.split(".")[0]
        raise ImportError(f"{purpose} needs {PACKAGES.get(top, top)}: pip install {install}") from error

"""What can go wrong with data, and the sentence for a missing package."""

import importlib
from typing import Any

from fcco.lab.errors import DataError, DataMissing, nearest

__all__ = ["PACKAGES", "DataError", "DataMissing", "nearest", "require"]

PACKAGES = {"PIL": "Pillow", "sklearn": "scikit-learn"}  # import name -> package name, where they differ


def require(module: str, purpose: str, install: str = "'fcco[lab]'") -> Any:
    """Import `module`, or raise one sentence with the install command."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        top = module.split(".")[0]
        raise ImportError(f"{purpose} needs {PACKAGES.get(top, top)}: pip install {install}") from error

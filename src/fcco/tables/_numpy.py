"""numpy, or one sentence that says how to get it."""

from typing import Any

try:
    import numpy as np
    from numpy.typing import NDArray
except ImportError as error:  # pragma: no cover - numpy is part of the extra
    raise ImportError("fcco.tables needs numpy: pip install 'fcco[sklearn]'") from error

Array = NDArray[Any]

__all__ = ["Array", "np"]

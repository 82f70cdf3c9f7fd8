"""numpy, or one sentence that says how to get it."""

try:
    import numpy as np
except ImportError as error:  # pragma: no cover - numpy is part of the extra
    raise ImportError("fcco.lab.datasets needs numpy: pip install 'fcco[lab]'") from error

__all__ = ["np"]

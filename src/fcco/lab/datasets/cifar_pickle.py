"""CIFAR's pickled release, read without executing anything in it.

The unpickler knows three names, all of them stand-ins written here: an array, its class and its dtype. They
only remember what they are given; numpy itself is never called from the stream. Any other name is refused.
"""

from __future__ import annotations

import io
import pickle  # used through a subclass that refuses every global but the stand-ins below
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ._numpy import np
from .errors import DataError
from .formats import Array, read_tar


class _Dtype:
    """Stands for numpy.dtype: remembers its code."""

    __slots__ = ("code",)

    def __init__(self, code: Any, *_: Any) -> None:
        if isinstance(code, bytes):
            code = code.decode("latin1")
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Byte order and fields: of no use for bytes."""


class _Array:
    """Stands for numpy's array and for the function that makes one: remembers shape, dtype and bytes."""

    __slots__ = ("data", "dtype", "fortran", "shape")

    def __init__(self, *_: Any) -> None:
        self.shape: Any = None

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.dtype, self.fortran, self.data = state

    def numpy(self, where: str) -> Array:
        """Return the array (N, ...) uint8, once it is clear that it is one."""
        plain = self.shape is not None and isinstance(self.dtype, _Dtype) and self.dtype.code in ("u1", "|u1")
        if not plain or not isinstance(self.data, bytes):
            raise DataError(f"{where} must be an array of uint8")
        if not isinstance(self.shape, tuple) or len(self.data) != int(np.prod(self.shape, dtype=object)):
            raise DataError(f"{where} has {len(self.data)} bytes for shape {self.shape}")
        values = np.frombuffer(self.data, np.uint8)
        if self.fortran:
            return values.reshape(self.shape, order="F")
        return values.reshape(self.shape)


_ALLOWED: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}


class _ArraysOnly(pickle.Unpickler):
    """Numbers, strings, plain containers and byte arrays; nothing else."""

    def find_class(self, module: str, name: str) -> type:
        if (module, name) not in _ALLOWED:
            raise DataError(f"it contains {module}.{name}, but only arrays are read")
        return _ALLOWED[module, name]


def unpickle_arrays(data: bytes, where: str) -> dict[bytes, Any]:
    """Read a pickled dictionary of arrays and plain values; `where` names it in errors."""
    try:
        content = _ArraysOnly(io.BytesIO(data), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{where} is refused: {error}") from None
    except Exception as error:  # a damaged stream may raise anything
        raise DataError(f"{where} is truncated or damaged ({type(error).__name__}: {error})") from error
    if not isinstance(content, dict):
        raise DataError(f"{where} must hold a dictionary, got {type(content).__name__}")
    return content


def read_cifar_python(path: Path, members: Iterable[str], label_key: bytes) -> tuple[Array, Array]:
    """Read images (N, 3, 32, 32) uint8 and labels (N,) int64 of CIFAR's "python" archive."""
    names = list(members)
    data = read_tar(path, names)
    xs = []
    ys = []
    for name in names:
        x, y = _read_batch(data[name], label_key, f"{path.name}: {name}")
        xs.append(x)
        ys.append(y)
    return np.concatenate(xs), np.concatenate(ys)


def _read_batch(data: bytes, label_key: bytes, where: str) -> tuple[Array, Array]:
    content = unpickle_arrays(data, where)
    images = content.get(b"data")
    labels = content.get(label_key)
    if not isinstance(images, _Array) or not isinstance(labels, list):
        raise DataError(f"{where} must hold an array 'data' and a list '{label_key.decode()}'")
    x = images.numpy(f"{where}: 'data'")
    if x.ndim != 2 or x.shape[1] != 3 * 32 * 32 or len(x) != len(labels):
        raise DataError(f"{where} has images of shape {x.shape} for {len(labels)} labels")
    if not all(isinstance(label, int) for label in labels):
        raise DataError(f"{where} must hold integer labels")
    return x.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64)

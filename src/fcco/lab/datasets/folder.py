"""The user's own images: a folder with one sub-folder per class."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ._numpy import np
from .dataset import Dataset
from .errors import DataError, require
from .locate import digests
from .split import choose_test

SUFFIXES = (".png", ".jpg", ".jpeg")


def from_folder(
    path: str | os.PathLike[str],
    size: int | tuple[int, int] | None = None,
    channels: int = 3,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Make a data set from PNG and JPEG images in class sub-folders. Needs Pillow.

    `path` holds one sub-folder per class, or the two folders `train` and `test` that do.

    Args:
        path: the folder.
        size: resize every image to this height and width; without it they must all be of one size.
        channels: 3 for colour, 1 for grey; images are converted.
        test_fraction: share of every class put aside for test, where there is no `test` folder.
        seed: of that choice.

    Returns:
        images (N, C, H, W) uint8; the class names are the sub-folders', sorted.
    """
    if channels not in (1, 3):
        raise DataError(f"channels must be 1 or 3, got {channels}")
    root = Path(path)
    if not root.is_dir():
        raise DataError(f"path must be a folder of class sub-folders, got {str(root)!r}")
    separate = (root / "train").is_dir() and (root / "test").is_dir()
    folder = root
    if separate:
        folder = root / "train"
    classes = _class_names(folder)
    resize = _height_width(size)
    files = _list_images(folder, classes)
    x, y = _read_images(files, channels, resize)
    if separate:
        test_files = _list_images(root / "test", classes)
        x_test, y_test = _read_images(test_files, channels, resize, (x.shape[2], x.shape[3]))
        files += test_files
    else:
        mask = choose_test(y, test_fraction, seed)
        x_test = x[mask]
        y_test = y[mask]
        x = x[~mask]
        y = y[~mask]
    sha256 = {root.name: _digest(root, [file for file, _ in files])}
    return Dataset(root.name, x, y, x_test, y_test, len(classes), f"user-provided folder {root.name}", sha256, classes)


def read_folder(path: str | os.PathLike[str], size: tuple[int, int], channels: int) -> tuple[list[str], Tensor]:
    """Read all PNG and JPEG images in and below a folder, without labels.

    Args:
        path: the folder.
        size: every image is brought to this height and width.
        channels: 3 for colour, 1 for grey.

    Returns:
        their paths below the folder, sorted, and the images (N, C, H, W) uint8.
    """
    root = Path(path)
    inside = sorted(filter(_is_image, root.rglob("*")))
    if not inside:
        raise DataError(f"{str(root)!r} holds no PNG or JPEG image")
    x, _ = _read_images([(file, 0) for file in inside], channels, size)
    return [file.relative_to(root).as_posix() for file in inside], x


def _height_width(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    if isinstance(size, int):
        height = size
        width = size
    else:
        height, width = size
    if height < 1 or width < 1:
        raise DataError(f"size must be positive, got {size}")
    return height, width


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES and not file.name.startswith(".")


def _subfolders(folder: Path) -> list[str]:
    """Return the names of the sub-folders, sorted, without hidden ones."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _class_names(folder: Path) -> tuple[str, ...]:
    names = _subfolders(folder)
    if len(names) < 2:
        raise DataError(f"path must hold at least two class sub-folders, got {len(names)} in {str(folder)!r}")
    return tuple(names)


def _list_images(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    """Return (image, class) in the order of class and file name; a class without an image is an error."""
    present = _subfolders(folder)
    unknown = sorted(set(present) - set(classes))
    if unknown:
        raise DataError(f"{str(folder)!r} has the class {unknown[0]!r}, which train does not have")
    found = []
    for label, name in enumerate(classes):
        images: list[Path] = []
        if name in present:
            images = sorted(filter(_is_image, (folder / name).iterdir()))
        if not images:
            raise DataError(f"class {name!r} in {str(folder)!r} has no PNG or JPEG image")
        found += [(image, label) for image in images]
    return found


def _read_images(
    files: list[tuple[Path, int]],
    channels: int,
    resize: tuple[int, int] | None,
    expected: tuple[int, int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Read images (N, C, H, W) uint8 and labels (N,).

    Each is brought to the height and width `resize`; without it all must be of one size, `expected` or the
    first image's.
    """
    image_module = require("PIL.Image", "from_folder", "pillow")
    images = []
    for path, _ in files:
        image = _read_image(image_module, path, channels, resize)
        height, width = image.shape[1:]
        expected = expected or (height, width)
        if (height, width) != expected:
            first = f"{expected[0]}x{expected[1]}"
            raise DataError(f"{path} is {height}x{width}, the first image {first}: pass size= (--image-size) to resize")
        images.append(image)
    return torch.stack(images), torch.tensor([label for _, label in files])


def _read_image(image_module: Any, path: Path, channels: int, size: tuple[int, int] | None) -> Tensor:
    """Read an image as (C, H, W) uint8."""
    mode = "RGB"
    if channels == 1:
        mode = "L"
    try:
        with image_module.open(path) as image:
            image = image.convert(mode)
            if size is not None:
                image = image.resize((size[1], size[0]), image_module.Resampling.BILINEAR)
            pixels = torch.from_numpy(np.array(image))
    except (image_module.DecompressionBombError, image_module.DecompressionBombWarning) as error:
        raise DataError(f"{path} is an image that is too large ({error})") from error
    except (OSError, SyntaxError, ValueError) as error:  # Pillow raises SyntaxError for a broken PNG
        raise DataError(f"{path} is truncated or not an image ({error})") from error
    return pixels.reshape(*pixels.shape[:2], channels).permute(2, 0, 1)


def _digest(root: Path, files: list[Path]) -> str:
    """Return one SHA-256 for all files: of the lines 'SHA-256  relative path', sorted by path."""
    sha256 = {file.relative_to(root).as_posix(): digests(file)[1] for file in files}
    lines = "".join(f"{sha256[name]}  {name}\n" for name in sorted(sha256))
    return hashlib.sha256(lines.encode()).hexdigest()

"""Where the files of a data set lie: the data folder, the user's cache, or their home on the network."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from .errors import DataError, DataMissing, require
from .registry import SPECS, File, Release, Spec

CHUNK = 1 << 20


def data_folder(root: str | os.PathLike[str] | None) -> Path | None:
    """Return `root`, else $FCCO_DATA, else None; a folder that is named but not there is an error."""
    chosen = root
    if chosen is None:
        chosen = os.environ.get("FCCO_DATA") or None
    if chosen is None:
        return None
    folder = Path(chosen).expanduser()
    if not folder.is_dir():
        origin = "root"
        if root is None:
            origin = "FCCO_DATA"
        raise DataError(f"{origin} must be a folder, got {str(folder)!r}")
    return folder


def cache_folder() -> Path:
    """Return the user's cache folder for fcco."""
    return Path(require("pooch", "the cache folder of data sets").os_cache("fcco"))


def digests(path: Path) -> tuple[str, str]:
    """Return (md5, sha256) of a file, in one pass; remembered while the file's size and time stay the same."""
    status = path.stat()
    return _digests(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _digests(path: Path, _size: int, _time: int) -> tuple[str, str]:
    md5 = hashlib.md5(usedforsecurity=False)
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            md5.update(chunk)
            sha256.update(chunk)
    return md5.hexdigest(), sha256.hexdigest()


def places(name: str, folders: Sequence[Path]) -> list[Path]:
    """Return where the files of the set `name` may lie: FOLDER/NAME, then FOLDER, for each folder."""
    found = []
    for folder in folders:
        found += [folder / name, folder]
    return found


def find(file: File, name: str, folders: Sequence[Path]) -> Path | None:
    """Return `file` of the set `name` in FOLDER/NAME or FOLDER, whichever has it; a wrong checksum is an error."""
    for place in places(name, folders):
        path = place / file.name
        if not path.is_file():
            continue
        md5 = digests(path)[0]
        if md5 == file.md5:
            return path
        if path.parent.name == name or not _belongs_elsewhere(md5, name):
            raise DataError(
                f"{path} has the wrong checksum: md5 {md5}, expected {file.md5} "
                f"({path.stat().st_size} bytes; truncated, damaged or another file)"
            )
    return None


def _belongs_elsewhere(md5: str, name: str) -> bool:
    """Return whether it is a file of another set: MNIST and Fashion-MNIST use the same four names."""
    for spec in SPECS.values():
        if spec.name == name:
            continue
        for release in spec.releases:
            if any(file.md5 == md5 for file in release.files):
                return True
    return False


def find_release(spec: Spec, folders: Sequence[Path]) -> tuple[Release, dict[str, Path]] | None:
    """Return the first release of which every file is at hand, with its paths; None where there is none."""
    for release in spec.releases:
        paths = {}
        for file in release.files:
            path = find(file, spec.name, folders)
            if path is not None:
                paths[file.name] = path
        if len(paths) == len(release.files):
            return release, paths
    return None


def find_npz(spec: Spec, folders: Sequence[Path]) -> Path | None:
    """Return NAME.npz in FOLDER/NAME or FOLDER; None where it is in none of them."""
    for place in places(spec.name, folders):
        path = place / f"{spec.name}.npz"
        if path.is_file():
            return path
    return None


def download(spec: Spec, folders: Sequence[Path], cache: Path) -> tuple[Release, dict[str, Path]]:
    """Fetch what is missing of the preferred release into CACHE/NAME; checksums are verified on arrival."""
    release = spec.releases[0]
    retrieve = require("pooch", "downloading data sets").retrieve
    paths = {}
    for file in release.files:
        found = find(file, spec.name, folders)
        paths[file.name] = found or _fetch(file, spec, folders, cache / spec.name, retrieve)
    return release, paths


def _fetch(file: File, spec: Spec, folders: Sequence[Path], into: Path, retrieve: object) -> Path:
    assert callable(retrieve)
    try:
        return Path(retrieve(file.url, known_hash=f"md5:{file.md5}", fname=file.name, path=into))
    except (OSError, ValueError) as error:  # no network, a refusing server, a full disk; a wrong checksum
        reason = type(error).__name__
        if str(error):
            reason = str(error).splitlines()[0]
        raise missing(spec, folders, f"{file.url} could not be fetched: {reason}") from error


def missing(spec: Spec, folders: Sequence[Path], reason: str) -> DataMissing:
    """Return the error that lists the files, their checksums and where to put them."""
    lines = [f"{spec.name} is not at hand ({reason}); put these files"]
    for position, release in enumerate(spec.releases):
        if position:
            lines.append("or")
        lines += [f"  {file.name}  md5 {file.md5}  {file.url}" for file in release.files]
    lines += [
        "or",
        f"  {spec.name}.npz  (arrays x_train, y_train, x_test, y_test; reported as user-provided)",
    ]
    lines.append("into one of these folders")
    lines += [f"  {place}" for place in places(spec.name, folders)]
    if "FCCO_DATA" not in os.environ:
        lines.append("(set FCCO_DATA to name a folder of your own)")
    return DataMissing("\n".join(lines))

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
    """`root`, else $FCCO_DATA, else None; a folder that is named but not there is an error."""
    chosen = root
    if chosen is None:
        chosen = os.environ.get("FCCO_DATA") or None
    if chosen is None:
        return None
    folder = Path(chosen).expanduser()
    if not folder.is_dir():
        origin = "FCCO_DATA" if root is None else "root"
        raise DataError(f"{origin} must be a folder, got {str(folder)!r}")
    return folder


def cache_folder() -> Path:
    """The user's cache folder for fcco."""
    return Path(require("pooch", "the cache folder of data sets").os_cache("fcco"))


def digests(path: Path) -> tuple[str, str]:
    """(md5, sha256) of a file, in one pass; remembered while the file's size and time stay the same."""
    status = path.stat()
    return _digests(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _digests(path: Path, _size: int, _time: int) -> tuple[str, str]:
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            md5.update(chunk)
            sha256.update(chunk)
    return md5.hexdigest(), sha256.hexdigest()


def find(file: File, name: str, folders: Sequence[Path]) -> Path | None:
    """`file` of the set `name` in FOLDER/NAME or FOLDER, whichever has it; a wrong checksum is refused."""
    for path in (place / file.name for folder in folders for place in (folder / name, folder)):
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
    """Whether it is a file of another set: MNIST and Fashion-MNIST use the same four names."""
    others = (spec for spec in SPECS.values() if spec.name != name)
    return any(file.md5 == md5 for spec in others for release in spec.releases for file in release.files)


def find_release(spec: Spec, folders: Sequence[Path]) -> tuple[Release, dict[str, Path]] | None:
    """The first release of which every file is at hand, with its paths."""
    for release in spec.releases:
        paths = {file.name: find(file, spec.name, folders) for file in release.files}
        whole = {name: path for name, path in paths.items() if path is not None}
        if len(whole) == len(paths):
            return release, whole
    return None


def find_npz(spec: Spec, folders: Sequence[Path]) -> Path | None:
    """NAME.npz in FOLDER/NAME or FOLDER."""
    places = (place / f"{spec.name}.npz" for folder in folders for place in (folder / spec.name, folder))
    return next((path for path in places if path.is_file()), None)


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
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise missing(spec, folders, f"{file.url} could not be fetched: {reason}") from error


def missing(spec: Spec, folders: Sequence[Path], reason: str) -> DataMissing:
    """The error that lists the files, their checksums and where to put them."""
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
    lines += [f"  {place}" for folder in folders for place in (folder / spec.name, folder)]
    if "FCCO_DATA" not in os.environ:
        lines.append("(set FCCO_DATA to name a folder of your own)")
    return DataMissing("\n".join(lines))

"""A file that is damaged, foreign or not there changes nothing and executes nothing."""

import os
import pickle
import random
import zipfile

import pytest
import torch
from torch import nn

import fcco
from fcco.checkpoint import read
from tests.helpers.runs import Run, goes_on_as_before, refused
from tests.helpers.same import assert_same

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("part", [0.0, 0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.9999, 1.0])
def test_truncated(part, good_file, tmp_path):
    content = good_file.read_bytes()
    length = min(int(part * len(content)), len(content) - 1)
    (tmp_path / "run.pt").write_bytes(content[:length])
    run = Run(seed=2).steps(2)
    refused(tmp_path / "run.pt", run, "damaged|not a checkpoint")
    goes_on_as_before(run, seed=2)


def test_flipped_bytes(good_file, tmp_path):
    """Every kind of byte: data, pickle, headers, directory, padding. Where a flip hits nothing that matters the file
    may load, but then it must load the very state that was saved."""
    content, path = good_file.read_bytes(), tmp_path / "run.pt"
    chosen = random.Random(0)
    places = {0, 1, 2, 3, len(content) - 1, len(content) - 22}
    places |= {chosen.randrange(len(content)) for _ in range(70)}
    places |= set(_pickle_bytes(good_file, chosen, 70))
    expected, run = read(good_file)["states"], Run(seed=2).steps(2)
    before, harmless = run.snapshot(), 0
    for place in sorted(places):
        damaged = bytearray(content)
        damaged[place] ^= chosen.choice([0x01, 0x20, 0x80, 0xFF])
        path.write_bytes(damaged)
        try:
            assert_same(expected, read(path)["states"])
        except fcco.CheckpointError:
            if place % 4 == 0:
                refused(path, run, r"run\.pt")
        else:
            harmless += 1
    assert_same(before, run.snapshot())
    assert harmless < len(places) // 4
    goes_on_as_before(run, seed=2)


def _pickle_bytes(path, chosen, count):
    """Places within the pickle, where a flip does most: names, opcodes, lengths."""
    with zipfile.ZipFile(path) as archive:
        info = next(info for info in archive.infolist() if info.filename.endswith("data.pkl"))
    return [info.header_offset + chosen.randrange(info.file_size) for _ in range(count)]


class Payload:
    """Runs a command where a pickle is loaded without care."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def write_foreign(kind, path, marker):
    if kind == "text":
        path.write_text("epoch,loss\n1,0.5\n")
    elif kind == "bare pickle":
        path.write_bytes(pickle.dumps({"format": "fcco checkpoint", "version": 2, "states": []}))
    elif kind == "malicious pickle":
        path.write_bytes(pickle.dumps(Payload(marker)))
    elif kind == "malicious torch file":
        torch.save({"format": "fcco checkpoint", "version": 2, "states": [Payload(marker)]}, path)
    elif kind == "old torch file":
        torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    elif kind == "state dict":
        torch.save(nn.Linear(2, 2).state_dict(), path)
    elif kind == "tensor":
        torch.save(torch.ones(3), path)
    elif kind == "module":
        torch.save(nn.Linear(2, 2), path)
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("hello.txt", "hello")
    elif kind == "right name, nothing else":
        torch.save({"format": "fcco checkpoint", "version": 2}, path)
    elif kind == "parts of the wrong kind":
        torch.save({"format": "fcco checkpoint", "version": 2, "states": 3, "digest": "", "kinds": 4}, path)
    elif kind == "folder":
        path.mkdir()


@pytest.mark.parametrize(
    "kind",
    [
        "text",
        "bare pickle",
        "malicious pickle",
        "malicious torch file",
        "old torch file",
        "state dict",
        "tensor",
        "module",
        "zip",
        "right name, nothing else",
        "parts of the wrong kind",
        "folder",
    ],
)
def test_foreign_file(kind, tmp_path):
    path, marker = tmp_path / "run.pt", tmp_path / "marker"
    write_foreign(kind, path, marker)
    run = Run(seed=2).steps(2)
    refused(path, run)
    assert not marker.exists()
    goes_on_as_before(run, seed=2)


def rewritten(good_file, path, **changes):
    """The same file with some of its content changed, and the digest kept right."""
    content = read(good_file)
    content.update(changes)
    torch.save(content, path)
    return path


def test_another_version(good_file, tmp_path):
    run = Run(seed=2).steps(2)
    says = refused(rewritten(good_file, tmp_path / "run.pt", version=99), run)
    assert "version 99" in says
    goes_on_as_before(run, seed=2)


def test_changed_content_with_the_old_digest(good_file, tmp_path):
    states = read(good_file)["states"]
    states["solver"]["state"]["t"] += 1
    says = refused(rewritten(good_file, tmp_path / "run.pt", states=states), Run(seed=2).steps(2))
    assert "digest" in says


def test_no_file(tmp_path):
    run = Run(seed=2).steps(2)
    before = run.snapshot()
    with pytest.raises(FileNotFoundError, match="nowhere"):
        fcco.load(tmp_path / "nowhere.pt", **run.parts)
    assert_same(before, run.snapshot())

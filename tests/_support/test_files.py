"""Files that are replaced whole: names of their own, links, and what killed writers left behind."""

import os
import time

import pytest

from fcco._support.files import replace_file


def saved(path, content):
    replace_file(path, lambda file: file.write(content))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_old_or_new_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    saved(path, b"old")
    saved(path, b"new")
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


def test_two_writers_do_not_meet(tmp_path):
    """The second begins and ends while the first is at it: with one name for both, the first would rename its own
    half over the second's file."""
    path = tmp_path / "file"

    def first(file):
        file.write(b"first")
        saved(path, b"second, which is longer")
        assert path.read_bytes() == b"second, which is longer"

    replace_file(path, first)
    assert path.read_bytes() == b"first"
    assert names(tmp_path) == ["file"]


def test_a_link_planted_under_the_old_name_is_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    (tmp_path / "file.partial").symlink_to(precious)
    saved(tmp_path / "file", b"new")
    assert precious.read_bytes() == b"precious"


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_one_and_what_it_leads_to_is_replaced(exists, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if exists:
        (disk / "real").write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to(disk / "real")
    saved(link, b"new")
    assert link.is_symlink()
    assert (disk / "real").read_bytes() == b"new"
    assert names(disk) == ["real"]
    assert names(tmp_path) == ["disk", "link"]


@pytest.mark.parametrize("error", [OSError(28, "full"), RuntimeError("other"), KeyboardInterrupt()])
def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(error, tmp_path):
    path = tmp_path / "file"
    saved(path, b"old")

    def fails(file):
        file.write(b"half")
        raise error

    with pytest.raises(type(error)):
        replace_file(path, fails)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_what_is_no_file_is_left_alone(tmp_path):
    """A device in /dev, where root may write, would be gone."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to(pipe)
    for path in (pipe, link):
        with pytest.raises(OSError, match="pipe is a device, a pipe or a socket, which no file can replace"):
            replace_file(path, lambda file: file.write(b"new"))
    assert pipe.is_fifo()
    with pytest.raises(OSError, match="is a folder, which no file can replace"):
        replace_file(tmp_path, lambda file: file.write(b"new"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]


def test_file_and_folder_are_flushed(tmp_path, monkeypatch):
    flushed = []
    fsync = os.fsync

    def noted(number):
        flushed.append(os.path.realpath(f"/proc/self/fd/{number}"))
        fsync(number)

    monkeypatch.setattr(os, "fsync", noted)
    saved(tmp_path / "file", b"new")
    assert flushed[0].startswith(str(tmp_path / "file."))
    assert flushed[1:] == [str(tmp_path)]


def test_what_killed_writers_left_is_removed(tmp_path):
    path = tmp_path / "fi[l]e"
    old = tmp_path / "fi[l]e.0123456789abcdef.partial"
    young = tmp_path / "fi[l]e.aaaaaaaaaaaaaaaa.partial"
    other = tmp_path / "file.0123456789abcdef.partial"
    hour_ago = time.time() - 3600
    for left in (old, young, other):
        left.write_bytes(b"half")
    for left in (old, other):
        os.utime(left, (hour_ago, hour_ago))

    def meanwhile(file):
        """A long save is not taken for a dead one."""
        mine = next(left for left in tmp_path.iterdir() if left.name not in (young.name, other.name))
        os.utime(mine, (hour_ago, hour_ago))
        saved(path, b"new")
        assert mine.exists()

    replace_file(path, meanwhile)
    assert names(tmp_path) == sorted([path.name, young.name, other.name])


def test_errors_name_the_file_that_the_user_knows(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^the folder .*nowhere, in which to write run.pt, does not exist$"):
        saved(tmp_path / "nowhere" / "run.pt", b"")
    with pytest.raises(OSError, match=r"run\.pt") as caught:
        replace_file(tmp_path / ("a" * 240 + "run.pt"), lambda file: None)  # too long with its suffix
    assert "partial" not in str(caught.value)

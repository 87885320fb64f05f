"""Files that only root or the reader may have written, and files replaced atomically."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_share.core import files
from slurm_share.core.errors import StateError


def test_what_is_ours_is_read_and_what_is_not_there_is_none(tmp_path):
    (tmp_path / "a").write_bytes(b"0123456789")
    assert files.read(tmp_path / "a", 100) == b"0123456789"
    assert files.read(tmp_path / "a", 4) == b"0123"
    assert files.read(tmp_path / "none", 4) is None


def test_a_part_of_a_regular_file_is_read_and_nothing_of_what_is_none_or_another_users(tmp_path):
    file, link, pipe = (tmp_path / name for name in ("a", "link", "pipe"))
    file.write_bytes(b"0123456789")
    link.symlink_to(file)
    os.mkfifo(pipe)
    assert files.read_regular(file, 4, start=3, uid=os.geteuid()) == b"3456"
    assert files.read_regular(link, 4, follows=True) == b"0123"
    assert [files.read_regular(one, 4) for one in (pipe, tmp_path)] == [None, None]
    assert files.read_regular(file, 4, uid=os.geteuid() + 1) is None
    with pytest.raises(OSError):
        files.read_regular(link, 4)


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder", "group", "others"])
def test_what_somebody_else_may_have_written_is_refused(tmp_path, kind):
    file = tmp_path / "a"
    (tmp_path / "real").write_bytes(b"x")
    if kind in ("link", "dangling"):
        file.symlink_to("real" if kind == "link" else "none")
    elif kind == "pipe":
        os.mkfifo(file, 0o600)
    elif kind == "folder":
        file.mkdir(mode=0o700)
    else:
        file.write_bytes(b"x")
        file.chmod(0o620 if kind == "group" else 0o602)
    with pytest.raises(StateError, match="cannot be read" if kind in ("link", "dangling") else "another user"):
        files.read(file, 100)


def test_a_file_of_another_user_is_refused(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: giving a file to somebody else needs root")
    (tmp_path / "a").write_bytes(b"x")
    os.chown(tmp_path / "a", 12345, 0)
    with pytest.raises(StateError, match="uid 12345"):
        files.read(tmp_path / "a", 100)


@pytest.mark.parametrize("below", [False, True], ids=["path", "descriptor"])
def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path, below):
    file, folder = (Path("a"), os.open(tmp_path, os.O_RDONLY)) if below else (tmp_path / "a", None)
    (tmp_path / "a").symlink_to("/dev/full")
    files.write(file, b"old", folder=folder, flush=True)
    with pytest.raises(PermissionError):
        files.write(file, b"new", folder=folder, finish=refuse)
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("a", b"old")]


@pytest.mark.parametrize("below", [False, True], ids=["path", "descriptor"])
def test_a_new_file_that_a_killed_process_left_is_not_written_into(tmp_path, below):
    place, folder = (Path(), os.open(tmp_path, os.O_RDONLY)) if below else (tmp_path, None)
    (tmp_path / "left").symlink_to("victim")
    files.write(place / "a", b"data", new=place / "left", mode=0o640, folder=folder)
    assert [one.name for one in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def refuse(fd):
    raise PermissionError(1, "Operation not permitted")

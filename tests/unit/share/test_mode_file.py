"""The mode file, on a file system that may not answer."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from slurm_share.core import process
from slurm_share.share import mode_file


def test_the_text_is_read_with_its_age(tmp_path):
    file = tmp_path / "mode"
    file.write_text("off\n")
    os.utime(file, (1000.5, 1000.5))
    assert mode_file.read(str(file)) == mode_file.ModeFile("off\n", 1000.5)
    file.write_text("on " * 10_000)
    assert len(mode_file.read(str(file)).text or "") < 300


def test_a_missing_file_says_nothing(tmp_path):
    assert mode_file.read(str(tmp_path / "none")) == mode_file.ModeFile(None)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: path.symlink_to(path)])
def test_what_is_no_file_is_a_problem(tmp_path, make):
    make(tmp_path / "mode")
    found = mode_file.read(str(tmp_path / "mode"))
    assert found.text is None
    assert found.problem


@pytest.mark.parametrize("before", ["on\n", None])
def test_the_mode_file_behind_a_link_is_written(tmp_path, before):
    """Each node may have a link of its own to it: another file in the link's place would reach no other node."""
    (tmp_path / "shared").mkdir()
    file, link = tmp_path / "shared" / "mode", tmp_path / "mode"
    if before is not None:
        file.write_text(before)
    link.symlink_to("shared/mode")
    assert mode_file.write(str(link), "off") is None
    assert file.read_text() == "off\n"
    assert link.is_symlink()
    assert [each.name for each in file.parent.iterdir()] == ["mode"]


def test_a_file_system_that_hangs_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(mode_file, "read_here", lambda path: time.sleep(120))
    began = time.monotonic()
    found = mode_file.read(str(tmp_path), 0.2)
    assert time.monotonic() - began < 60
    assert found.problem == "no answer within 0.2 s"


@pytest.mark.parametrize(("text", "expected"), [(b"", b""), (b"word", b"word"), (b"x" * 5000, b"x" * 4096)])
def test_an_answer_in_time_is_given_back(text, expected):
    assert process.in_time(lambda: text, 120.0) == expected


def test_a_call_that_fails_gives_nothing():
    assert process.in_time(lambda: bytes(1 // 0), 120.0) is None


@pytest.mark.parametrize("call", [lambda: time.sleep(60), lambda: bytes(1 // 0)])
def test_a_child_without_an_answer_leaves_no_zombie(call, monkeypatch):
    monkeypatch.setattr(process, "REAP_S", 60.0)
    before = _zombies()
    assert process.in_time(call, 0.2) is None
    assert _zombies() == before


def _zombies():
    found = set()
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = file.read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if words[0] == b"Z" and int(words[1]) == os.getpid():
            found.add(file)
    return found

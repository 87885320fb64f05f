"""A user's entries in a folder open to everybody."""

from __future__ import annotations

import os

import pytest

from slurm_share.core import scan
from slurm_share.core.process import Deadline
from slurm_share.node import scratch

ALICE, BOB = 2998, 2999


def owned(folder, uid):
    found = scratch.read_owned(str(folder), uid, Deadline.after(300))
    assert found.is_whole
    return found.names


as_root = pytest.mark.skipif(os.getuid() != 0, reason="NOT TESTED: only root may give files away")


def test_entries_of_every_kind_are_named_in_order(tmp_path):
    (tmp_path / "sem.b").touch()
    (tmp_path / "a").mkdir()
    (tmp_path / "a/deeper").touch()
    (tmp_path / ".hidden").touch()
    (tmp_path / "link").symlink_to("/nowhere")
    (tmp_path / "new\nline").touch()
    os.mkfifo(tmp_path / "fifo")
    assert owned(tmp_path, os.getuid()) == (
        ".hidden",
        "a",
        "fifo",
        "link",
        "new\nline",
        "sem.b",
    )
    assert owned(tmp_path, os.getuid() + 1) == ()


@as_root
def test_only_what_is_the_users_own_counts_and_a_link_is_its_makers(tmp_path):
    for name, uid in (("hers", ALICE), ("his", BOB), ("roots", 0)):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, uid, uid)
    (tmp_path / "his/hers").touch()
    os.chown(tmp_path / "his/hers", ALICE, ALICE)
    for name, target, uid in (("to-his", "his", ALICE), ("to-hers", "hers", BOB)):
        (tmp_path / name).symlink_to(tmp_path / target)
        os.lchown(tmp_path / name, uid, uid)
    assert owned(tmp_path, ALICE) == ("hers", "to-his")


def test_a_folder_that_cannot_be_read_holds_nothing(tmp_path):
    assert owned(tmp_path / "none", os.getuid()) == ()
    (tmp_path / "file").touch()
    assert owned(tmp_path / "file", os.getuid()) == ()


@pytest.mark.parametrize(("what", "seen"), [("MOST", 30), ("deadline", 0), ("MOST_OWNED", 20)])
def test_a_folder_full_of_names_is_looked_at_as_far_as_bound_and_deadline_go(tmp_path, monkeypatch, what, seen):
    for number in range(50):
        (tmp_path / str(number)).touch()
    monkeypatch.setattr(scan.Scan.__init__, "__defaults__", (30 if what == "MOST" else scan.MOST,))
    monkeypatch.setattr(scratch, "MOST_OWNED", 20 if what == "MOST_OWNED" else scratch.MOST_OWNED)
    found = scratch.read_owned(str(tmp_path), os.getuid(), Deadline.after(0 if what == "deadline" else 300))
    assert (len(found.names), found.is_whole) == (seen, False)

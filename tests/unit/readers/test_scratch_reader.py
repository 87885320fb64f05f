"""What a user has in a folder that is everybody's."""

from __future__ import annotations

import os

import pytest

from slurm_share.process import Deadline
from slurm_share.readers import scratch

ALICE, BOB = 2998, 2999
as_root = pytest.mark.skipif(os.getuid() != 0, reason="NOT TESTED: only root may give files away")


def test_entries_of_every_kind_are_named_in_order(tmp_path):
    """Files, folders, links, fifos, hidden ones and odd names; of another user there are none."""
    (tmp_path / "sem.b").touch()
    (tmp_path / "a").mkdir()
    (tmp_path / "a/deeper").touch()
    (tmp_path / ".hidden").touch()
    (tmp_path / "link").symlink_to("/nowhere")
    (tmp_path / "new\nline").touch()
    os.mkfifo(tmp_path / "fifo")
    assert scratch.read_owned(tmp_path, os.getuid(), Deadline.after(30)) == (
        ".hidden",
        "a",
        "fifo",
        "link",
        "new\nline",
        "sem.b",
    )
    assert scratch.read_owned(tmp_path, os.getuid() + 1, Deadline.after(30)) == ()


@as_root
def test_only_what_is_the_users_own_counts(tmp_path):
    """Not a folder of bob's with a file of alice's in it."""
    for name, uid in (("hers", ALICE), ("his", BOB), ("roots", 0)):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, uid, uid)
    (tmp_path / "his/hers").touch()
    os.chown(tmp_path / "his/hers", ALICE, ALICE)
    assert scratch.read_owned(tmp_path, ALICE, Deadline.after(30)) == ("hers",)


@as_root
def test_a_link_is_whose_it_is_and_not_whose_it_points_to(tmp_path):
    """Alice's link to bob's folder is hers; bob's link to her folder is his."""
    for name, uid in (("hers", ALICE), ("his", BOB)):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, uid, uid)
    for name, target, uid in (("to-his", "his", ALICE), ("to-hers", "hers", BOB)):
        (tmp_path / name).symlink_to(tmp_path / target)
        os.lchown(tmp_path / name, uid, uid)
    assert scratch.read_owned(tmp_path, ALICE, Deadline.after(30)) == ("hers", "to-his")


def test_a_folder_that_cannot_be_read_holds_nothing(tmp_path):
    """None there, or a file in its place."""
    assert scratch.read_owned(tmp_path / "none", os.getuid(), Deadline.after(30)) == ()
    (tmp_path / "file").touch()
    assert scratch.read_owned(tmp_path / "file", os.getuid(), Deadline.after(30)) == ()

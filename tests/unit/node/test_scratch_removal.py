"""Removal of a user's entries from a folder open to everybody, and what must not be removed with them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_share.core import process
from slurm_share.core.process import Deadline
from slurm_share.node import scratch

ALICE, BOB = 2998, 2999
ASIDES: list[str] = []
as_root = pytest.mark.skipif(os.getuid() != 0, reason="NOT TESTED: only root may give files away")


@pytest.fixture(autouse=True)
def nothing_aside():
    ASIDES.clear()


def soon():
    return Deadline.after(300)


def put_aside(folder, names, uid, deadline=None):
    aside = scratch.new_aside(str(folder))
    ASIDES.append(aside)
    return scratch.set_aside(str(folder), names, uid, aside, deadline or soon()).problems


def remove(deadline=None):
    return scratch.remove(ASIDES, deadline or soon())


def make(place, uid, *files):
    """Make a file of that user's, or a folder with these files, all the user's."""
    if files:
        place.mkdir()
    for file in [place / name for name in files] or [place]:
        file.write_text("data")
        os.chown(file, uid, uid)
    os.chown(place, uid, uid)
    return place


def names(folder):
    return sorted(str(place.relative_to(folder)) for place in folder.rglob("*"))


@as_root
def test_a_users_entries_are_gone_from_their_names_at_once_and_then_from_the_disk(tmp_path):
    make(tmp_path / "file", ALICE)
    make(tmp_path / "folder", ALICE, "a", "b")
    (tmp_path / "link").symlink_to("/nowhere")
    os.lchown(tmp_path / "link", ALICE, ALICE)
    os.mkfifo(tmp_path / "fifo")
    os.chown(tmp_path / "fifo", ALICE, ALICE)
    assert put_aside(tmp_path, ["fifo", "file", "folder", "link"], ALICE) == []
    (waiting,) = tmp_path.iterdir()
    assert waiting.name.startswith(scratch.ASIDE)
    assert (stat.S_IMODE(waiting.stat().st_mode), waiting.stat().st_uid) == (0o700, 0)
    assert remove() is None
    assert names(tmp_path) == []


@as_root
def test_what_is_not_the_users_stays_whoever_named_it(tmp_path):
    make(tmp_path / "his", BOB, "a")
    make(tmp_path / "roots", 0)
    (tmp_path / "link").symlink_to(make(tmp_path / "hers", ALICE, "a"))
    os.lchown(tmp_path / "link", BOB, BOB)
    before = [name for name in names(tmp_path) if not name.startswith("hers")]
    assert put_aside(tmp_path, ["gone", "hers", "his", "link", "roots"], ALICE) == []
    assert remove() is None
    assert names(tmp_path) == before


@as_root
def test_no_link_is_followed(tmp_path):
    his = make(tmp_path / "his", BOB, "a", "b")
    make(tmp_path / "hers", ALICE, "a")
    for link in (tmp_path / "link", tmp_path / "hers/link"):
        link.symlink_to(his)
        os.lchown(link, ALICE, ALICE)
    assert put_aside(tmp_path, ["hers", "link"], ALICE) == []
    assert remove() is None
    assert names(tmp_path) == ["his", "his/a", "his/b"]


def test_names_that_look_like_it_are_not_looked_for(tmp_path, monkeypatch):
    for number in range(100):
        (tmp_path / f"{scratch.ASIDE}{number}").mkdir()
    make(tmp_path / "hers", os.getuid())
    put_aside(tmp_path, ["hers"], os.getuid())
    monkeypatch.setattr(os, "scandir", lambda *_: pytest.fail("a folder that users write into is searched"))
    monkeypatch.setattr(os, "listdir", lambda *_: pytest.fail("a folder that users write into is searched"))
    assert remove() is None
    monkeypatch.undo()
    assert len(names(tmp_path)) == 100


def test_what_there_is_no_time_for_stays_and_is_said(tmp_path):
    (tmp_path / "a").touch()
    taken = scratch.set_aside(str(tmp_path), ["a"], os.getuid(), scratch.new_aside(str(tmp_path)), Deadline.after(0))
    assert (taken.count, taken.is_whole) == (0, False)
    assert names(tmp_path) == ["a"]


def test_a_removal_beside_it_loses_nothing(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).touch()

    def removed_meanwhile():
        yield "a"
        remove(Deadline.after(0.5))
        yield from ("b", "c")

    problems = put_aside(tmp_path, removed_meanwhile(), os.getuid())
    remove()
    assert len(problems) == len(names(tmp_path))


def test_a_removal_that_takes_too_long_is_a_sentence_and_is_gone_on_with(tmp_path, monkeypatch):
    (tmp_path / "a").touch()
    put_aside(tmp_path, ["a"], os.getuid())
    with monkeypatch.context() as slow:
        slow.setattr(scratch, "run", lambda argv, timeout_s: process.run(["/bin/sleep", "600"], timeout_s=timeout_s))
        assert "no answer within" in remove(Deadline.after(0))
    assert names(tmp_path) != []
    assert remove() is None
    assert names(tmp_path) == []


def test_without_anything_aside_no_program_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "run", lambda *_, **__: pytest.fail("there is nothing to remove"))
    (tmp_path / "a").touch()
    assert remove() is None


# --- names that somebody else took first ---------------------------------------------------------------------------


@pytest.fixture
def planted(tmp_path):
    """Return a folder open to everybody, and the name in it that the ledger has, as if a user had known it in time."""
    folder = tmp_path / "shm"
    folder.mkdir()
    return folder, folder / f"{scratch.ASIDE}known"


def put_into(folder, aside, name):
    ASIDES.append(str(aside))
    return scratch.set_aside(str(folder), [name], ALICE, str(aside), soon()).problems


@as_root
def test_nothing_is_moved_through_a_link_that_a_user_made(tmp_path, planted):
    """Otherwise root would put files of a user's making wherever that user wants them, or remove what is there."""
    folder, aside = planted
    target = tmp_path / "etc"
    target.mkdir()
    (target / "roots").touch()
    aside.symlink_to(target)
    os.lchown(aside, ALICE, ALICE)
    make(folder / "evil", ALICE)
    assert "File exists" in put_into(folder, aside, "evil")[0]
    remove()
    assert names(target) == ["roots"]


@as_root
def test_nothing_is_moved_into_another_users_folder(planted):
    folder, aside = planted
    aside.mkdir()
    aside.chmod(0o777)
    os.chown(aside, BOB, BOB)
    make(folder / "hers", ALICE)
    put_into(folder, aside, "hers")
    remove()
    assert names(folder) == [aside.name, "hers"]


@as_root
def test_a_file_in_the_way_is_no_reason_to_fail(planted):
    folder, aside = planted
    make(aside, BOB)
    make(folder / "hers", ALICE)
    assert put_into(folder, aside, "hers") == [f"{folder}/hers stays: File exists"]
    remove()
    assert names(folder) == [aside.name, "hers"]


# --- where it cannot be done ---------------------------------------------------------------------------------------

IN_A_PLACE_OF_ITS_OWN = """
import os, sys
from pathlib import Path
from slurm_share.core.process import Deadline
from slurm_share.node import scratch
folder = Path(sys.argv[1])
aside = scratch.new_aside(str(folder))
for word in scratch.set_aside(str(folder), sys.argv[2:], 2998, aside, Deadline.after(300)).problems:
    print(word)
print(scratch.remove([aside], Deadline.after(300)))
print(*sorted(str(place.relative_to(folder)) for place in folder.rglob("*")))
"""


def mounted(tmp_path, commands, *entries):
    """Run `commands` in a new mount namespace, then clear these entries; return the output."""
    script = f'set -e; cd {tmp_path}; {commands}; exec {sys.executable} -c "$0" {tmp_path} "$@"'
    run = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, IN_A_PLACE_OF_ITS_OWN, *entries], capture_output=True, text=True
    )
    if "unshare" in run.stderr or "mount" in run.stderr:
        pytest.skip(f"NOT TESTED: nothing can be mounted here ({run.stderr.strip()})")
    return run.stdout.splitlines() or [run.stderr]


@as_root
def test_a_mount_point_stays_and_is_said(tmp_path):
    make(tmp_path / "a", ALICE)
    make(tmp_path / "mount", ALICE, "below")
    said = mounted(tmp_path, "mount -t tmpfs none mount; touch mount/x; chown 2998 mount", "a", "mount")
    assert said == [f"{tmp_path}/mount stays: a file system is mounted there", "None", "mount mount/x"]


@as_root
def test_another_file_system_below_is_left_alone(tmp_path):
    make(tmp_path / "hers", ALICE, "a")
    (tmp_path / "hers/mount").mkdir()
    said = mounted(tmp_path, "mount -t tmpfs none hers/mount; touch hers/mount/x", "hers")
    assert said[-1].endswith("/mount/x")


@as_root
def test_a_full_disk_is_a_sentence(tmp_path):
    said = mounted(tmp_path, "mount -t tmpfs -o nr_inodes=2 none .; cd .; touch a; chown 2998 a", "a")
    assert said == ["None", ""] or (len(said) == 3 and "No space left on device" in said[0])


@as_root
def test_a_folder_of_another_users_under_that_name_stays(tmp_path):
    aside = Path(scratch.new_aside(str(tmp_path)))
    aside.mkdir()
    (aside / "x").touch()
    os.chown(aside, 2999, 2999)
    assert scratch.remove([str(aside)], Deadline.after(300)) is None
    assert (aside / "x").exists()

"""Folders of MPS daemons, which belong to their users: links are not followed, other users' files are not touched."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_share.core.errors import MpsFolderError
from slurm_share.core.process import Deadline
from slurm_share.core.records import Owner, ProcessIdentity
from slurm_share.mps import folders, processes
from slurm_share.mps.records import MpsPlace, MpsProcess

ROOT = os.geteuid() == 0
ME = Owner(os.geteuid(), os.getegid())
OTHER = Owner(61001, 61001)
LONG = b"x" * 100_000


@pytest.fixture
def place(tmp_path: Path) -> MpsPlace:
    """Return the place of a daemon whose folders do not exist yet."""
    return MpsPlace("/usr/bin/nvidia-cuda-mps-control", str(tmp_path / "mps/7/gpu"), "GPU-1", ME)


@pytest.mark.parametrize(
    ("which", "mode", "is_refused"),
    [
        ("mps/7", 0o711, False),
        ("mps/7", 0o733, True),
        ("mps/7", 0o731, True),
        ("mps/7", 0o1777, True),
        ("mps", 0o1777, False),
        ("mps", 0o777, True),
    ],
)
def test_a_folder_above_that_others_may_write_is_refused(
    place: MpsPlace, tmp_path: Path, which: str, mode: int, is_refused: bool
) -> None:
    """A user who can write there can replace the daemon's folder. At the top a sticky bit is sufficient."""
    (tmp_path / "mps/7").mkdir(parents=True)
    (tmp_path / "mps/7").chmod(0o711)
    (tmp_path / "mps").chmod(0o711)
    (tmp_path / which).chmod(mode)
    if is_refused:
        with pytest.raises(MpsFolderError, match="writable by nobody else"):
            folders.make(place)
        assert list((tmp_path / "mps/7").iterdir()) == []
    else:
        folders.make(place)


@pytest.mark.skipif(not ROOT, reason="NOT TESTED: to take a folder from its user needs root")
def test_what_is_removed_is_out_of_its_users_reach_before_it_is_looked_at(
    place: MpsPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.make(place)
    deeper = Path(place.pipe) / "logs/deeper"
    deeper.mkdir()
    for folder in (Path(place.pipe), deeper.parent, deeper):
        os.chown(folder, OTHER.uid, OTHER.gid)
        folder.chmod(0o777)
    seen = []
    scandir = os.scandir

    def look(what: int | str) -> object:
        if isinstance(what, int):
            info = os.fstat(what)
            seen.append((info.st_uid, stat.S_IMODE(info.st_mode)))
        return scandir(what)

    monkeypatch.setattr(os, "scandir", look)
    folders.remove(place, Deadline.after(10))
    assert len(seen) > 3
    assert seen[0] == (0, 0o711)  # the folder around it, which is root's
    assert set(seen[1:]) == {(0, 0o700)}
    assert not Path(place.pipe).exists()


@pytest.fixture
def victim(place: MpsPlace, tmp_path: Path) -> Iterator[Path]:
    """Return a long file that is not a log; it must be as long after the test."""
    folders.make(place)
    (tmp_path / "elsewhere").mkdir()
    file = tmp_path / "elsewhere/control.log"
    file.write_bytes(LONG)
    yield file
    assert file.read_bytes() == LONG


def bounded(place: MpsPlace) -> tuple[str, ...]:
    """Return the emptied logs, with a limit of a kilobyte; the last line of a log is not shown either."""
    assert folders.last_log_line(place, "control.log") == ""
    return folders.bound_logs(place, 1000)


def test_a_long_log_is_emptied(place: MpsPlace) -> None:
    folders.make(place)
    log = Path(place.logs, "control.log")
    log.write_bytes(LONG)
    assert folders.bound_logs(place, 1000) == ("control.log",)
    assert log.stat().st_size == 0


@pytest.mark.parametrize("kind", ["link", "link of the folder", "second name"])
def test_a_log_that_is_another_file_is_left_alone(place: MpsPlace, victim: Path, kind: str) -> None:
    log = Path(place.logs, "control.log")
    if kind == "link":
        log.symlink_to(victim)
    elif kind == "second name":
        log.hardlink_to(victim)
    else:
        Path(place.logs).rmdir()
        Path(place.logs).symlink_to(victim.parent)
    assert bounded(place) == ()


def test_a_log_that_is_not_its_owners_is_left_alone(place: MpsPlace, victim: Path) -> None:
    victim.rename(Path(place.logs, "control.log"))
    theirs = MpsPlace(place.program, place.pipe, place.gpu, Owner(ME.uid + 1, ME.gid))
    assert bounded(theirs) == ()
    Path(place.logs, "control.log").rename(victim)


def test_a_lock_behind_a_link_is_nobodys(place: MpsPlace, tmp_path: Path) -> None:
    folders.make(place)
    file = tmp_path / "lock"
    file.touch()
    holder = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX); print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-Sc", holder, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"\n"
        lock = Path(place.pipe, "control_lock")
        lock.hardlink_to(file)
        found = processes.lock_holder(place)
        lock.unlink()
        lock.symlink_to(file)
        behind = processes.lock_holder(place)
        child.communicate(b"\n")
    assert found is not None
    assert found.pid == child.pid
    assert behind is None


def test_another_users_server_is_none_of_the_owners(place: MpsPlace) -> None:
    mine, theirs = (
        MpsProcess(ProcessIdentity(pid, 1, uid), "server", place.pipe) for pid, uid in ((5, ME.uid), (6, ME.uid + 1))
    )
    assert processes.servers_of((mine, theirs), place) == (mine.identity,)

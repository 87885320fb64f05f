from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_share.core import own_folders
from slurm_share.core.errors import StateError

UID = os.getuid()
FIRST = f"slurm-share-{UID}"


def opened(tmp: Path, given: Path | None = None) -> Path:
    fd, where = own_folders.open_own(tmp, ("bookings",), given)
    assert os.path.samestat(os.fstat(fd), where.stat())
    os.close(fd)
    assert where.parent.stat().st_mode & 0o777 == 0o700
    return where.parent


def read(tmp: Path, given: Path | None = None) -> list[int]:
    """Return the inodes of the user's folders that a reader opens."""
    found = own_folders.open_all_of_user(tmp, "bookings", UID, given)
    inodes = [os.fstat(fd).st_ino for fd in found]
    for fd in found:
        os.close(fd)
    return inodes


def take(tmp: Path, kind: str) -> None:
    """Put something that is not a folder of the user's alone under the first name."""
    place = tmp / FIRST
    if kind == "another user's folder":
        place.mkdir(mode=0o777)
        os.chown(place, 12345, 12345)
    elif kind == "link":
        (tmp / "trap").mkdir(mode=0o700)
        place.symlink_to("trap")
    elif kind == "fifo":
        os.mkfifo(place)
    elif kind == "file":
        place.touch()
    else:
        place.mkdir()
        place.chmod(0o770)


KINDS = [
    pytest.param(
        "another user's folder", marks=pytest.mark.skipif(UID != 0, reason="NOT TESTED: only root gives files away")
    ),
    *("link", "fifo", "file", "open to others"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_is_taken_is_replaced_by_one_that_all_processes_find(tmp_path: Path, kind: str) -> None:
    take(tmp_path, kind)
    used = opened(tmp_path)
    assert used.name.startswith(f"{FIRST}.")
    assert opened(tmp_path) == used
    assert read(tmp_path) == [(used / "bookings").stat().st_ino]
    if (tmp_path / "trap").exists():
        assert list((tmp_path / "trap").iterdir()) == []


def test_the_other_name_stays_in_use_when_the_first_is_free_again(tmp_path: Path) -> None:
    take(tmp_path, "file")
    used = opened(tmp_path)
    (tmp_path / FIRST).unlink()
    assert opened(tmp_path) == used
    own_folders.remove_empty(used / "bookings")
    assert opened(tmp_path) == tmp_path / FIRST


def test_of_two_that_are_made_at_the_same_time_one_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process makes a folder between the look and the mkdir of this one."""
    made = os.mkdir
    other = tmp_path / f"{FIRST}.0123456789abcdef"

    def mkdir(name: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if name.startswith(FIRST) and not other.exists():
            made(other, 0o700)
        made(name, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", mkdir)
    assert opened(tmp_path) == other
    assert not (tmp_path / FIRST).exists()


@pytest.mark.skipif(UID != 0, reason="NOT TESTED: only root can give files away")
def test_folders_of_another_user_under_the_users_names_are_not_read(tmp_path: Path) -> None:
    for name in (FIRST, f"{FIRST}.0123456789abcdef"):
        (tmp_path / name / "bookings").mkdir(parents=True, mode=0o700)
        (tmp_path / name).chmod(0o700)
    assert len(read(tmp_path)) == 1
    for path in tmp_path.iterdir():
        os.chown(path, 12345, 12345)
    assert read(tmp_path) == []


def test_the_folder_that_root_made_is_used_if_it_is_there_and_the_users_alone(tmp_path: Path) -> None:
    given = tmp_path / "given"
    assert opened(tmp_path, given) == tmp_path / FIRST
    given.mkdir(mode=0o700)
    assert opened(tmp_path, given) == given
    assert len(read(tmp_path, given)) == 2
    given.chmod(0o777)
    assert opened(tmp_path, given) == tmp_path / FIRST


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        own_folders.open_own(tmp_path / "none", ("bookings",))
    (tmp_path / FIRST).mkdir(mode=0o700)
    (tmp_path / FIRST / "bookings").touch()
    with pytest.raises(StateError, match="bookings"):
        own_folders.open_own(tmp_path, ("bookings",))


MAKERS = """
import os, sys
from pathlib import Path
from slurm_share.core import own_folders
for _ in range(200):
    fd, where = own_folders.open_own(Path(sys.argv[1]), ("progress",))
    os.close(fd)
    own_folders.remove_empty(where)
"""


def test_processes_that_make_and_remove_at_once_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / FIRST).touch()
    running = [subprocess.Popen([sys.executable, "-c", MAKERS, str(tmp_path)]) for _ in range(4)]
    assert [process.wait(120) for process in running] == [0, 0, 0, 0]
    assert [one.name for one in tmp_path.iterdir()] == [FIRST]


def test_a_link_below_the_users_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trap").mkdir(mode=0o700)
    (tmp_path / FIRST).mkdir(mode=0o700)
    (tmp_path / FIRST / "bookings").symlink_to(tmp_path / "trap")
    with pytest.raises(StateError, match="bookings: is no folder, or a link"):
        own_folders.open_own(tmp_path, ["bookings"])

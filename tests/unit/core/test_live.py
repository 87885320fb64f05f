"""The folder of a living launcher: made, read by others, and removed when it is dead."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_share.core import live
from slurm_share.core.errors import StateError
from slurm_share.core.live import LiveFolder

UID = os.getuid()


def outer(tmp: Path) -> Path:
    return tmp / f"slurm-share-{UID}" / "live"


def read(tmp: Path, uid: int = UID, given: Path | None = None) -> list[bytes]:
    return live.read_all(tmp, uid, "x.json", bytes, 100, given)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[LiveFolder]:
    """The folder of a launcher, this process."""
    made = LiveFolder(tmp_path, "12")
    made.replace("x.json", b"one")
    yield made
    made.close()


def test_what_a_launcher_writes_is_read_until_it_ends(tmp_path: Path, folder: LiveFolder) -> None:
    assert folder.path == outer(tmp_path) / f"12.{os.getpid()}"
    assert folder.path.stat().st_mode & 0o077 == 0
    assert read(tmp_path) == [b"one"]
    folder.replace("x.json", b"two")
    assert read(tmp_path) == [b"two"]
    folder.remove("x.json")
    folder.remove("x.json")
    assert read(tmp_path) == []
    (folder.path / "progress").mkdir()
    (folder.path / "progress" / "0").write_text("5")
    folder.close()
    folder.close()
    assert list(tmp_path.iterdir()) == []  # nothing of ours is left where administrators have installed nothing


def test_a_folder_without_lock_is_not_read_and_the_next_launcher_removes_it(tmp_path: Path, folder: LiveFolder) -> None:
    left = outer(tmp_path) / "11.1"
    shutil.copytree(folder.path, left)
    (left / "progress").mkdir()
    (left / "progress" / "0").write_text("5")
    assert read(tmp_path) == [b"one"]
    assert left.exists()  # who only reads removes nothing
    other = LiveFolder(tmp_path, "13")
    assert not left.exists()
    assert folder.path.exists()
    other.close()


def test_a_launcher_lives_until_its_guard_and_its_loop_have_ended(tmp_path: Path, folder: LiveFolder) -> None:
    pid = os.fork()
    if pid == 0:
        signal.pause()
    for fd in (folder.fd, folder.base):
        os.close(fd)
    folder.fd = folder.base = -1
    assert read(tmp_path) == [b"one"]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert read(tmp_path) == []
    LiveFolder(tmp_path, "13").close()
    assert list(tmp_path.iterdir()) == []


def test_others_are_those_that_live(tmp_path: Path, folder: LiveFolder) -> None:
    other = LiveFolder(tmp_path, "13/../x")
    (outer(tmp_path) / "dead.1").mkdir()
    (outer(tmp_path) / "lock").touch()
    (outer(tmp_path) / "link").symlink_to("/etc")
    assert [os.readlink(f"/proc/self/fd/{fd}") for fd in folder.others()] == [str(other.path)]  # noqa: PTH115
    assert sorted(path.name for path in outer(tmp_path).iterdir()) == sorted([folder.name, other.name, "lock", "link"])
    other.close()


def test_the_folder_that_root_made_is_used_and_stays(tmp_path: Path, folder: LiveFolder) -> None:
    given = tmp_path / "given"
    given.mkdir(mode=0o700)
    other = LiveFolder(tmp_path, "13", given)
    other.replace("x.json", b"two")
    assert other.path.parent == given / "live"
    assert sorted(read(tmp_path, given=given)) == [b"one", b"two"]
    other.close()
    assert list(given.iterdir()) == []


def test_a_disk_that_takes_nothing_keeps_the_file(tmp_path: Path, folder: LiveFolder) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live.os, "write", lambda fd, data: 0)
        with pytest.raises(OSError, match="No space left"):
            folder.replace("x.json", b"two")
    assert [path.name for path in folder.path.iterdir()] == ["x.json"]
    assert read(tmp_path) == [b"one"]


def test_long_files_links_and_fifos_are_passed_over(tmp_path: Path, folder: LiveFolder) -> None:
    folder.replace("x.json", bytes(101))
    assert read(tmp_path) == []
    (folder.path / "real").write_bytes(b"one")
    for make in (lambda file: file.symlink_to(folder.path / "real"), os.mkfifo, os.mkdir):
        folder.path.joinpath("x.json").unlink(missing_ok=True)
        make(folder.path / "x.json")
        assert read(tmp_path) == []


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_folder_that_is_a_link_is_passed_over(tmp_path: Path, folder: LiveFolder, level: int) -> None:
    place = [folder.path, *folder.path.parents][level]
    place.symlink_to(place.rename(tmp_path / "moved"))
    assert read(tmp_path) == []


def test_folders_that_others_may_write_are_neither_used_nor_read(tmp_path: Path, folder: LiveFolder) -> None:
    folder.path.chmod(0o777)
    assert read(tmp_path) == []
    outer(tmp_path).chmod(0o777)
    with pytest.raises(StateError, match="nobody else can use"):
        LiveFolder(tmp_path, "13")


@pytest.mark.skipif(UID != 0, reason="NOT TESTED: only root can give files away")
@pytest.mark.parametrize("level", ["file", "folder", "outer"])
def test_what_another_user_owns_is_passed_over(tmp_path: Path, folder: LiveFolder, level: str) -> None:
    place = {"file": folder.path / "x.json", "folder": folder.path, "outer": outer(tmp_path)}[level]
    os.chown(place, 65534, 65534)
    assert read(tmp_path) == []
    assert read(tmp_path, 65534) == []


def test_a_launcher_is_found_among_many_dead_ones(tmp_path: Path, folder: LiveFolder) -> None:
    for number in range(live.MOST_LAUNCHERS * 3):
        (outer(tmp_path) / f"11.{number}").mkdir()
    assert read(tmp_path) == [b"one"]
    some = [LiveFolder(tmp_path, f"n{number}") for number in range(live.MOST_LAUNCHERS + 2)]
    for one in some:
        one.replace("x.json", b"x")
    assert len(read(tmp_path)) == live.MOST_LAUNCHERS
    for one in some:
        one.close()


def test_no_file_stays_open(tmp_path: Path, folder: LiveFolder) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(50):
        read(tmp_path)
        read(tmp_path, UID + 1)
        list(folder.others())
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_place_that_is_missing_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="cannot be used"):
        LiveFolder(tmp_path / "none", "12")
    assert read(tmp_path / "none") == []


def test_a_launcher_with_the_same_job_and_pid_in_another_container_gets_another_name(
    tmp_path: Path, folder: LiveFolder
) -> None:
    other = LiveFolder(tmp_path, "12")
    other.replace("x.json", b"two")
    assert sorted(read(tmp_path)) == [b"one", b"two"]
    other.close()


def test_a_long_name_of_a_job_is_cut(tmp_path: Path) -> None:
    made = LiveFolder(tmp_path, "local-" + "x/" * 200)
    assert len(made.path.name) <= 128
    made.close()


LAUNCHERS = """
import sys
from pathlib import Path
from slurm_share.core.live import LiveFolder
for number in range(100):
    made = LiveFolder(Path(sys.argv[1]), f"12-{number}")
    made.replace("x.json", b"x")
    assert (made.path / "x.json").exists()
    made.close()
"""


def test_launchers_that_start_and_end_at_once_leave_nothing(tmp_path: Path) -> None:
    """Each removes the empty folders at its end, while others are making theirs in them."""
    running = [subprocess.Popen([sys.executable, "-c", LAUNCHERS, str(tmp_path)]) for _ in range(4)]
    assert [process.wait(60) for process in running] == [0, 0, 0, 0]
    assert list(tmp_path.iterdir()) == []

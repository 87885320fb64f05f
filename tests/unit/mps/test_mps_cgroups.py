"""The files of a user's MPS daemon's cgroup, over a folder that stands for cgroup v2.

On a cluster the tests have memory and pids in v1 only (tests/cluster/test_daemon_cgroups.py).
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest

from slurm_share.core.process import Deadline
from slurm_share.core.records import DaemonGroup
from slurm_share.mps import cgroups

NAME = "5131194a-9e2f6f"
LEAF = f"slurm-share/uid_2001/{NAME}"
FILES = ("cgroup.procs", "cgroup.subtree_control", "cgroup.events", "cgroup.kill", "cgroup.freeze")


class Tree:
    """A stand-in for the tree of v2: new folders get its files, folders without folders can be removed, and values that
    are written are obeyed."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.group = DaemonGroup(str(root), 2001, NAME, minor=2, memory_mib=4096, processes=256)
        self.written: list[tuple[str, str]] = []
        self.guarded: list[str] = []
        self.refused: dict[str, int] = {}
        """By the name of a file, the error of writing it."""
        self.lacks: tuple[str, ...] = ()
        """Files that this kernel has not."""
        self._mkdir, self._rmdir = os.mkdir, os.rmdir
        (root / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
        self._fill(str(root))
        monkeypatch.setattr(cgroups.os, "mkdir", self.mkdir)
        monkeypatch.setattr(cgroups.os, "rmdir", self.rmdir)
        monkeypatch.setattr(cgroups.cgroup_paths, "write", self.write)
        monkeypatch.setattr(cgroups.device_guard, "attach", lambda folder, _: self.guarded.append(self.of(folder)))

    def of(self, path: str) -> str:
        return str(Path(path).relative_to(self.root))

    def _fill(self, folder: str) -> None:
        for name in FILES:
            (Path(folder) / name).write_text("")

    def mkdir(self, folder: str, mode: int) -> None:
        self._mkdir(folder, mode)
        self._fill(folder)

    def rmdir(self, folder: str) -> None:
        inside = list(Path(folder).iterdir())
        if any(one.is_dir() for one in inside) or (Path(folder) / "cgroup.procs").read_text():
            raise OSError(errno.EBUSY, "busy")
        for one in inside:
            one.unlink()
        self._rmdir(folder)

    def write(self, file: str, value: str) -> None:
        name = file.rpartition("/")[2]
        if name in self.lacks:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), file)
        if name in self.refused:
            raise OSError(self.refused[name], os.strerror(self.refused[name]), file)
        self.written.append((self.of(file), value))
        folder = Path(file).parent
        if name == "cgroup.subtree_control":
            (folder / name).write_text(f"{(folder / name).read_text()}{value[1:]} ")
        elif name == "cgroup.freeze":
            (folder / "cgroup.events").write_text(f"populated 1\nfrozen {value}\n")
        elif name == "cgroup.kill":
            for pid in (folder / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)

    def enter(self, child: subprocess.Popen[bytes]) -> None:
        (self.root / LEAF / "cgroup.procs").write_text(f"{child.pid}\n")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    return Tree(tmp_path, monkeypatch)


def make(tree: Tree) -> tuple[str, ...]:
    return cgroups.make(tree.group, Deadline.after(5))


def test_the_limits_are_written_into_the_daemons_own_folder(tree: Tree) -> None:
    """Each folder above passes the two controllers on first; the devices are guarded in the same folder."""
    assert make(tree) == ()
    above = [f"{folder}cgroup.subtree_control" for folder in ("", "slurm-share/", "slurm-share/uid_2001/")]
    passed_on = [(file, value) for file in above for value in ("+memory", "+pids")]
    limits = [("memory.max", str(4096 << 20)), ("pids.max", "256"), ("memory.swap.max", "0")]
    assert tree.written == passed_on + [(f"{LEAF}/{file}", value) for file, value in limits]
    assert tree.guarded == [LEAF]


def test_a_second_daemon_of_a_user_asks_for_no_controller_again(tree: Tree) -> None:
    make(tree)
    tree.written.clear()
    tree.group = DaemonGroup(str(tree.root), 2001, "00000000-000001", minor=0, memory_mib=512, processes=64)
    make(tree)
    assert [file for file, _ in tree.written if "subtree_control" in file] == []
    assert ("slurm-share/uid_2001/00000000-000001/memory.max", str(512 << 20)) in tree.written


def test_what_does_not_hold_is_said_and_the_rest_holds(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted", "bpf")

    monkeypatch.setattr(cgroups.device_guard, "attach", refuse)
    tree.refused = {"memory.max": errno.ENOENT, "memory.swap.max": errno.ENOENT}
    assert make(tree) == (
        "memory.max cannot be set for it: No such file or directory",
        "it may open any GPU: bpf: Operation not permitted",
    )
    assert (f"{LEAF}/pids.max", "256") in tree.written


@pytest.mark.parametrize(
    ("lacks", "expected"),
    [
        ((), [("cgroup.kill", "1")]),
        (("cgroup.kill",), [("cgroup.freeze", "1"), ("cgroup.freeze", "0")]),
        (("cgroup.kill", "cgroup.freeze"), []),
    ],
    ids=["since 5.14", "since 5.2", "older"],
)
def test_what_is_in_a_group_is_killed_as_a_whole(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, lacks: tuple[str, ...], expected: list[object]
) -> None:
    make(tree)
    tree.written.clear()
    tree.lacks = lacks
    child = subprocess.Popen(["/bin/sleep", "600"])
    tree.enter(child)

    kill = os.kill

    def leave(pid: int, number: int) -> None:
        kill(pid, number)
        child.wait()
        (tree.root / LEAF / "cgroup.procs").write_text("")

    with monkeypatch.context() as ending:
        ending.setattr(cgroups.os, "kill", leave)
        assert cgroups.end(tree.group, Deadline.after(5)) == ()
    assert child.returncode == -signal.SIGKILL
    assert tree.written == [(f"{LEAF}/{file}", value) for file, value in expected]
    assert not (tree.root / "slurm-share/uid_2001").exists()

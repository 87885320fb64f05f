"""Pausing and continuing all processes of a task, also after loop, guard or watchdog were killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from launches import PATIENCE_S, read_proc, wait_for

from slurm_share.core.process import identify
from slurm_share.node import descendants, processes
from slurm_share.triples.launcher import pauses, watchdog
from slurm_share.triples.launcher.pauses import Pauses
from slurm_share.triples.launcher.table import Table


@pytest.fixture
def begin() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a program as a task is started; what is left of it is killed."""
    made: list[subprocess.Popen[str]] = []

    def start(code: str) -> subprocess.Popen[str]:
        made.append(subprocess.Popen([sys.executable, "-c", code], start_new_session=True, text=True))
        return made[-1]

    yield start
    for one in made:
        for member in descendants.read_family(one.pid):
            os.kill(member.known.pid, signal.SIGKILL)
        one.wait()


TREE = """
import os, time
for leave in (lambda: None, lambda: os.setpgid(0, 0), os.setsid):
    if os.fork() == 0:
        leave()
        if os.fork() == 0:
            time.sleep(100)
        time.sleep(100)
time.sleep(100)
"""
FORKS = """
import os, time
while True:
    for _ in range(20):
        if os.fork() == 0:
            time.sleep(0.05)
            os._exit(0)
        time.sleep(0.001)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""


def family(leader: int) -> list[bool]:
    """For each process of a task, whether it is stopped."""
    return [one.is_stopped for one in descendants.read_family(leader)]


def test_all_processes_of_a_task_stop_and_go_on_in_whatever_group_and_session(begin: Any) -> None:
    leader = begin(TREE).pid
    wait_for(lambda: len(family(leader)) == 7)
    assert pauses.stop(leader)
    assert family(leader) == [True] * 7
    pauses.go_on(leader)
    wait_for(lambda: family(leader) == [False] * 7)


def test_no_new_child_escapes_the_stop(begin: Any) -> None:
    leader = begin(FORKS).pid
    for _ in range(10):
        wait_for(lambda: len(family(leader)) > 3)
        assert pauses.stop(leader)
        before = {one.known.pid for one in descendants.read_family(leader)}
        time.sleep(0.1)
        assert {one.known.pid for one in descendants.read_family(leader)} == before
        assert all(family(leader))
        pauses.go_on(leader)


class Stand:
    """A table, a watchdog, and the tasks of a loop."""

    def __init__(self, workers: int = 1) -> None:
        self.table = Table(workers)
        self.watchdog = watchdog.start(self.table)
        self.said: list[str] = []
        self.pauses = Pauses(self.table, self.watchdog, self.said.append)

    def task(self, number: int, pid: int, worker: int = 0) -> Any:
        self.table.begin(worker, number, 1, 100.0, 7.0)
        self.table.pid_of(worker).value = pid
        return SimpleNamespace(worker=worker, pid=pid, task=number)


@pytest.fixture
def stand() -> Iterator[Stand]:
    made = Stand()
    yield made
    if made.watchdog is not None:
        made.watchdog.close()


def test_the_table_says_that_a_task_is_stopped_before_its_first_process_is(
    begin: Any, stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = begin("import time; time.sleep(100)").pid
    ticks = identify(leader).start_ticks  # type: ignore[union-attr]
    seen: list[tuple[int, bool]] = []

    def stop(pid: int) -> bool:
        seen.append((stand.table.rows()[0].paused_ticks, processes.is_stopped(pid)))
        return real(pid)

    real = pauses.stop
    monkeypatch.setattr(pauses, "stop", stop)
    assert stand.pauses.pause(stand.task(5, leader))
    assert seen == [(ticks, False)]
    assert list(stand.pauses.tasks) == [5]
    stand.pauses.resume(5)
    wait_for(lambda: family(leader) == [False])
    assert stand.table.rows()[0].paused_ticks == 0
    assert not stand.pauses.tasks


def test_a_task_that_is_gone_is_not_stopped(begin: Any, stand: Stand) -> None:
    process = begin("pass")
    process.wait()
    assert not stand.pauses.pause(stand.task(5, process.pid))
    assert not stand.pauses.pause(stand.task(5, 0))


@pytest.fixture(autouse=True)
def name() -> Iterator[None]:
    """Give this thread a name of its own, which forks inherit: other tests have watchdogs at the same time."""
    file = Path("/proc/thread-self/comm")
    before = file.read_text()
    file.write_text(f"test-{uuid.uuid4().hex[:10]}")
    yield
    file.write_text(before)


def one_watchdog() -> int:
    """Wait until there is one, and return its pid. A task is taken for one until its program runs."""
    wait_for(lambda: len(watchdog_pid()) == 1)
    (pid,) = watchdog_pid()
    return pid


def watchdog_pid() -> list[int]:
    """The watchdogs of this test: forks of this process that have a session of their own."""
    mine = Path("/proc/thread-self/comm").read_bytes()
    pids = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    stats = {pid: read_proc(pid, "stat").rpartition(b")")[2].split() for pid in pids if read_proc(pid, "comm") == mine}
    # Its session is the sixth field of stat(5); two are gone with the name.
    return [
        pid for pid, stat in stats.items() if pid != os.getpid() and stat and stat[0] != b"Z" and int(stat[3]) == pid
    ]


def test_the_watchdog_ends_with_the_launcher_and_keeps_none_of_its_files(stand: Stand) -> None:
    pid = one_watchdog()
    files = Path(f"/proc/{pid}/fd")
    wait_for(lambda: len(list(files.iterdir())) == 4)
    assert sorted(str(one.readlink()) for one in files.iterdir())[:3] == ["/dev/null"] * 3
    assert stand.watchdog is not None
    assert stand.watchdog.lives()
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGINT)
    time.sleep(0.1)
    assert one_watchdog() == pid
    stand.watchdog.close()
    wait_for(lambda: not watchdog_pid())


def test_without_a_watchdog_nothing_is_stopped(begin: Any, stand: Stand) -> None:
    leader = begin("import time; time.sleep(100)").pid
    pid = one_watchdog()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not stand.pauses.is_possible)
    assert not stand.pauses.pause(stand.task(5, leader))
    assert family(leader) == [False]
    assert not Pauses(stand.table, None, print).is_possible


@pytest.mark.parametrize("is_deaf", [False, True])
def test_when_loop_and_guard_are_killed_the_watchdog_ends_what_is_paused(begin: Any, is_deaf: bool) -> None:
    """The table has a paused task, a running task, and a paused row whose pid was reused."""
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " if is_deaf else ""
    paused, runs, other = (begin(deaf + "import time; time.sleep(100)") for _ in range(3))
    time.sleep(0.3)
    launcher = os.fork()
    if launcher == 0:
        try:
            made = Stand(3)
            made.pauses.pause(made.task(5, paused.pid, 0))
            made.task(6, runs.pid, 1)
            made.task(7, other.pid, 2)
            made.table.pause(2, 4711)
        finally:  # also after an exception, which must not go on as a second pytest
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(launcher, 0)
    assert paused.wait(PATIENCE_S) == (-signal.SIGKILL if is_deaf else -signal.SIGTERM)
    assert (runs.poll(), other.poll()) == (None, None)
    wait_for(lambda: not watchdog_pid())

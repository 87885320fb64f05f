"""Ranks with other threads, which could or could not send a message while one waits for ever."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from in_processes import run_command

from slurm_share.spmd import threads
from slurm_share.spmd.errors import Deadlock
from slurm_share.spmd.single import SingleTransport
from slurm_share.spmd.transport import USER


def started(target: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    time.sleep(0.05)
    return thread


@pytest.fixture
def event():
    """Yield an event that ends the threads of the test."""
    event = threading.Event()
    yield event
    event.set()


def counted(before: int) -> int:
    return threads.at_rest(None)[0] - before


def test_a_thread_that_waits_for_ever_could_not_send(event: threading.Event) -> None:
    before = threads.at_rest(None)[0]
    items: queue.Queue[int] = queue.Queue()
    waiting = started(event.wait)
    getting = started(items.get)
    joining = started(waiting.join)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        time.sleep(0.05)
        assert counted(before) == 0
    event.set()
    items.put(1)
    for thread in (waiting, getting, joining):
        thread.join()


def test_a_thread_that_sleeps_or_waits_with_a_limit_could_send(event: threading.Event) -> None:
    before = threads.at_rest(None)[0]

    def sleep() -> None:
        while not event.is_set():
            time.sleep(0.2)

    sleeping = started(sleep)
    assert counted(before) == 1
    waiting = started(lambda: event.wait(60))
    assert counted(before) == 2
    assert counted(before) == 2
    event.set()
    sleeping.join()
    waiting.join()


def test_the_place_of_a_thread_tells_whether_it_has_gone_on(event: threading.Event) -> None:
    first, second = threads.at_rest(None), threads.at_rest(None)
    assert first == second
    thread = started(event.wait)
    assert threads.at_rest(None) != first
    event.set()
    thread.join()


def test_idle_threads_of_ranks_do_not_hide_a_deadlock(tmp_path: Path) -> None:
    program = tmp_path / "prog.py"
    program.write_text(
        "import queue, threading, time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from slurm_share.spmd import COMM_WORLD as comm\n"
        "for target in (queue.Queue().get, threading.Event().wait, lambda: comm.recv(None, 0, 'other')):\n"
        "    threading.Thread(target=target, daemon=True).start()\n"
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
        "pool = ThreadPoolExecutor(1)\n"
        "pool.submit(int).result()\n"
        "comm.recv(None, (comm.rank + 1) % comm.size, 'never')\n"
    )
    done = run_command("-n", 2, program)
    assert done.returncode == 1
    assert "Deadlock: all ranks wait for each other and no message is under way" in done.stderr
    assert "could still send" not in done.stderr


def test_a_thread_that_sleeps_first_may_still_send(tmp_path: Path) -> None:
    program = tmp_path / "prog.py"
    program.write_text(
        "import threading, time\n"
        "from slurm_share.spmd import COMM_WORLD as comm\n"
        "def late():\n"
        "    time.sleep(9)\n"
        "    comm.send('late', 1 - comm.rank)\n"
        "thread = threading.Thread(target=late)\n"
        "thread.start()\n"
        "print(comm.recv(None, 1 - comm.rank))\n"
        "thread.join()\n"
    )
    done = run_command("-n", 2, program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("late") == 2
    told = "the run goes on, because other threads of 2 ranks could still send a message"
    assert done.stderr.count(told) == 1
    assert "rank 0 waits in recv for (1, any tag)" in done.stderr


def test_a_rank_alone_with_an_idle_thread_is_told_that_it_waits_for_ever(event: threading.Event) -> None:
    thread = started(event.wait)
    with pytest.raises(Deadlock):
        SingleTransport().receive(0, USER, None, "recv")
    event.set()
    thread.join()


def test_the_thread_of_a_progress_bar_sends_nothing(event: threading.Event) -> None:
    before = threads.at_rest(None)[0]
    monitor = type("TMonitor", (threading.Thread,), {"__module__": "tqdm._monitor"})
    thread = monitor(target=lambda: event.wait(60), daemon=True)
    thread.start()
    assert counted(before) == 0
    event.set()
    thread.join()

"""Calls that an exception ends: out of a handler of a signal, or raised by another thread."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from in_processes import run_command, run_ranks

from slurm_share.spmd import interrupts

RECV = """
import signal, sys
import numpy as np
from at_each_step import Interrupted
from slurm_share.spmd import COMM_WORLD as comm

class Interruption(Exception):
    pass

def handler(*_):
    raise Interruption

size, number, where = int(sys.argv[1]), 0, "the begin"
signal.signal(signal.SIGUSR1, handler)
while comm.rank == 1 and comm.recv(None, 0, "more"):
    comm.send((number, np.full(size, number % 251, np.uint8)), 0, "numbered")
    number += 1
while comm.rank == 0 and where:
    comm.send(True, 1, "more")
    interrupted, got = Interrupted(number + 1, lambda: signal.raise_signal(signal.SIGUSR1)), None
    try:
        with interrupted:
            got = comm.recv(None, 1, "numbered")
    except Interruption:
        pass
    where = interrupted.where
    if got is None:
        got = comm.recv(None, 1, "numbered", timeout_s=20)
    assert got[0] == number and got[1].size == size and (got[1] == number % 251).all(), where
    number += 1
if comm.rank == 0:
    comm.send(False, 1, "more")
    print(number)
"""


class Interruption(Exception):
    pass


def raising(*_arguments: object) -> None:
    raise Interruption


@pytest.fixture
def lock():
    """Return a lock, in a process whose handler of SIGUSR1 raises; the test's handlers come back."""
    lock = interrupts.TransportLock()
    before = signal.signal(signal.SIGUSR1, raising)
    yield lock
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("size", [100, 1 << 20])
@pytest.mark.parametrize("per_node", [2, 1], ids=["in a node", "between nodes"])
@pytest.mark.parametrize("call", ["receive", "send"])
def test_a_signal_at_any_step_of_a_call_loses_no_message(call: str, per_node: int, size: int) -> None:
    found, _none = run_ranks(2, "interrupted_at_each_step", call, "signal", size, per_node=per_node)
    wrong, steps = found
    assert wrong == []
    assert steps > 15


@pytest.mark.parametrize(
    ("per_node", "threads"), [*(pytest.param(*one, marks=pytest.mark.weekly) for one in ((2, 0), (1, 0))), (2, 2)]
)
def test_two_hundred_interrupts_at_random_moments_lose_no_message(per_node: int, threads: int) -> None:
    found, _none = run_ranks(2, "interrupted_at_random", 200, threads, per_node=per_node)
    wrong, times, messages = found
    assert wrong == []
    assert times >= 200
    assert messages > 50


@pytest.mark.parametrize("size", [100, 1 << 21])
def test_a_signal_at_any_step_of_recv_leaves_the_message_for_the_next(tmp_path: Path, size: int) -> None:
    program = tmp_path / "prog.py"
    program.write_text(RECV)
    done = run_command("-n", 2, program, size, env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)})
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 20


def test_a_handler_runs_when_the_lock_is_released(lock: interrupts.TransportLock) -> None:
    done: list[str] = []

    def step() -> None:
        with lock:
            signal.raise_signal(signal.SIGUSR1)
            done.append("the step")

    with pytest.raises(Interruption):
        step()
    assert done == ["the step"]
    assert not lock.lock.locked()


def test_a_handler_runs_at_once_during_a_wait(lock: interrupts.TransportLock) -> None:
    class Poller:
        def poll(self, timeout: float | None) -> list[Any]:
            signal.raise_signal(signal.SIGUSR1)
            raise AssertionError

    with lock:
        with pytest.raises(Interruption):
            lock.poll_unlocked(Poller(), None)
        assert lock.lock.locked()


def test_a_signal_just_before_a_wait_ends_the_wait(lock: interrupts.TransportLock) -> None:
    class Poller:
        def poll(self, timeout: float | None) -> list[Any]:
            raise AssertionError("the wait has begun")

    with lock:
        signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(Interruption):
            lock.poll_unlocked(Poller(), None)


def test_the_programs_own_handlers_are_returned(lock: interrupts.TransportLock) -> None:
    assert signal.getsignal(signal.SIGUSR1) is raising
    assert signal.signal(signal.SIGUSR1, signal.SIG_IGN) is raising
    assert signal.signal(signal.SIGUSR1, raising) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_signals_after_one_whose_handler_raises_are_raised_again(lock: interrupts.TransportLock) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _frame: heard.append(number))
    try:
        interrupts.GATE.delayed.append((raising, signal.SIGUSR1))
        with pytest.raises(Interruption), lock:
            signal.raise_signal(signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert heard == [signal.SIGUSR2]

"""The shared table of workers survives the loop, and numbers in it that are no task's are not signalled."""

import os
import signal

import pytest

from slurm_share.triples.launcher import task_process
from slurm_share.triples.launcher.table import Row, Table


def test_rows_are_seen_by_the_process_that_forked_the_writer():
    table = Table(5)
    pid = os.fork()
    if pid == 0:
        table.begin(0, 10, 1, 100.0, 7.0)
        table.begin(1, 11, 2, 101.0, 7.0)
        table.pid_of(1).value = 4711
        table.begin(2, 12, 1, 102.0, 7.0)
        table.pid_of(2).value = 4712
        table.end(2, 0, None)
        table.begin(3, 13, 1, 103.0, 7.0)
        table.pid_of(3).value = 4713
        table.end(3, None, 9)
        table.begin(4, 14, 1, 104.0, 7.0)
        table.clear(4)
        os._exit(0)
    os.waitpid(pid, 0)
    assert table.rows() == (
        Row(0, 10, 1, 0, 100.0, 7.0),
        Row(1, 11, 2, 4711, 101.0, 7.0),
        Row(2, 12, 1, 4712, 102.0, 7.0, 0, None),
        Row(3, 13, 1, 4713, 103.0, 7.0, None, 9),
    )


@pytest.mark.parametrize("leader", [-1, 0, 1])
def test_a_number_that_is_no_tasks_is_never_signalled(leader, monkeypatch):
    told = []
    monkeypatch.setattr(os, "killpg", lambda group, number: told.append(group))
    assert (task_process.signal_group(leader, signal.SIGKILL), told) == (False, [])

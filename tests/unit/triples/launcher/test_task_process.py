"""Signals to a task's process group."""

from __future__ import annotations

import os
import signal

import pytest

from slurm_share.triples.launcher import task_process


@pytest.mark.parametrize("leader", [-1, 0, 1])
def test_a_number_that_is_no_tasks_is_never_signalled(leader: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: told.append(group))
    assert task_process.signal_group(leader, signal.SIGKILL) is False
    assert told == []

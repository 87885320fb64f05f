"""A query in the background: its answer, its failure, and nobody who waits for it."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from slurm_share.core.background import BackgroundCall


def test_the_answer_comes_when_it_is_there():
    go_on = threading.Event()
    asked = BackgroundCall(lambda: go_on.wait(20))
    assert not asked.wait(0.01)
    go_on.set()
    assert asked.answer() is True
    assert asked.wait(0.0)


def test_what_it_raises_is_raised_where_the_answer_is_wanted():
    asked = BackgroundCall(lambda: 1 // 0)
    assert asked.wait(20)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            asked.answer()


def test_the_end_of_the_program_does_not_wait_for_it():
    code = "import time; from slurm_share.core.background import BackgroundCall; BackgroundCall(lambda: time.sleep(60))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)

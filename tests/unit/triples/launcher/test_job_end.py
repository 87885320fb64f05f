"""When a job ends, as Slurm's recorded answer says."""

import os
from pathlib import Path

import pytest

from slurm_share.triples.launcher import job_end
from slurm_share.triples.launcher.job_end import JobEnd

ANSWER = Path(__file__).parents[3] / "data" / "slurm-26.05" / "squeue.json"
JOB, ENDS = 31, 1795358097
"""A job in this answer, and when it ends."""


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """Puts a shell script in the place of squeue."""

    def put(text):
        program = tmp_path / "squeue"
        program.write_text(f"#!/bin/bash\n{text}\n")
        program.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(job_end, "ANSWER_S", 30)
    monkeypatch.setattr(job_end, "AGAIN_S", 0.01)
    return put


def test_squeue_that_gets_the_signal_too_is_asked_again(squeue, tmp_path):
    """The signal of a preemption reaches squeue as well where Slurm follows processes by their parents."""
    asked = tmp_path / "asked"
    squeue(f"echo >> {asked}; [ $(wc -l < {asked}) = 3 ] || kill -TERM $$; cat {ANSWER}")
    answer = JobEnd(JOB).answer()
    assert answer is not None
    assert answer.ends == ENDS
    assert asked.read_text().count("\n") == 3


def test_squeue_that_never_answers_is_given_up(squeue, monkeypatch):
    monkeypatch.setattr(job_end, "ANSWER_S", 0.2)
    squeue("kill -TERM $$")
    assert JobEnd(JOB).answer() is None

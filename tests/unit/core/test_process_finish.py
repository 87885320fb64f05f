"""A program's output, whatever bytes it is made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_share.core.errors import CommandError, SlurmSilentError
from slurm_share.core.process import RetryCheck, finish
from slurm_share.slurm import jobs as slurm_jobs

DATA = Path(__file__).parents[2] / "data"


def test_what_is_no_utf8_is_shown_as_a_sign() -> None:
    done = finish(["/bin/sh", "-c", r"printf 'a\377b'; printf '\376' >&2"], timeout_s=10)
    assert (done.stdout, done.stderr) == ("a\ufffdb", "\ufffd")


@pytest.mark.parametrize("release", ["26.05", "24.11"])
def test_a_job_name_that_is_no_utf8_hides_no_job(release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm writes a name's bytes into its JSON as they are, and anybody can have such a job in the queue."""
    recorded = (DATA / f"slurm-{release}" / "squeue.json").read_bytes()
    name = json.loads(recorded)["jobs"][0]["name"]
    (tmp_path / "answer").write_bytes(recorded.replace(f'"name":"{name}"'.encode(), b'"name":"caf\xe9"'))
    (tmp_path / "squeue").write_text(f"#!/bin/sh\nexec /bin/cat {tmp_path}/answer\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    _, jobs = slurm_jobs.read_queue()
    assert len(jobs) == len(json.loads(recorded)["jobs"])
    assert "caf\ufffd" in {job.name for job in jobs}


def test_a_program_is_waited_for_only_while_an_answer_can_come() -> None:
    asked = []

    def fine() -> None:
        asked.append("fine")

    def hopeless() -> None:
        raise SlurmSilentError(("squeue",), 10)

    assert finish(["/bin/sh", "-c", "sleep 0.2; echo x"], timeout_s=30, check=RetryCheck(0.01, fine)).stdout == "x\n"
    assert asked == ["fine"]
    assert finish(["/bin/echo", "x"], timeout_s=30, check=RetryCheck(30, hopeless)).stdout == "x\n"
    with pytest.raises(SlurmSilentError, match="Slurm does not answer: no word from its controller within 10 s"):
        finish(["/bin/sleep", "1000"], timeout_s=2000, check=RetryCheck(0.01, hopeless))
    with pytest.raises(CommandError, match=r"no answer within 0\.05 s"):
        finish(["/bin/sleep", "1000"], timeout_s=0.05, check=RetryCheck(0.01, fine))

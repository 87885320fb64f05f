"""sbatch's answers, from programs that speak as it does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_share.core import given_variables, names
from slurm_share.core.errors import SlurmShareError, UsageError
from slurm_share.slurm import submit


def says(folder: Path, script: str) -> list[str]:
    file = folder / "sbatch"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return [str(file)]


def submitted(argv: Sequence[str], **more: Any) -> int:
    return submit.submit(argv, say=lambda text: None, **more)


@pytest.mark.parametrize("answer", ["4711", "4711;cluster", "words of a plugin\n4711"])
def test_the_jobs_number_is_returned(answer: str, tmp_path: Path) -> None:
    assert submitted(says(tmp_path, f"printf '{answer}\\n'")) == 4711


def test_what_sbatch_only_mentions_is_passed_on(tmp_path: Path) -> None:
    heard: list[str] = []
    assert submit.submit(says(tmp_path, "echo 'sbatch: warning' >&2; echo 5"), say=heard.append) == 5
    assert heard == ["sbatch: warning\n"]


def test_a_refusal_keeps_all_of_sbatchs_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="sbatch: error: one\nsbatch: error: two"):
        submitted(says(tmp_path, "echo 'sbatch: error: one' >&2; echo 'sbatch: error: two' >&2; exit 1"))


def test_a_silent_refusal_is_said_with_its_code(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exit code 9"):
        submitted(says(tmp_path, "exit 9"))


def test_without_an_answer_nobody_knows_whether_there_is_a_job(tmp_path: Path) -> None:
    """The words of sbatch 26.05 while slurmctld was stopped; it took the job when it went on."""
    error = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    with pytest.raises(SlurmShareError, match=f"^{error}\n.*squeue --me") as found:
        submitted(says(tmp_path, f"echo '{error}' >&2; exit 1"))
    assert not isinstance(found.value, UsageError)  # which would say that there is none


def test_an_environment_that_no_program_takes_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="larger than a program may have"):
        submitted(says(tmp_path, "echo 1"), environ={"X": "x" * 200_000})


def test_without_sbatch_the_way_out_is_local(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--local"):
        submitted([str(tmp_path / "sbatch")])


def test_an_answer_without_a_number_is_no_job(tmp_path: Path) -> None:
    with pytest.raises(SlurmShareError, match="no job id"):
        submitted(says(tmp_path, "echo hello"))


def test_a_job_does_not_inherit_the_share_of_the_job_that_submits_it() -> None:
    environment = {"SLURM_SHARE_SLOT": "3", "SPANK_X": "1", "_SLURM_SPANK_OPTION_share_gpu": "4", "SLURM_CONF": "/x"}
    assert submit.submission_environment(environment) == {"SLURM_CONF": "/x"}


def test_what_sbatch_reads_from_the_environment_does_not_contradict_the_launchers() -> None:
    environment = {"SBATCH_ARRAY_INX": "1-4", "SBATCH_GRES": "gpu:1", "SBATCH_WAIT": "1", "SBATCH_PARTITION": "p"}
    assert submit.submission_environment(environment, launchers=True) == {"SBATCH_PARTITION": "p"}
    assert set(submit.submission_environment(environment)) == set(environment) - {"SBATCH_WAIT"}


def test_a_triples_job_is_submitted_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_ARRAY_INX", "5")
    program = says(tmp_path, "echo ${SBATCH_ARRAY_INX:-7}")
    assert submitted(program) == 7
    assert submitted(program, launchers=False) == 5


def test_what_slurm_share_set_for_a_task_is_not_passed_on_and_what_the_user_set_is() -> None:
    given = {"OMP_NUM_THREADS": "1", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.486", "SLURM_GRES": "gpu:2"}
    task = {**given, "SLURM_SHARE_JOB_ID": "7", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "HOME": "/h"}
    task |= {names.ENV_GIVEN: given_variables.render(7, given), "XLA_PYTHON_CLIENT_MEM_FRACTION": ".9"}
    users = {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".9", "HOME": "/h", "SLURM_JOB_ID": "7"}
    assert submit.submission_environment(task) == users
    step = submit.submission_environment(task, is_step=True)
    assert (step["SLURM_GRES"], step["OMP_NUM_THREADS"]) == ("gpu:2", "1")

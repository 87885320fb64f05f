"""When a Prolog asks the controller for a job's GPUs, and what it does with the answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_share.core.errors import CommandError
from slurm_share.core.process import Deadline
from slurm_share.core.records import ShareRequest
from slurm_share.node.records import Gpu
from slurm_share.share import admission
from slurm_share.share.records import Refusal
from slurm_share.slurm import job_gpus
from slurm_share.slurm.records import JobContext

GPUS = tuple(Gpu(f"GPU-{index}aaa-{index}", index, index, "V100", 32768) for index in range(4))
JOB = JobContext(7, 2001, 2001, "n1", ("2", "3"), ShareRequest(2), exclusive="user")
TYPED = "NodeName=n1 Gres=gpu:a100:2,gpu:v100:2\n"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the jobs that the controller is asked for. It knows one; for another it gives no answer."""
    jobs: list[int] = []

    def ask(job_id: int, node: str, conf: str, deadline: Deadline) -> tuple[int, ...]:
        jobs.append(job_id)
        if job_id != JOB.job_id:
            raise CommandError(("scontrol",), None, "no answer within 5 s")
        return (0, 2, 3)

    monkeypatch.setattr(job_gpus, "ask", ask)
    return jobs


def decide(folder: Path, text: str | None, job: JobContext = JOB) -> JobContext | Refusal:
    file = folder / "slurm.conf"
    if text is not None:
        file.write_text(text)
    environ = {"SLURM_CONF": str(file), "SLURM_JOB_GPUS": ",".join(job.granted)}
    return admission.with_all_gpus(job, environ, GPUS, Deadline.after(300))


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("NodeName=n1 Gres=gpu:a100:4\n", JOB),
        (TYPED, replace(JOB, granted=("0", "1", "2", "3"))),
        (TYPED, replace(JOB, granted=())),
    ],
    ids=["one type", "all GPUs", "no GPU"],
)
def test_nothing_is_asked_where_slurmd_has_named_all(
    tmp_path: Path, asked: list[int], text: str, job: JobContext
) -> None:
    assert decide(tmp_path, text, job) is job
    assert admission.with_all_gpus(job, {}, GPUS, Deadline.after(300)) is job
    assert asked == []


def test_a_whole_nodes_job_has_all_gpus_without_a_question(tmp_path: Path, asked: list[int]) -> None:
    found = decide(tmp_path, TYPED, replace(JOB, exclusive="node"))
    assert isinstance(found, JobContext)
    assert found.granted == tuple(gpu.uuid for gpu in GPUS)
    assert asked == []


def test_a_job_on_several_types_has_what_the_controller_says(tmp_path: Path, asked: list[int]) -> None:
    found = decide(tmp_path, TYPED)
    assert isinstance(found, JobContext)
    assert (found.granted, asked) == (("0", "2", "3"), [7])


def test_without_a_clear_answer_the_job_is_refused_if_there_are_several_types(tmp_path: Path, asked: list[int]) -> None:
    silent = decide(tmp_path, TYPED, replace(JOB, job_id=8))
    assert isinstance(silent, Refusal)
    assert "the controller did not name the others (scontrol did not run: no answer within 5 s)" in silent.sentence
    unlike = decide(tmp_path, TYPED, replace(JOB, granted=("1",)))
    assert isinstance(unlike, Refusal)
    assert "the controller names GPU 0, 2, 3, which does not fit" in unlike.sentence


def test_without_slurm_conf_and_answer_slurmds_word_holds(tmp_path: Path, asked: list[int]) -> None:
    job = replace(JOB, job_id=8)
    assert decide(tmp_path, None, job) is job
    assert asked == [8]

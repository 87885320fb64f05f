"""Runs that wait for other runs: what is said without a queue, and the dependency of their jobs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_share.core.errors import UsageError
from slurm_share.slurm.records import QueuedJob
from slurm_share.triples import added_tasks, chains, run_folder, submitting
from slurm_share.triples.records import AwaitedRun, Ended, Run, Triple
from slurm_share.triples.rules import submission

RUN = Run(id="a1", name="a", command=("/a",), cwd="/", triple=Triple(1, 2), processes=2, tasks=2)


def make(folder: Path, run: Run = RUN, *outcomes: str) -> Path:
    node = folder / "p0-p1_n1"
    node.mkdir(parents=True)
    (folder / "run.json").write_bytes(run_folder.render_run(run))
    ended = [
        Ended(task=task, rank=task, attempt=1, outcome=one, node="n1", job="7", started=1.0, seconds=1.0)
        for task, one in enumerate(outcomes)
    ]
    (node / "results.jsonl").write_bytes(b"".join(map(run_folder.render_ended, ended)))
    return folder


def after(*folders: Path, run_id: str = "a1") -> Run:
    return replace(RUN, id="b2", after=tuple(AwaitedRun(str(folder), run_id) for folder in folders))


def test_a_run_that_is_done_is_waited_for_no_longer(tmp_path: Path) -> None:
    done = make(tmp_path / "LLSUB.1", RUN, "done", "done")
    assert chains.jobs_before(after(done)) == []
    assert chains.look(tmp_path, after(done)).may_start


@pytest.mark.parametrize(
    ("outcomes", "why"),
    [
        (("done", "failed"), "is not done (1 of 2 tasks; failed: 1) and has no job in the queue"),
        (("done",), "is not done (1 of 2 tasks) and has no job in the queue"),
    ],
)
def test_a_run_that_is_not_done_and_has_no_job_is_a_sentence(
    tmp_path: Path, outcomes: tuple[str, ...], why: str
) -> None:
    folder = make(tmp_path / "LLSUB.1", RUN, *outcomes)
    with pytest.raises(UsageError, match="--resume") as caught:
        chains.jobs_before(after(folder))
    assert why in str(caught.value)
    found = chains.look(tmp_path / "LLSUB.2", after(folder))
    assert not found.may_start
    assert why in found.sentence
    assert found.sentence.endswith(f"llsub --resume {tmp_path}/LLSUB.2 looks again")
    with pytest.raises(UsageError, match="--local starts now"):
        chains.check_here(after(folder))


def test_another_run_at_its_place_or_none_is_a_sentence(tmp_path: Path) -> None:
    folder = make(tmp_path / "LLSUB.1", RUN, "done", "done")
    with pytest.raises(UsageError, match="is another run than at submission"):
        chains.jobs_before(after(folder, run_id="other"))
    with pytest.raises(UsageError, match="cannot be read"):
        chains.jobs_before(after(tmp_path / "gone"))


def test_only_own_runs_of_llsub_can_be_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(tmp_path / "MAPRED.1", replace(RUN, kind="llmapreduce"))
    with pytest.raises(UsageError, match="run of llmapreduce"):
        chains.find([str(folder)], Path)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(UsageError, match="belongs to"):
        chains.find([str(folder)], Path)


def test_a_dependency_is_added_to_that_of_the_user() -> None:
    argv = ["sbatch", "--parsable", "-d", "singleton", "launch.sh"]
    assert submission.with_dependency(argv, []) == argv
    assert submission.with_dependency(argv, [4, 5])[-2:] == ["--dependency=singleton,afterany:4:5", "launch.sh"]
    with pytest.raises(UsageError, match="waits for one of several jobs"):
        submission.with_dependency(["sbatch", "--dependency=afterok:1?afterok:2", "launch.sh"], [4])


@pytest.mark.parametrize(
    ("states", "restarts", "takes"),
    [
        (("RUNNING",), 0, False),
        (("RUNNING",), 1, True),
        (("PENDING",), 0, True),
        (("PENDING", "COMPLETING"), 0, True),
        (("RUNNING", "COMPLETING"), 1, False),
        (("COMPLETED", "COMPLETING"), 0, False),
    ],
)
def test_a_job_that_is_sealed_or_ends_takes_no_further_tasks(
    tmp_path: Path, states: tuple[str, ...], restarts: int, takes: bool
) -> None:
    assert added_tasks.seal(tmp_path, "7", 0, 2)
    job = QueuedJob(job_id=7, name="", user="", uid=0, partition="", states=states, restarts=restarts)
    assert submitting.takes_added(tmp_path, job) == takes

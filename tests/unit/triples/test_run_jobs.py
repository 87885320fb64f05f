"""Which jobs of the queue are of a run, after folders were renamed and copied."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_share.slurm.records import QueuedJob
from slurm_share.testing import make_run_folder
from slurm_share.triples import run_folder
from slurm_share.triples.records import Run
from slurm_share.triples.run_jobs import find_original, is_of_run


def make(folder: Path, run_id: str, jobs: list[int], recorded: str = "") -> Run:
    make_run_folder(folder, jobs)
    run = replace(run_folder.read_run(folder), id=run_id, folder=recorded or str(folder))
    (folder / run_folder.RUN).write_bytes(run_folder.render_run(run))
    return run


def job(number: int, script: Path | str) -> QueuedJob:
    return QueuedJob(job_id=number, script=str(script), uid=1, user="a", name="n", partition="p", states=("PENDING",))


def test_a_renamed_run_has_its_jobs_and_not_those_of_the_run_that_has_its_name(tmp_path: Path) -> None:
    old, new = tmp_path / "LLSUB.1", tmp_path / "expA"
    run = make(new, "aa", [7], str(old))
    assert is_of_run(job(7, old / "launch.sh"), new, run, [7])
    assert is_of_run(job(8, old / "launch.sh"), new, run, [7], copies=True)
    make(old, "bb", [9])
    assert is_of_run(job(7, old / "launch.sh"), new, run, [7])
    assert not is_of_run(job(9, old / "launch.sh"), new, run, [7], copies=True)
    assert not is_of_run(job(8, old / "launch.sh"), new, run, [7])
    assert is_of_run(job(8, old / "launch.sh"), new, run, [7], copies=True)


def test_the_jobs_of_the_original_are_not_ended_with_its_copy(tmp_path: Path) -> None:
    old, copy = tmp_path / "LLSUB.1", tmp_path / "LLSUB.1.bak"
    make(old, "aa", [7])
    run = make(copy, "aa", [7], str(old))
    assert not is_of_run(job(7, old / "launch.sh"), copy, run, [7])
    assert is_of_run(job(7, old / "launch.sh"), copy, run, [7], copies=True)
    assert is_of_run(job(7, old / "launch.sh"), old, run, [7])
    assert find_original(job(7, old / "launch.sh"), copy, run) == old
    assert find_original(job(7, old / "launch.sh"), old, run) is None
    assert find_original(job(7, tmp_path / "gone/launch.sh"), copy, run) is None
    (old / run_folder.RUN).write_bytes(run_folder.render_run(replace(run, id="bb")))
    assert find_original(job(7, old / "launch.sh"), copy, run) is None


@pytest.mark.parametrize(("script", "known"), [("/home/a/job.sh", False), ("", True), ("/gone/map.sh", True)])
def test_an_id_that_slurm_gave_to_another_job_is_not_of_the_run(tmp_path: Path, script: str, known: bool) -> None:
    run = make(tmp_path / "LLSUB.1", "aa", [7])
    assert is_of_run(job(7, script), tmp_path / "LLSUB.1", run, [7]) is known

"""llkill: what a person names, what is ended, and what is said of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_share.cli import llkill
from slurm_share.core.process import Finished
from slurm_share.node import processes
from slurm_share.share.rules import queue
from slurm_share.share.rules.queue import JobTarget
from slurm_share.slurm import jobs as slurm_jobs
from slurm_share.slurm import signals
from slurm_share.slurm.records import QueuedJob
from slurm_share.testing import make_run_folder
from slurm_share.triples import run_folder

DATA = Path(__file__).parents[2] / "data"
ALICE, BOB = 2001, 2002


@pytest.fixture(params=["26.05", "24.11"])
def slurm_says(request, monkeypatch):
    """Answer with the recorded queue, and with a scancel that lets alice end her own; return the IDs of every
    scancel."""
    _, jobs = slurm_jobs.parse_queue(
        (DATA / f"slurm-{request.param}/squeue.json").read_text().replace("hold.sh", "launch.sh")
    )
    calls = []

    def read_queue(*, users=(), jobs_=(), **words):
        numbers = words.get("jobs", jobs_)
        return None, tuple(
            job
            for job in jobs
            if (not users or str(job.uid) in users) and (not numbers or {job.job_id, job.array} & set(numbers))
        )

    def finish(argv, **_):
        assert argv[:2] == ["scancel", "--"]
        calls.append(argv[2:])
        if "31" in argv:
            return Finished(1, "", "scancel: error: Kill job error on job id 31: Access/permission denied\n")
        return Finished(0, "", "")

    monkeypatch.setattr(slurm_jobs, "read_queue", read_queue)
    monkeypatch.setattr(signals, "finish", finish)
    monkeypatch.setattr(os, "geteuid", lambda: ALICE)
    monkeypatch.setattr(run_folder, "read_foreign_owner", lambda _folder, _uid: None)  # files here are the tester's
    return calls


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (["22"], ["22"]),
        (["22,26", "19"], ["22", "26", "19"]),
        (["21_1"], ["21_1"]),
        (["21_4"], ["21_4"]),
        (["21_[2-4,6]"], ["21_2", "21_[3-4,6]"]),
        (["21_[1-6:2]"], ["21_1", "21_[3,5]"]),
        (["21"], ["21_1", "21_2", "21_[3-6]"]),
        (["24"], ["21_2"]),  # the number that Slurm's record of this element has
        (["22", "22"], ["22"]),
    ],
)
def test_jobs_elements_and_ranges(slurm_says, capsys, words, ids):
    assert llkill.main(words) == 0
    (ended,) = slurm_says
    assert sorted(ended) == sorted(ids)
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split()[1] for line in lines) == sorted(ids)


def test_what_was_ended_is_named_with_name_user_and_place(slurm_says, capsys):
    llkill.main(["22", "26", "30"])
    assert capsys.readouterr().out.splitlines() == [
        "ended 22 (train.sh, alice, on n1)",
        "ended 26 (later, alice, waiting)",
        r"ended 30 (e\x1b[31mvil[red]\n\tx, alice, waiting)",
    ]


def test_all_of_mine(slurm_says, capsys):
    assert llkill.main(["--all"]) == 0
    (ended,) = slurm_says
    assert "31" not in ended
    assert len(ended) == 12
    assert len(capsys.readouterr().out.splitlines()) == 12


def test_another_users_job_is_refused_by_slurm_and_the_others_ended(slurm_says, capsys):
    assert llkill.main(["22,31", "26"]) == 1
    out, err = capsys.readouterr()
    assert [line.split()[1] for line in out.splitlines()] == ["22", "26"]
    assert err.startswith("llkill: job 31 (bobs) of bob was not ended; Slurm says: scancel: error:")
    assert "permission denied" in err


def test_an_unknown_job_is_said_and_the_others_ended(slurm_says, capsys):
    assert llkill.main(["4711", "22", "21_99"]) == 1
    out, err = capsys.readouterr()
    assert [line.split()[1] for line in out.splitlines()] == ["22"]
    assert "job 4711 is not in Slurm's queue" in err
    assert "job 21_99 is not in Slurm's queue" in err


@pytest.mark.parametrize(
    "words",
    [
        [], ["--all", "22"], ["--all", "-u", "root"], ["-u", "nobody-of-that-name"], ["-u", ""], ["abc"], ["22", "abc"],
        ["22,"], [""], ["0"], ["-22"], ["21_"], ["21_[]"], ["21_[1-]"], ["21_[4-1]"], ["21_[1-4"], ["99999999999"],
        ["LLSUB.77"], ["/nowhere"], ["٣"],
    ],
)  # fmt: skip
def test_bad_words_get_a_sentence_and_2_and_nothing_is_ended(slurm_says, capsys, words):
    try:
        code = llkill.main(words)
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert slurm_says == []
    assert capsys.readouterr().err


def test_a_very_long_name_is_cut_off_with_a_sign(monkeypatch, capsys):
    job = QueuedJob(job_id=7, name="n" * 1000, user="alice", uid=ALICE, partition="p", states=("RUNNING",), nodes="n1")
    monkeypatch.setattr(slurm_jobs, "read_queue", lambda **_: (None, (job, replace(job, job_id=8))))
    monkeypatch.setattr(signals, "cancel", lambda _: {"8": "no"})
    monkeypatch.setattr(os, "geteuid", lambda: ALICE)
    assert llkill.main(["--all"]) == 1
    out, err = capsys.readouterr()
    short = "n" * 39 + "…"
    assert out == f"ended 7 ({short}, alice, on n1)\n"
    assert f"job 8 ({short}) was not ended" in err


def test_a_runs_folder_ends_its_jobs(slurm_says, tmp_path, capsys, monkeypatch):
    make_run_folder(tmp_path / "LLSUB.3", [4, 22])
    monkeypatch.chdir(tmp_path)
    assert llkill.main(["LLSUB.3"]) == 0
    assert slurm_says == [["22"]]
    make_run_folder(tmp_path / "3", [26])
    assert llkill.main(["3"]) == 0
    assert slurm_says[1:] == [["26"]]


def test_the_folder_of_somebody_elses_run_ends_nothing(slurm_says, tmp_path, capsys, monkeypatch):
    make_run_folder(tmp_path / "LLSUB.9", [22])
    monkeypatch.chdir(tmp_path)
    asked = []
    monkeypatch.setattr(run_folder, "read_foreign_owner", lambda folder, uid: asked.append(uid) or BOB)
    assert llkill.main(["LLSUB.9"]) == 2
    assert f"LLSUB.9, or a file in it, belongs to {processes.read_user_name(BOB)}" in capsys.readouterr().err
    assert (asked, slurm_says) == ([ALICE], [])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert llkill.main(["LLSUB.9"]) == 0
    assert slurm_says == [["22"]]


def test_a_run_that_has_ended_says_so(slurm_says, tmp_path, capsys):
    """Exit code 1; and 1 for one that was never submitted, 2 for a folder of something else."""
    assert llkill.main([str(make_run_folder(tmp_path / "LLSUB.3", [4]))]) == 1
    assert "they have ended" in capsys.readouterr().err
    assert llkill.main([str(make_run_folder(tmp_path / "LLSUB.4", []))]) == 1
    assert "no job was submitted from" in capsys.readouterr().err
    assert llkill.main([str(tmp_path)]) == 2
    assert "not the folder of a run" in capsys.readouterr().err
    assert slurm_says == []


def test_nobody_has_a_job(slurm_says, capsys, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert llkill.main(["--all"]) == 0
    assert capsys.readouterr().out == "there is nothing to end: no job of root waits or runs\n"


def test_a_component_of_a_heterogeneous_job_means_all_of_it():
    job = QueuedJob(job_id=8, het=(7, 1), name="h", user="a", uid=1, partition="p", states=("PENDING",))
    assert [one.id for one in queue.choose(JobTarget("7", 7), [job, replace(job, job_id=7, het=(7, 0))])] == ["7", "7"]
    assert job.id == "7+1"


def test_what_the_user_set_for_scancel_changes_nothing(monkeypatch):
    monkeypatch.setenv("SCANCEL_INTERACTIVE", "1")
    seen = {}

    def finish(argv, *, env, **_):
        seen.update(env)
        return Finished(0, "", "")

    monkeypatch.setattr(signals, "finish", finish)
    assert signals.cancel(["1"]) == {}
    assert "SCANCEL_INTERACTIVE" not in seen
    assert "PATH" in seen


def test_many_jobs_are_ended_in_few_calls(monkeypatch):
    calls = []

    def finish(argv, **_):
        calls.append(argv[2:])
        return Finished(1 if "7" in argv else 0, "", "no" if "7" in argv else "")

    monkeypatch.setattr(signals, "finish", finish)
    assert signals.cancel([str(number) for number in range(1200)]) == {"7": "no"}
    assert [len(call) for call in calls if len(call) > 1] == [500, 500, 200]

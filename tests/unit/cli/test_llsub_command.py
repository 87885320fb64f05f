"""llsub at the desk: a Slurm that answers with recordings, and one that is not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from llsub_desk import DATA, assert_refused, call, make_desk, run_of, submitted
from msgspec.structs import replace

from slurm_share.cli import progress_line
from slurm_share.core.errors import CommandError
from slurm_share.packing import EventLog, Progress
from slurm_share.slurm import jobs
from slurm_share.triples import follow, run_folder
from slurm_share.triples.records import Ended, Run, Triple
from slurm_share.triples.rules import submission
from slurm_share.triples.rules.progress import TaskCounts, as_text


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a script in it, and a recorded cluster around."""
    return make_desk(tmp_path, monkeypatch)


@pytest.mark.parametrize("words", [("./task.sh", "[1,2]"), ("./task.sh",)])
def test_what_sbatch_only_mentions_reaches_the_user(
    here: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    (here / "bin/sbatch").write_text("#!/bin/sh\necho 'sbatch: warning' >&2\necho 5\n")
    assert call(*words) == 0
    assert "sbatch: warning\n" in capsys.readouterr().err


def test_a_triple_is_submitted_once_with_its_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("./task.sh", "[1,8,1]", "-q", "gpu", "--", "-v", "a b") == 0
    run, out = run_of(here), capsys.readouterr().out
    assert (run.command, run.cwd, run.processes) == ((f"{here}/task.sh", "-v", "a b"), str(here), 8)
    assert (run.tasks, run.task_kind, run.distribution, run.name) == (8, "rank", "block", "task.sh")
    assert run.share is not None
    assert run.share.per_gpu == 4
    assert run_folder.read_jobs(here / "LLSUB.1") == [4711]
    assert len(submitted(here)) == 1
    assert "--share-gpu=4" in submitted(here)[0]
    assert "--partition=gpu" in submitted(here)[0]
    script = (here / "LLSUB.1" / "launch.sh").read_text()
    assert "#SBATCH --qos=q\n" in script
    assert "--nodes=7" not in script
    assert out.startswith("sbatch --parsable --nodes=1 ")
    assert "job 4711: 8 processes, 8 tasks" in out


def test_a_refused_job_leaves_no_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "refuse").touch()
    assert call("./task.sh", "[1,8,1]") == 2
    assert "sbatch: error: no" in capsys.readouterr().err
    assert not (here / "LLSUB.1").exists()


def test_a_job_that_may_be_there_keeps_its_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "bin/sbatch").write_text("#!/bin/sh\necho Socket timed out on send/recv operation >&2; exit 1\n")
    assert call("./task.sh", "[1,2]") == 1
    said = capsys.readouterr().err
    assert "may have taken the job all the same" in said
    assert "If there is no such job, submit it with llsub --resume LLSUB.1" in said
    assert (here / "LLSUB.1" / "run.json").exists()


def test_a_dry_run_makes_and_submits_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(here.iterdir())
    assert call("./task.sh", "[1,8,2]", "--dry-run") == 0
    out = capsys.readouterr().out
    assert sorted(here.iterdir()) == before
    assert "srun --nodes=" not in out
    assert "lines, not shown (--dry-run=script shows them)\n" in out
    assert len(out.splitlines()) < 14
    assert "     7  GPU 1, cores 14-15, 2 threads" in out or "     7  GPU 3, cores 14-15, 2 threads" in out
    for words in (("--dry-run=script", "./task.sh", "[1,8,2]"), ("./plain.sh", "[1,2]", "--local", "--dry-run=script")):
        assert call(*words) == 0
        assert "#!/bin/" in capsys.readouterr().out
    assert call("--dry-run", "./plain.sh", "[1,2]", "--local") == 0
    assert "lines, not shown (--dry-run=script shows them)\n" in capsys.readouterr().out
    assert sorted(here.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "kind", "tasks", "distribution"),
    [
        (("./task.sh", "[1,4]", "--tasks", "list"), "input", 3, "dynamic"),
        (("[1,4]", "--tasks", "list", "--distribution=cyclic"), "command", 3, "cyclic"),
        (("./task.sh", "[1,4]", "--ntasks=100"), "rank", 100, "dynamic"),
        (("./task.sh", "[1,4]", "--ntasks=100", "--distribution=block"), "rank", 100, "block"),
    ],
)
def test_further_work_is_a_line_a_task_or_a_number(
    here: Path, words: tuple[str, ...], kind: str, tasks: int, distribution: str
) -> None:
    (here / "list").write_text("a\nb c\nd\n")
    assert call(*words) == 0
    run = run_of(here)
    assert (run.task_kind, run.tasks, run.distribution, run.processes) == (kind, tasks, distribution, 4)
    if kind != "rank":
        assert run_folder.read_tasks(here / "LLSUB.1") == ["a", "b c", "d"]


@pytest.mark.parametrize(("more", "logs"), [(0, "task"), (1, "rank")])
def test_a_large_run_has_a_log_for_each_process(here: Path, more: int, logs: str) -> None:
    assert call("./task.sh", "[1,4]", "--ntasks", str(submission.LOGS_PER_TASK_MAX + more)) == 0
    assert run_of(here).logs == logs


REFUSED: list[tuple[str, ...]] = [
    ("./task.sh", "[0,8]"),
    ("./gone.sh", "[1,8]"),
    ("./list", "[1,8]"),
    ("./task.sh", "[9,8]"),
    ("./task.sh", "[9000,4000]"),
    ("./task.sh", "[1,8]", "--options=--array=1-4"),
    ("./task.sh", "[1,8]", "--options", "--array=1-4"),
    ("./task.sh", "[1,8]", "--ntasks=10000001"),
    ("./task.sh", "[1,8]", "--ntasks=" + "9" * 5000),
    ("", "[1,8]"),
    ("./dos.sh", "[1,8]"),
    ("./task.sh", "[1,8]", "--tasks=/dev/zero"),
    ("./task.sh", "[1,8]", "--", "\udcff"),
    ("./task.sh", "[1,8]", "-J", "caf\udce9"),
    ("./\udcff.sh", "[1,8]"),
    ("./task.sh", "[1,8]", "-g", "5"),
    ("./task.sh", "[1,8]", "-g", "volta:1"),
    ("./task.sh", "[1,8]", "-q", "gpuu"),
    ("./task.sh", "[1,8]", "--share-gpu=1", "-g2"),
    ("./task.sh", "[1,8]", "--share-gpu=x"),
    ("./task.sh", "[1,8]", "--share-gpu=mem=20G:8G"),
    ("./task.sh", "[1,8]", "-g2", "--share-gpu=sharing=exclusive"),
    ("./task.sh", "[1,8]", "-g2", "--share-gpu=sharing=time-slicing,sm=static"),
    ("./task.sh", "[1,8]", "-g2", "--share-gpu=sharing=mig"),
    ("./task.sh", "[1,8]", "-g2", "--sharing=exclusive"),
    ("./task.sh", "[1,8]", "-g2", "--sharing=mps", "--share-gpu=mps=off"),
    ("./task.sh", "[1,8]", "-g2", "--sharing=mps", "--share-gpu=off"),
    ("./task.sh", "--sharing=mps"),
    ("./task.sh", "[1,8]", "-g2", "--pack", "--sharing=exclusive"),
    ("./task.sh", "[1,8]", "extra"),
    ("[1,8]", "./task.sh"),
    ("./task.sh", "[1,", "8]"),
    ("./task.sh", "[1,8]", "--ntasks=5", "--tasks=list"),
    ("./task.sh", "[1,8]", "--tasks=."),
    ("./task.sh", "[1,8]", "--dryrun"),
    ("./task.sh", "[1,8]", "--tasks=gone"),
    ("./task.sh", "[1,8]", "--tasks=holes"),
    ("./task.sh", "[1,8]", "--ntasks=0"),
    ("./task.sh", "[1,8]", "--ntasks=-2"),
    ("./task.sh", "[1,8]", "-g", "0"),
    ("./task.sh", "[1,8]", "--max-failures=0"),
    ("./task.sh", "--max-failures=1"),
    ("./task.sh", "[1,8]", "--retries=-1"),
    ("./task.sh", "[1,8]", "--retries=x"),
    ("./task.sh", "[1,8]", "--options='x"),
    ("./task.sh", "[2,8]", "--local"),
    ("./task.sh", "--local"),
    ("./task.sh", "--ntasks=4"),
    ("[1,8]",),
    (),
    ("--resume", "LLSUB.9"),
    ("--watch",),
    ("./task.sh", "-i"),
    ("-i", "--", "x"),
    ("./task.sh", "[1,2]", "--tasks", ""),
    ("--watch", "--resume", "LLSUB.1"),
    ("./task.sh", "[1,2]", "--options=--share-gpu=foo"),
    ("./task.sh", "[1,2]", "--share-gpu=foo"),
]


def test_a_mistake_is_a_sentence_and_2_and_nothing_is_made(
    here: Path, capsys: pytest.CaptureFixture[str], golden: Any
) -> None:
    (here / "list").write_text("a\n")
    (here / "holes").write_text("a\n\nb\n")
    (here / "dos.sh").write_text("#!/bin/sh\r\n")
    (here / "dos.sh").chmod(0o755)
    said = []
    for words in REFUSED:
        assert_refused(here, "llsub: ", *words, capsys=capsys, said=said)
    asked = [" ".join(words)[:100].encode(errors="backslashreplace").decode() for words in REFUSED]
    golden("mistakes.txt", "".join(f"llsub {words}\n  {one}" for words, one in zip(asked, said, strict=True)))


def test_an_unwritable_folder_is_a_sentence(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    def refuse(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert call("./task.sh", "[1,8]") == 2
    assert f"cannot make a folder for the run in {here} (Permission denied)" in capsys.readouterr().err


def test_where_sinfo_does_not_answer_sbatch_decides(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(argv: Sequence[str], **_: object) -> str:
        raise CommandError(tuple(argv), None, "no answer within 20 s")

    monkeypatch.setattr(jobs, "run", silent)
    assert call("./task.sh", "[500,8]") == 0
    assert "nodes cannot be read" in capsys.readouterr().err
    monkeypatch.setattr(jobs, "read_has_share_option", lambda: True)
    assert call("./task.sh", "[1,8]") == 0
    assert "the job does not request --share-gpu and the launchers assign the GPUs" in capsys.readouterr().err
    assert "--share-gpu" not in submitted(here)[1]
    assert call("./task.sh", "[1,8]", "-g", "2") == 0
    assert "--share-gpu=4" in submitted(here)[2]
    assert "--nodes=500" in submitted(here)[0]


def test_without_a_triple_it_is_llscs_ordinary_job(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("./plain.sh", "-s", "4", "-T", "5", "--", "x") == 0
    assert submitted(here) == [f"--parsable --output=plain.sh.log-%j --time=5 --cpus-per-task=4 {here}/plain.sh x"]
    assert call("./task.sh", "-s", "4") == 0
    assert submitted(here)[1] == f"--parsable {here}/task.sh"
    assert "-s ignored" in capsys.readouterr().err


def ended(task: int, outcome: str = "done") -> Ended:
    return Ended(task=task, rank=0, attempt=1, outcome=outcome, node="n1", job="4711", started=1.0, seconds=1.0)  # type: ignore[arg-type]


def record(folder: Path, *attempts: Ended) -> None:
    node = folder / "p0-p7_n1"
    node.mkdir(exist_ok=True)
    (node / "results.jsonl").write_bytes(b"".join(run_folder.render_ended(one) for one in attempts))


def test_resuming_submits_the_same_command_for_what_is_left(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("./task.sh", "[1,8]") == 0
    record(here / "LLSUB.1", ended(0), ended(1), ended(2, "failed"))
    assert call("--resume", "LLSUB.1") == 0
    assert "6 of 8 tasks of LLSUB.1 are left" in capsys.readouterr().out
    assert submitted(here)[0] == submitted(here)[1]
    assert call("--resume", "LLSUB.1/", "-T", "9", "-q", "plain") == 0
    assert "--partition=plain --time=9" in submitted(here)[2]
    assert run_folder.read_jobs(here / "LLSUB.1") == [4711, 4711, 4711]


def test_a_resumption_takes_other_retries_and_further_options(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("./task.sh", "[1,8]", "-p", "gpu") == 0
    assert call("--resume", "LLSUB.1", "--retries", "2", "--dry-run") == 0
    assert (run_of(here).retries, len(submitted(here))) == (0, 1)
    assert call("--resume", "LLSUB.1", "--retries", "2", "--options=-x n1") == 0
    assert run_of(here).retries == 2
    assert submitted(here)[1].endswith(f" -x n1 {here}/LLSUB.1/launch.sh")
    assert call("--resume", "LLSUB.1") == 0
    assert run_of(here).retries == 2
    (here / "refuse").touch()
    assert call("--resume", "LLSUB.1", "--retries", "9") == 2
    assert run_of(here).retries == 2
    assert call("--resume", "LLSUB.1", "--options=--array=1-3") == 2
    assert "--array conflicts with a triple" in capsys.readouterr().err


def test_a_local_run_is_resumed_with_other_retries_and_no_option_of_slurm(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *words: became.append(words))
    call("./task.sh", "[1,4]", "--local")
    call("--resume", "LLSUB.1", "-T", "5")
    assert "-q, -T and --options ignored: LLSUB.1 runs on this machine, without Slurm" in capsys.readouterr().err
    call("--resume", "LLSUB.1", "--retries=3")
    assert (run_of(here).retries, len(became)) == (3, 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("-i", "--wait", "--tasks=list", "-o", "x", "--dry-run"),
            "--output, --tasks, --wait ignored: no effect with -i",
        ),
        (
            ("--resume", "LLSUB.1", "-J", "x", "--share-gpu=4"),
            "--job-name, --share-gpu ignored: no effect with --resume",
        ),
        (("--resume", "LLSUB.1", "--oom-retries=1"), "--oom-retries ignored: LLSUB.1 is not packed"),
        (("plain.sh", "[1,2]", "-s", "3"), "-s ignored: the third number of the triple sets the threads"),
        (("./plain.sh", "[1,2]", "--dry-run", "--wait"), "--wait ignored: --dry-run submits nothing"),
        (("./plain.sh", "--dry-run", "--parsable"), "--parsable ignored: --dry-run submits nothing"),
        (("--resume", "LLSUB.1", "--dry-run", "--parsable"), "--parsable ignored: --dry-run submits nothing"),
        (
            ("./plain.sh", "[1,2]", "--distribution=cyclic"),
            "--distribution ignored: each process has one task; --tasks",
        ),
        (("./plain.sh", "[1,2]", "--lines"), "--lines ignored: it is for llsub --failed LLSUB.n"),
        (("./plain.sh", "--script=current"), "--script ignored: without a triple, sbatch keeps the script as it is"),
        (("--failed", "LLSUB.1", "--log", "LLSUB.1", "0"), "--log ignored: no effect with --failed"),
        (("--failed", "LLSUB.1", "--parsable", "--lines"), "--parsable ignored: no effect with --failed"),
    ],
)
def test_options_without_effect_are_named_and_the_rest_is_done(
    here: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert call("./plain.sh", "[1,2]") == 0
    assert call(*words) == 0
    assert f"llsub: {said}" in capsys.readouterr().err


def test_a_submitted_run_is_resumed_on_this_machine(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *words: became.append(words))
    for triple in ("[1,2]", "[2,2]"):
        assert call("./plain.sh", triple, "-q", "gpu") == 0
    call("--resume", "LLSUB.1", "--local", "--wait")
    assert "--wait ignored: --local runs here and now, without Slurm" in capsys.readouterr().err
    assert (len(became), len(submitted(here))) == (1, 2)
    assert call("--resume", "LLSUB.2", "--local") == 2
    assert "LLSUB.2 is a run on 2 nodes, and --local is one machine" in capsys.readouterr().err


def test_only_the_job_id_is_printed_with_parsable(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("./plain.sh", "[1,2]"), ("./plain.sh",), ("--resume", "LLSUB.1")):
        assert call(*words, "--parsable") == 0
        assert capsys.readouterr().out == "4711\n"


def test_a_dry_run_shows_its_command_with_parsable_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("./plain.sh", "[1,2]") == 0
    for words in (("./plain.sh", "[1,2]"), ("./plain.sh",), ("--resume", "LLSUB.1")):
        capsys.readouterr()
        assert call(*words, "--dry-run", "--parsable") == 0
        assert capsys.readouterr().out.startswith("sbatch --parsable ")


def test_a_dry_run_asks_sbatch(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("./plain.sh", "[1,2]"), ("./plain.sh",)):
        assert call(*words, "--dry-run") == 0
        assert "the scheduler would take this job: sbatch: Job 4711 to start" in capsys.readouterr().err
    (here / "refuse").touch()
    assert call("./plain.sh", "[1,2]", "--dry-run") == 2
    assert "the scheduler would not take this job; it says:\nsbatch: error: no" in capsys.readouterr().err
    assert not (here / "LLSUB.1").exists()


def test_raw_options_of_sbatch_count_as_the_users(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("./plain.sh", "[1,8]", "--options=--share-gpu=9 --gres=gpu:1") == 0
    run = run_of(here)
    assert (run.share.per_gpu, run.is_share_computed) == (9, False)  # type: ignore[union-attr]
    assert submitted(here)[0].count("--share-gpu") == submitted(here)[0].count("--gres") == 1
    assert call("./plain.sh", "[1,8]", "--options=-p nowhere") == 2
    assert "there is no partition nowhere" in capsys.readouterr().err


def test_the_folder_of_a_run_in_the_place_of_a_script_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("./plain.sh", "[1,2]") == 0
    assert call("--wait", "LLSUB.1") == 2
    assert "LLSUB.1 is the folder of a run: llsub --watch LLSUB.1 follows it" in capsys.readouterr().err
    for name, why in (
        ("gone", "there is no folder gone"),
        ("plain.sh", "plain.sh is a file"),
        (".", "there is no run.json"),
    ):
        assert call("--watch", name) == 2
        said = capsys.readouterr().err
        assert why in said
        assert "No such file" not in said


def test_somebody_elses_run_is_watched_and_not_resumed(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("./task.sh", "[1,2]") == 0
    monkeypatch.setattr(run_folder, "read_foreign_owner", lambda _folder, _uid: 54321)
    monkeypatch.setattr(os, "geteuid", lambda: 2001)
    assert call("--resume", "LLSUB.1") == 2
    assert "LLSUB.1, or a file in it, belongs to 54321; only its owner can resume" in capsys.readouterr().err
    assert len(submitted(here)) == 1
    assert call("--watch", "LLSUB.1") == 1
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert call("--resume", "LLSUB.1") == 2
    assert "not even root" in capsys.readouterr().err


def test_a_shell_is_only_shown_in_a_dry_run(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[Any] = []
    monkeypatch.setattr(os, "execvpe", lambda *words: became.append(words))
    assert call("-i", "--dry-run", "-p", "gpu") == 0
    assert capsys.readouterr().out.startswith("srun --nodes=1 --ntasks=1 --partition=gpu --pty ")
    assert became == []


PROGRAM = "import sys; from slurm_share.cli.llsub import main; sys.exit(main())"


def as_a_program(*words: str, redirect: str) -> subprocess.CompletedProcess[str]:
    """Run llsub through a shell that redirects its streams."""
    line = f'exec "$@" {redirect}'
    argv = ["/bin/sh", "-c", line, "sh", sys.executable, "-c", PROGRAM, *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("redirect", "why"),
    [
        (">/dev/full", "cannot write to standard output (No space left on device); nothing was submitted"),
        (">&-", "standard output is closed"),
    ],
)
def test_where_the_jobs_number_cannot_be_told_there_is_no_job(here: Path, redirect: str, why: str) -> None:
    done = as_a_program("./plain.sh", "[1,1]", redirect=redirect)
    assert (done.returncode, why in done.stderr) == (2, True), done.stderr
    assert submitted(here) in ([], ["--help"])  # asked for its options, and no more
    assert not (here / "LLSUB.1").exists()


def test_with_a_closed_stderr_the_job_is_noted_and_no_file_is_written_into(here: Path) -> None:
    done = as_a_program("./plain.sh", "[1,1]", redirect="2>&- <&-")
    assert done.returncode == 0
    assert "1 process, 1 task; logs" in done.stdout
    assert run_folder.read_jobs(here / "LLSUB.1") == [4711]
    assert as_a_program("--nonsense", redirect="2>&-").returncode == 2


def test_a_folder_that_is_gone_is_a_sentence(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "gone").mkdir()
    os.chdir(here / "gone")
    (here / "gone").rmdir()
    assert call(f"{here}/plain.sh", "[1,1]") == 2
    assert "the working folder no longer exists" in capsys.readouterr().err


def test_a_run_that_is_done_is_not_resumed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("./task.sh", "[1,2]") == 0
    record(here / "LLSUB.1", ended(0), ended(1))
    assert call("--resume", "LLSUB.1") == 0
    assert "LLSUB.1: all 2 tasks are done; there is nothing to resume" in capsys.readouterr().out
    assert len(submitted(here)) == 1
    assert not (here / "LLSUB.1" / "resuming").exists()


def test_a_run_is_resumed_in_the_environment_of_its_submission(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Functions and bytes that are no text among it; what belongs to a login or a job comes from now; --env=current
    does without it; so does a run that has no record."""
    seen = here / "seen"
    (here / "bin/sbatch").write_text(f"#!/bin/sh\ncat /proc/$$/environ > {seen}\necho 4711\n")
    odd = b"\xff=\xfe\nx"
    function = {"BASH_FUNC_f%%": "() {  echo a\n}", "OLD": odd.decode("utf-8", "surrogateescape")}
    first = {"MINE": "1", "DISPLAY": ":1", "SSH_CLIENT": "1", "TMPDIR": str(here), "SBATCH_EXPORT": "ALL", **function}
    for name, value in first.items():
        monkeypatch.setenv(name, value)
    assert call("./task.sh", "[1,2]") == 0
    record_file = here / "LLSUB.1" / "environment"
    assert record_file.stat().st_mode & 0o777 == 0o600
    assert b"SSH_CLIENT" not in record_file.read_bytes()
    for name in first:
        monkeypatch.delenv(name)
    for name, value in {"MINE": "2", "NEW": "1", "DISPLAY": ":2", "PATH": f"{here}/bin:/usr/bin:/bin"}.items():
        monkeypatch.setenv(name, value)

    def resumed(*words: str) -> dict[bytes, bytes]:
        assert call("--resume", "LLSUB.1", *words) == 0
        pairs = (one.partition(b"=") for one in seen.read_bytes().split(b"\0") if one)
        return {name: value for name, _, value in pairs}

    found = resumed()
    assert (found[b"MINE"], found[b"DISPLAY"], found[b"OLD"]) == (b"1", b":2", odd)
    assert found[b"BASH_FUNC_f%%"].startswith(b"() {")
    assert found[b"SBATCH_EXPORT"] == b"ALL"
    assert {b"NEW", b"SSH_CLIENT", b"TMPDIR"} & set(found) == set()
    assert "its environment is that of its submission (--env=current: that of this shell)" in capsys.readouterr().out
    found = resumed("--env", "current")
    assert (found[b"MINE"], found[b"NEW"]) == (b"2", b"1")
    assert "its environment is this shell's\n" in capsys.readouterr().out
    record_file.unlink()
    assert resumed()[b"MINE"] == b"2"
    assert "its environment is this shell's, because none was recorded" in capsys.readouterr().out
    record_file.symlink_to("/etc/passwd")
    assert call("--resume", "LLSUB.1") == 1
    assert "use --env=current instead" in capsys.readouterr().err
    assert call("./task.sh", "[1,2]", "--env", "current", "--dry-run") == 0
    assert "--env ignored: a new run uses the environment of this shell" in capsys.readouterr().err


def test_a_record_that_is_not_whole_is_not_taken_for_an_environment(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Emptied or cut off by a full disk or an editor, a FIFO, larger than any environment."""
    assert call("./task.sh", "[1,2]") == 0
    file = here / "LLSUB.1" / "environment"
    whole = file.read_bytes()

    def refused() -> None:
        assert call("--resume", "LLSUB.1") == 1
        assert f"{file}: this is not a complete environment; use --env=current" in capsys.readouterr().err

    for broken in (b"", whole[:-1], whole[:3], b"A=1\0" + b"x" * 9_000_000 + b"\0"):
        file.write_bytes(broken)
        refused()
    file.unlink()
    os.mkfifo(file)
    refused()
    assert len(submitted(here)) == 1
    assert call("--resume", "LLSUB.1", "--env=current") == 0


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_record_that_others_may_open_is_not_used(here: Path, capsys: pytest.CaptureFixture[str], mode: int) -> None:
    assert call("./task.sh", "[1,2]") == 0
    file = here / "LLSUB.1" / "environment"
    file.chmod(mode)
    assert call("--resume", "LLSUB.1") == 1
    said = capsys.readouterr().err
    assert f"others may read or change it (mode 0{mode:o})" in said
    assert f"chmod 600 {file}, else use --env=current" in said
    assert len(submitted(here)) == 1
    file.chmod(0o600)
    assert call("--resume", "LLSUB.1") == 0


def test_a_claim_that_a_kill_left_does_not_keep_a_run_from_being_resumed(here: Path) -> None:
    assert call("./task.sh", "[1,2]") == 0
    with subprocess.Popen(["true"]) as gone:
        pass
    claim = here / "LLSUB.1" / "resuming"
    claim.write_text(f"pid {gone.pid} start 5 in {Path('/proc/self/ns/pid').readlink()} on {os.uname().nodename}\n")
    assert call("--resume", "LLSUB.1") == 0
    assert len(submitted(here)) == 2
    assert not claim.exists()


def test_an_empty_environment_is_recorded_as_one(here: Path) -> None:
    (here / "environment").write_bytes(run_folder.render_environment({}))
    (here / "environment").chmod(0o600)
    assert run_folder.read_environment(here) == {}


def test_a_run_whose_job_is_there_is_not_resumed(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("./task.sh", "[1,8]") == 0
    recorded = (DATA / "squeue.json").read_text().replace("hold.sh", "launch.sh")
    job = json.loads(recorded)["jobs"][0]["job_id"]
    (here / "LLSUB.1" / "jobs").write_text(f"{job} 1\n")
    monkeypatch.setattr(jobs, "run", lambda argv, **_: recorded)
    assert call("--resume", "LLSUB.1") == 2
    assert "is still in the queue" in capsys.readouterr().err
    assert len(submitted(here)) == 1


def test_a_job_whose_submission_was_not_answered_keeps_its_run_from_being_resumed(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "bin/sbatch").write_text("#!/bin/sh\necho Socket timed out on send/recv operation >&2; exit 1\n")
    assert call("./task.sh", "[1,8]") == 1
    recorded = json.loads((DATA / "squeue.json").read_text())
    recorded["jobs"][0]["command"] = f"{here}/LLSUB.1/launch.sh"
    monkeypatch.setattr(jobs, "run", lambda argv, **_: json.dumps(recorded))
    assert call("--resume", "LLSUB.1") == 2
    job = recorded["jobs"][0]["job_id"]
    assert f"job {job} of LLSUB.1 is still in the queue" in capsys.readouterr().err
    assert run_folder.read_jobs(here / "LLSUB.1") == [job]


def test_a_resumption_that_sbatch_refuses_can_be_tried_again(here: Path) -> None:
    assert call("./task.sh", "[1,8]") == 0
    (here / "refuse").touch()
    assert call("--resume", "LLSUB.1") == 2
    (here / "refuse").unlink()
    assert call("--resume", "LLSUB.1") == 0
    assert run_folder.read_jobs(here / "LLSUB.1") == [4711, 4711]


def test_a_locale_that_is_not_utf8_is_blamed_and_not_the_name(here: Path) -> None:
    script = here / "caf\u00e9.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    program = "import sys; from slurm_share.cli import llsub; sys.exit(llsub.main())"
    argv = [sys.executable, "-c", program, f"./{script.name}", "[1,1]", "--dry-run", "--local"]
    environ = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C"}
    found = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert (found.returncode, "is not ASCII, but the locale" in found.stderr) == (2, True)
    assert "PYTHONUTF8=0 LC_ALL=C): Python reads names as ascii" in found.stderr
    assert "rename" not in found.stderr
    way_out = found.stderr.strip().rpartition("write: ")[2]
    found = subprocess.run(["/bin/sh", "-c", f'{way_out}; exec "$@"', "sh", *argv], env=environ, check=False)
    assert found.returncode == 0


def test_local_runs_the_launcher_in_the_foreground(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *words: became.append(words))
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,6")
    call("./task.sh", "[1,4]", "--local", "-g", "2")
    _, argv, environment = became[0]
    assert argv[1:] == ["-I", "-X", "utf8", "-m", "slurm_share.cli.main", "launch", f"{here}/LLSUB.1"]
    assert environment["CUDA_VISIBLE_DEVICES"] == "3,5"
    assert "SLURM_JOB_ID" not in environment
    assert submitted(here) == []


def test_watching_ends_with_the_run_and_with_its_exit_code(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("./task.sh", "[1,2]") == 0
    record(here / "LLSUB.1", ended(0))
    assert call("--watch") == 1
    log = here / "LLSUB.1" / "llsub-triple-mode-launch.log-4711"
    out = capsys.readouterr().out
    assert f"1 of 2 tasks are done; {log} does not exist: the job has not started, or its output could not" in out
    log.touch()
    assert call("--watch") == 1
    assert f"1 of 2 tasks are done; see {log} for the others; llsub --resume" in capsys.readouterr().out
    (here / "else where").mkdir()
    (here / "LLSUB.1").rename(here / "else where" / "LLSUB.1")
    assert call("--watch", "else where/LLSUB.1") == 1
    assert f"llsub --resume '{here}/else where/LLSUB.1' runs what is left" in capsys.readouterr().out
    (here / "else where" / "LLSUB.1").rename(here / "LLSUB.1")
    record(here / "LLSUB.1", ended(0), ended(1))
    assert call("--watch", "LLSUB.1") == 0
    assert call("./task.sh", "[1,2]", "--wait") == 1


def test_how_far_a_run_is_counts_what_earlier_jobs_did(here: Path) -> None:
    run = Run(name="a", command=("/a",), cwd="/", triple=Triple(1, 2), processes=2, tasks=100)
    node = here / "p0-p1_n1"
    node.mkdir()
    progress = Progress(node="n1", job="12.1", processes=2, running=2, done=10, failed=3, left=7, at=0.0)
    log = EventLog(node, "12.1")
    log.progress(progress)
    log.close()
    record(here, *(ended(task) for task in range(40)))
    task_counts = follow.TaskCountsReader(here, run, 12).read()
    assert task_counts == TaskCounts(100, done=50, failed=3, running=2, restarts=1)
    counts = "50 of 100 done, 3 failed, 2 running, 45 left"
    assert as_text(task_counts) == counts
    assert as_text(replace(task_counts, given_up=5)) == "50 of 100 done, 3 failed, 5 given up, 2 running, 40 left"
    assert as_text(replace(task_counts, per_s=2.0)) == f"{counts}, 2.0/s, 0:00:23 to go"
    assert as_text(replace(task_counts, per_s=0.1)) == f"{counts}, 6.0/min, 0:07:50 to go"
    assert follow.TaskCountsReader(here, run, 13).read() is None


def test_in_a_log_the_last_state_is_told_once_it_may_be(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines come half a minute apart; a state that came sooner and stays is told then."""
    now = 100.0
    monkeypatch.setattr(progress_line.time, "monotonic", lambda: now)
    line = progress_line.ProgressLine()
    line.show("pending")
    now += 1.0
    line.show("8 running")
    assert capsys.readouterr().out == "pending\n"
    now += progress_line.LINE_EVERY_S
    line.show("8 running")
    now += progress_line.LINE_EVERY_S
    line.show("8 running")
    assert capsys.readouterr().out == "8 running\n"


def test_ctrl_c_leaves_the_job_and_says_how_to_end_it(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(follow, "follow", interrupted)
    assert call("./task.sh", "[1,2]", "--wait") == 130
    assert "job 4711 continues: llsub --watch LLSUB.1 shows it again, llkill 4711 ends it" in capsys.readouterr().err

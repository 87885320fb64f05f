"""`llmapreduce` without a scheduler: its words, and runs on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_share.cli import llfree, llkill, llmapreduce, llmapreduce_failures, llstat, llsub, progress_line
from slurm_share.core.errors import CommandError
from slurm_share.packing import EVENTS, EventLog, Progress
from slurm_share.slurm import jobs as slurm_jobs
from slurm_share.slurm.records import QueuedJob
from slurm_share.triples import failed_tasks, follow, map_submitting, run_folder
from slurm_share.triples.records import Run
from slurm_share.triples.rules.mapreduce import Folder


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a mapper, a reducer and three inputs; no Slurm, no job around us, no GPU."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(map_submitting.OUTER)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for name, text in {
        "map.sh": '#!/bin/sh\necho "$1 $LLMR_RANK $LLSUB_SIZE" > "$2"\n',
        "bad.sh": "#!/bin/sh\nexit 1\n",
        "reduce.sh": '#!/bin/sh\ncat "$1"/* > "$2"\n',
    }.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"f{number}").touch()
    return tmp_path


def run(*words: str) -> int:
    return llmapreduce.main(["--mapper=map.sh", "--input=in", "--output=out", *words])


def test_map_and_reduce_here(place: Path) -> None:
    assert run("--local", "--np=2", "--reducer=reduce.sh") == 0
    assert (place / "llmapreduce.out").read_text().splitlines() == [
        f"{place}/in/f0 0 2", f"{place}/in/f1 0 2", f"{place}/in/f2 1 2"
    ]  # fmt: skip
    assert not list(place.glob("MAPRED*"))


def test_how_rates_are_measured_stays_with_the_map(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--local", "--np=2", "--keep=true", r"--progress=file (\d+)", "--window=5") == 0
    kept = run_folder.read_run(place / "MAPRED.1")
    assert (kept.progress, kept.rate_window_s) == (r"file (\d+)", 5.0)
    for option, why in (("--progress=file", "has 0 groups"), ("--window=0", "from 1 to 3600")):
        assert run("--local", "--np=2", option) == 2
        assert why in capsys.readouterr().err


def test_a_map_that_failed_is_not_reduced(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--local", "--mapper=bad.sh", "--reducer=reduce.sh", "--np=1") == 1
    assert not (place / "llmapreduce.out").exists()
    assert f"not everything was done; see {place}/MAPRED.1/logs" in capfd.readouterr().err
    assert run("--local", "--mapper=bad.sh", "--reducer=/bin/true", "--np=1", "--changeDepMode=true") == 1


def test_inputs_that_were_saved_are_not_reduced(
    place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --changeDepMode=true the reducer runs after a failed map, but the output of a saved input is incomplete."""
    (place / "bad.sh").write_text('#!/bin/sh\ncase $1 in *f1) exit 75;; *f2) exit $code;; esac\ncp "$1" "$2"\n')
    for code, ended in (("0", 75), ("3", 1)):
        words = ("--local", "--mapper=bad.sh", "--reducer=reduce.sh", "--np=1", "--changeDepMode=true")
        monkeypatch.setenv("code", code)
        assert run(*words) == ended
        assert not (place / "llmapreduce.out").exists()
        assert "1 of 3 inputs has saved its state and is not finished, so the reducer" in capfd.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--output=in", "--ext=noext"],
        ["--output=./in/.", "--ext=noext"],
        ["--output=link", "--ext=noext"],
        ["--output=other"],
        ["--input=list", "--output=in", "--ext=noext"],
        ["--input=list", "--output=.", "--ext=noext"],
    ],
)
def test_outputs_that_would_be_written_over_inputs_are_refused(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    (place / "link").symlink_to("in")
    (place / "other").mkdir()
    (place / "other/f1.out").symlink_to("../in/f1")
    (place / "list").write_text("in/f0\nin/f1\nlist\n")
    (place / "in/f1").write_text("precious")
    assert run("--local", "--np=1", *words) == 2
    said = capsys.readouterr().err
    assert re.search(r"--output: (\S+ would overwrite the (input|list) |this is the input folder)", said)
    assert "write another folder" in said
    assert (place / "in/f1").read_text() == "precious"
    assert not list(place.glob("MAPRED*"))


def test_the_input_folder_is_no_output_folder_under_any_name(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "link").symlink_to("in")
    for name in ("in", "link", "out/../in"):
        assert run("--local", "--np=1", f"--output={name}") == 2
        assert "would be inputs of the next run" in capsys.readouterr().err
    assert len(list((place / "in").iterdir())) == 3


REDUCE = "--reducer=reduce.sh"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([REDUCE, "--redout=in/f2"], "--redout: {place}/in/f2 would overwrite the input {place}/in/f2; write another"),
        ([REDUCE, "--redout=./map.sh"], "would overwrite the mapper {place}/map.sh"),
        ([REDUCE, "--redout=hard"], "--redout: {place}/hard would overwrite the mapper {place}/map.sh"),
        ([REDUCE, "--redout=soft"], "--redout: {place}/soft would overwrite the reducer {place}/reduce.sh"),
        ([REDUCE, "--redargs=-v conf", "--redout=conf"], "would overwrite the file of --redargs conf"),
        ([REDUCE, "--input=list", "--redout=list"], "would overwrite the list {place}/list"),
        ([REDUCE, "--input=list", "--redout=conf"], "would overwrite the input conf"),
        ([REDUCE, "--redout=out"], "--redout: {place}/out is a folder"),
        ([REDUCE, "--redout=new", "--output=new/deep"], "--redout: {place}/new is a folder"),
        ([REDUCE, "--redout=temp", "--tempdir=temp"], "--redout: {place}/temp is a folder"),
        ([REDUCE, "--redout=in"], "--redout: {place}/in is a folder"),
        ([REDUCE, "--redout=out/f0.out"], "--redout: {place}/out/f0.out is the output of {place}/in/f0"),
        ([REDUCE, "--redout=t/tasks", "--tempdir=t"], "--tempdir: the run has a file or folder {place}/t/tasks"),
        (["--output=t", "--tempdir=./t", "--ext=noext", "--prefix=input_", "--apptype=mimo", "--input=numbers"],
         "{place}/t/input_1 would be written there"),
        (["--output=linked"], "would overwrite the mapper {place}/map.sh"),
        (["--output=one"], "{place}/in/f0 and {place}/in/f1 would have the same output {place}/one/f1.out"),
        (["--output=dangling"], "{place}/in/f0 and {place}/in/f1 would have the same output"),
        (["--input=twice"], "in/f0 and in/f1 would have the same output out/../out/x"),
        (["--input=bases"], "in/f0 and other/f0 would have the same output {place}/out/f0.out"),
        (["--input=tree", "--subdir=true"], "the output {place}/out/a.out of {place}/tree/a would have the name of"),
    ],
)  # fmt: skip
def test_no_file_that_the_command_line_names_is_overwritten(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    (place / "hard").hardlink_to(place / "map.sh")
    (place / "soft").symlink_to("reduce.sh")
    (place / "conf").write_text("conf")
    (place / "list").write_text("conf 3 4\n")
    (place / "twice").write_text("in/f0 out/x\nin/f1 out/../out/x\n")
    (place / "bases").write_text("in/f0\nother/f0\n")
    (place / "numbers").mkdir()
    (place / "numbers/1").touch()
    (place / "tree/a.out").mkdir(parents=True)
    for name in ("tree/a", "tree/a.out/b"):
        (place / name).touch()
    for folder, link, target in (
        ("linked", "f0.out", "../map.sh"),
        ("one", "f0.out", "f1.out"),
        ("dangling", "f0.out", "x"),
        ("dangling", "f1.out", "x"),
    ):
        (place / folder).mkdir(exist_ok=True)
        (place / folder / link).symlink_to(target)
    before = (place / "map.sh").read_text()
    (place / "out").mkdir()
    (place / "t").mkdir()
    assert run("--local", "--np=1", *words) == 2
    assert sentence.format(place=place) in capsys.readouterr().err
    assert (place / "map.sh").read_text() == before
    assert not list(place.glob("MAPRED*"))


def test_options_without_effect_are_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "list").write_text("in/f0\n")
    assert run("--local", "--redout=x", "--redargs=y", "--input=list", "--subdir=true", "--partition=p") == 0
    said = capsys.readouterr().err
    assert "--redargs and --redout ignored: there is no --reducer" in said
    assert "--subdir ignored: --input is a list" in said
    assert "--partition ignored: --local runs here, without Slurm" in said
    assert run("--local") == 0
    assert "ignored" not in capsys.readouterr().err


def test_a_list_beside_its_outputs_is_fine(place: Path) -> None:
    (place / "list").write_text("in/f0\nin/f1\n")
    assert run("--local", "--np=1", "--input=list", "--output=in") == 0
    assert (place / "in/f1.out").exists()


def test_what_was_refused_leaves_no_output_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("--tempdir=map.sh", "--redout=gone/x"):
        assert run("--local", "--output=a/out", "--reducer=reduce.sh", word) == 2, word
        assert not (place / "a").exists()
    (place / "in" / os.fsdecode(b"f\xff")).touch()
    assert run("--local", "--output=a/out") == 2
    assert not (place / "a").exists()
    (place / "a").mkdir()
    assert run("--local", "--output=a/out") == 2
    assert list((place / "a").iterdir()) == []


def test_links_that_lead_nowhere_are_said_once_with_their_number(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("gone1", "gone2"):
        (place / "in" / name).symlink_to("nowhere")
    assert run("--local", "--np=1") == 0
    said = capfd.readouterr().err
    assert said.count(" links ") == 1
    assert f"2 broken links in {place}/in ignored: gone1, ..." in said


def test_the_first_failures_are_named_with_input_log_and_last_line(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In a log of many tasks, each has its own last line; a task that was tried twice the second one's."""
    for number in range(14):
        (place / "in" / f"f{number}").touch()
    (place / "bad.sh").write_text(
        '#!/bin/sh\n[ "${1##*/}" = f0 ] && exit 0\necho first; echo "$$ wrong in ${1##*/}" | cut -d" " -f2-; exit 3\n'
    )
    assert run("--local", "--mapper=bad.sh", "--np=2", "--retries=1") == 1
    lines = capfd.readouterr().err.splitlines()
    at = lines.index("failed: 13 of 14, as input -> log (why): its last line")
    logs = rf"{re.escape(str(place))}/MAPRED\.1/logs/p0-[^/]*/bad\.sh\.log\.[01]"  # whichever process tried it last
    assert re.fullmatch(rf"  {re.escape(str(place))}/in/f1 -> {logs} \(exit code 3\): wrong in f1", lines[at + 1])
    assert lines[at + 10].startswith(f"  {place}/in/f6 -> ")  # f10 to f13 come before f2
    assert lines[at + 10].endswith(" (exit code 3): wrong in f6")
    assert lines[at + 11] == f"  and 3 more: llsub --failed {place}/MAPRED.1"
    assert len(lines) == at + 12


def test_a_program_that_cannot_start_has_its_reason_in_the_place_of_a_last_line(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (place / "bad.sh").write_text("#!/no/such/shell\n")
    assert run("--local", "--mapper=bad.sh", "--np=1") == 1
    line = next(line for line in capfd.readouterr().err.splitlines() if line.startswith(f"  {place}/in/f0 -> "))
    assert line.endswith("bad.sh: its first line names /no/such/shell, which does not exist)")


def test_the_words_of_a_list_are_named_and_an_output_is_not() -> None:
    lines = ['["--rate=1","--batch=a b"]', '["x/3","/out/3.out"]', '["/M/input_1"]', '["\\u001b[2J"]']
    the_run = Run(kind="llmapreduce", name="m", command=(), cwd="/", triple=None, processes=1, tasks=9)
    named = [failed_tasks._name(Path(), the_run, lines, task) for task in range(5)]
    assert named == ["--rate=1 '--batch=a b'", "x/3", "/M/input_1", r"'\x1b[2J'", "task 4"]


def test_a_folder_without_failures_has_no_lines_and_another_one_a_sentence(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--local", "--np=1", "--keep=true") == 0
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["x", f"{place}/MAPRED.1"])
    assert llmapreduce_failures.main() == 0
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys, "argv", ["x", f"{place}/in"])
    assert llmapreduce_failures.main() == 1
    assert "not the folder of a run" in capsys.readouterr().err


def test_the_module_that_a_waiting_map_s_script_names_is_there(place: Path) -> None:
    """Earlier releases wrote it into map.sh: a rename would take the list of failures from jobs that wait."""
    assert run("--local", "--np=1", "--keep=true") == 0
    argv = [sys.executable, "-I", "-m", "slurm_share.cli.llmapreduce_failures", f"{place}/MAPRED.1"]
    assert subprocess.run(argv, capture_output=True, text=True).returncode == 0


# ---- --wait ----


def _queued(number: int, state: str) -> QueuedJob:
    return QueuedJob(job_id=number, name="map.sh", user="alice", uid=1, partition="gpu", states=(state,), reason="Why")


def test_waiting_says_how_far_the_jobs_are(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a launcher has begun, what Slurm says; then the tasks; then the reducer. A busy controller is no end."""
    assert run("--local", "--np=1", "--keep=true") == 0
    path = place / "MAPRED.1"
    what = run_folder.read_run(path)
    node = next((path / "logs").glob("p0-*"))
    progress = Progress(node="n1", job="5", processes=1, running=1, done=1, failed=0, left=1, at=0.0)
    both = [_queued(6, "PENDING"), _queued(5, "RUNNING")]
    answers = iter([[_queued(5, "PENDING"), _queued(6, "PENDING")], None, both, [_queued(6, "RUNNING")], []])

    def read_queue(*, jobs: tuple[int, ...]) -> tuple[None, list[QueuedJob]]:
        assert jobs == (5, 6)
        answer = next(answers)
        if answer is None:
            raise CommandError(("squeue",), 1, "busy")
        if answer is both:
            log = EventLog(node, "5")
            log.progress(progress)
            log.close()
        return None, answer

    monkeypatch.setattr(slurm_jobs, "read_queue", read_queue)
    monkeypatch.setattr(follow.time, "sleep", lambda _: None)
    monkeypatch.setattr(progress_line, "LINE_EVERY_S", 0.0)
    (node / EVENTS).unlink()
    (node / run_folder.RESULTS).unlink()
    capsys.readouterr()
    assert llmapreduce._wait(Folder(str(path), True, True), what, (5, 6)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "job 5: pending (Why)", "1 of 3 done, 0 failed, 1 running, 1 left", "job 6: running", "all done"
    ]  # fmt: skip


@pytest.mark.parametrize(("jobs", "said"), [((5,), "job 5 continues: "), ((5, 6), "jobs 5,6 continue: ")])
def test_who_stops_waiting_is_told_that_the_jobs_run_on(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, jobs: tuple[int, ...], said: str
) -> None:
    assert run("--local", "--np=1", "--keep=true") == 0

    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(slurm_jobs, "read_queue", interrupt)
    what = run_folder.read_run(place / "MAPRED.1")
    assert llmapreduce._wait(Folder(str(place / "MAPRED.1"), True, True), what, jobs) == 130
    err = capsys.readouterr().err
    assert said in err
    assert f"llkill {','.join(map(str, jobs))} ends" in err


def test_help_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (llmapreduce, llstat, llkill, llfree, llsub):
        with pytest.raises(SystemExit):
            command.main(["--help"])
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_a_call_within_a_task_is_in_the_foreground(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outer = {"LLMR_RANK": "7", "SLURM_JOB_ID": "4711", "SLURM_TASKS_PER_NODE": "64", "LLSUB_SIZE": "9"}
    for name, value in outer.items():
        monkeypatch.setenv(name, value)
    (place / "map.sh").write_text('#!/bin/sh\necho "$LLMR_RANK $LLSUB_SIZE [$SLURM_JOB_ID]" > "$2"\n')
    assert run("--np=1", "--keep=true") == 0
    assert (place / "out/f0.out").read_text() == "0 1 []\n"
    assert (place / "MAPRED.1/finished").exists()


def test_a_task_without_a_gpu_has_none_within() -> None:
    found = map_submitting._environment({"LLMR_RANK": "0", "SLURM_JOB_ID": "1", "HOME": "/h"})
    assert found == {"CUDA_VISIBLE_DEVICES": "", "HOME": "/h"}
    assert map_submitting._environment({"HOME": "/h"}) == {"HOME": "/h"}


def test_without_slurm_it_says_where_to_go(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert run() == 2
    assert "run this here with --local" in capsys.readouterr().err
    assert not list(place.glob("MAPRED*"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--Np=3"], "there is no option --Np; did you mean --np?"),
        (["--delimitr=3"], "did you mean --delimiter?"),
        (["-T", "5"], "there is no option -T; see llmapreduce -h"),
        (["--mimo"], "there is no option --mimo"),
        (["stray"], "stray is not part of an option"),
        (["--input"], "expected one argument"),
        (["--mapper="], "--mapper is missing"),
        (["--tempdir=", "--local"], "--tempdir has an empty value"),
        (["--np=[1,x]"], "the triple [1,x]"),
        (["--prefix=a/b"], "this becomes part of file names"),
        (["--retries=-1"], "--retries=-1"),
        (["--options='"], "cannot be split as by a shell"),
        (["--share-gpu=x", "--local"], "--share-gpu=x"),
        (["--gpuNameCount=volta:2", "--local"], "each process gets one GPU"),
        (["--tempdir=map.sh", "--local"], "cannot be used as a folder"),
    ],
)
def test_mistakes_are_answered(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert run(*words) == 2
    assert sentence in capsys.readouterr().err
    assert not list(place.glob("MAPRED*"))


def test_a_name_that_is_no_text_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "in" / os.fsdecode(b"f\xff")).touch()
    assert run("--local") == 2
    assert "is not UTF-8" in capsys.readouterr().err
    assert not list(place.glob("MAPRED*"))

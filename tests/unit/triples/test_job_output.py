"""The output files of a job, and reading the end of any kind of file."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from slurm_share.core.errors import CommandError, SlurmShareError
from slurm_share.triples import job_output, run_folder
from slurm_share.triples.job_output import JobFiles, LogFile, Tail
from slurm_share.triples.records import Run, Triple


def answer(**more) -> str:
    job = {"job_id": 7, "user_id": 2001, "user_name": "alice", "standard_error": "", "batch_host": "n1", **more}
    return json.dumps({"jobs": [{**job, "job_id": 6}, job]})


def files(**more) -> JobFiles:
    return JobFiles(**{"user": "alice", "uid": 2001, "stdout": "", "stderr": "", "script": "", "folder": "/", **more})


def test_a_jobs_name_cannot_say_where_its_output_is() -> None:
    """scontrol's text would contain two lines StdOut=; its JSON has one field."""
    text = answer(name="x\n   StdOut=/etc/shadow", standard_output="/home/alice/out-x\n   StdOut=/etc/shadow-7.log")
    found = job_output.parse_files(text, 7)
    assert found is not None
    assert (found.user, found.stdout) == ("alice", "/home/alice/out-x\n   StdOut=/etc/shadow-7.log")


@pytest.mark.parametrize(
    ("path", "expanded"), [("/o/%N.log", "/o/n1.log"), ("/o/%%N.log", "/o/%%N.log"), ("/o/5.log", "/o/5.log")]
)
def test_the_first_nodes_name_is_put_in_where_slurm_has_not(path, expanded) -> None:
    found = job_output.parse_files(answer(standard_output=path), 7)
    assert found is not None
    assert found.stdout == expanded


def test_a_path_that_slurm_has_expanded_beside_the_users_is_taken() -> None:
    found = job_output.parse_files(answer(standard_output="/o/%j.log", stdout_expanded="/o/7.log"), 7)
    assert found is not None
    assert found.stdout == "/o/7.log"


def test_another_jobs_record_is_none_of_ours_and_another_answer_is_refused() -> None:
    assert job_output.parse_files(answer(), 8) is None
    with pytest.raises(CommandError):
        job_output.parse_files("slurm_load_jobs error", 7)


def test_output_and_errors_are_offered_once_where_they_are_one_file() -> None:
    one = job_output.choose(files(stdout="/o", stderr="/o"))
    assert [file.path for file in one] == ["/o"]
    two = job_output.choose(files(stdout="/o", stderr="/e"))
    assert [file.path for file in two] == ["/o", "/e"]
    assert job_output.choose(files()) == ()


def a_run(folder: Path) -> Path:
    the_run = Run(
        name="task.sh", command=("/bin/true",), cwd="/", triple=Triple(2, 3, 1), processes=6, tasks=6, log_folder="logs"
    )
    folder.mkdir()
    (folder / run_folder.RUN).write_bytes(run_folder.render_run(the_run))
    for first, last, node in ((0, 2, "n1"), (3, 5, "n2")):
        logs = run_folder.node_folder(folder, the_run, first, last, node)
        logs.mkdir(parents=True)
        for rank in range(first, last + 1):
            (logs / f"task.sh.log.{rank}").write_text(f"{rank}\n")
        (logs / "results.jsonl").write_text("")
    return folder


def test_the_log_of_the_process_comes_before_those_of_its_node(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "LLSUB.3")
    found = job_output.choose(
        files(stdout=str(folder / "launch.log"), script=str(folder / "launch.sh")), node="n2", local=1
    )
    assert Path(found[0].path).name == "task.sh.log.4"
    assert {Path(file.path).name for file in found} == {"task.sh.log.3", "task.sh.log.4", "task.sh.log.5", "launch.log"}
    assert found[-1] == LogFile("output of the job", str(folder / "launch.log"))


def test_a_run_that_is_none_is_left_out(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "LLSUB.3")
    where = files(stdout=str(folder / "o"))
    assert len(job_output.choose(where, node="n1")) == 4
    assert len(job_output.choose(where, node="*")) == 1
    (folder / run_folder.RUN).unlink()
    os.mkfifo(folder / run_folder.RUN)
    assert len(job_output.choose(where, node="n1")) == 1


def test_a_run_json_of_any_size_costs_no_memory(tmp_path: Path, monkeypatch) -> None:
    folder = a_run(tmp_path / "LLSUB.3")
    with open(folder / run_folder.RUN, "r+b") as file:
        file.write(file.read().rstrip() + b" " * 2 * job_output.RUN_BYTES)
    asked = []
    pread = os.pread
    monkeypatch.setattr(job_output.os, "pread", lambda *words: asked.append(words) or pread(*words))
    assert len(job_output.choose(files(stdout=str(folder / "o")), node="n1")) == 1
    os.truncate(folder / run_folder.RUN, 1 << 40)
    assert len(job_output.choose(files(stdout=str(folder / "o")), node="n1")) == 1
    assert asked == []


def test_a_run_json_nested_without_end_is_none(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "LLSUB.3")
    (folder / run_folder.RUN).write_bytes(b'{"more": ' + b"[" * 20_000 + b"]" * 20_000 + b"}")
    assert len(job_output.choose(files(stdout=str(folder / "o")), node="n1")) == 1


def test_for_root_a_run_json_has_to_be_the_jobs_users(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "LLSUB.3")
    where, mine = files(stdout=str(folder / "o")), (folder / run_folder.RUN).stat().st_uid
    assert len(job_output.choose(where, node="n1", owner=mine)) == 4
    assert len(job_output.choose(where, node="n1", owner=mine + 1)) == 1


# ---- The end of a file ----


def test_what_is_appended_is_read_and_nothing_twice(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"one\n")
    tail = Tail(str(file))
    first = tail.read()
    assert (first.data, first.anew, first.left_out) == (b"one\n", True, False)
    assert tail.read().data == b""
    with open(file, "ab") as more:
        more.write(b"two")
    assert (piece := tail.read()).data == b"two"
    assert not piece.anew
    tail.close()
    tail.close()


def test_only_the_end_of_a_large_file_is_read(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(job_output, "TAIL_BYTES", 20)
    file = tmp_path / "log"
    file.write_bytes(b"".join(b"line %03d\n" % number for number in range(100)))
    tail = Tail(str(file))
    piece = tail.read()
    assert (piece.data, piece.left_out) == (b"line 098\nline 099\n", True)
    with open(file, "ab") as more:
        more.write(b"x" * 100 + b"\nlast\n")
    piece = tail.read()
    assert (piece.data, piece.anew, piece.left_out) == (b"last\n", True, True)


def test_a_file_made_anew_or_shortened_is_read_from_its_begin(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"a long first one\n")
    tail = Tail(str(file))
    tail.read()
    file.write_bytes(b"short\n")
    assert (piece := tail.read()).data == b"short\n"
    assert piece.anew
    (tmp_path / "new").write_bytes(b"another\n")
    (tmp_path / "new").replace(file)
    assert (piece := tail.read()).data == b"another\n"
    assert piece.anew
    file.unlink()
    assert tail.read().data == b""


def test_a_file_that_comes_later_is_read_then(tmp_path: Path) -> None:
    tail = Tail(str(tmp_path / "log"))
    with pytest.raises(SlurmShareError, match="No such file"):
        tail.read()
    (tmp_path / "log").write_bytes(b"here\n")
    assert tail.read().data == b"here\n"


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "s"))
        for path, said in (
            (tmp_path / "pipe", "is a pipe"),
            (tmp_path, "is a folder"),
            (tmp_path / "s", "is a socket"),
            (Path("/dev/zero"), "is a device"),
        ):
            with pytest.raises(SlurmShareError, match=said):
                Tail(str(path)).read()
    for nowhere in ("", "a\0b"):
        with pytest.raises(SlurmShareError, match="no valid path"):
            Tail(nowhere).read()


def test_a_link_to_somebody_elses_file_is_not_shown_to_root(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"secret\n")
    (tmp_path / "out").symlink_to(file)
    mine = file.stat().st_uid
    assert Tail(str(tmp_path / "out"), owner=mine).read().data == b"secret\n"
    with pytest.raises(SlurmShareError, match="does not belong to the job's user"):
        Tail(str(tmp_path / "out"), owner=mine + 1).read()

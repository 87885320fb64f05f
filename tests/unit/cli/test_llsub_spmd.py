"""`llsub --spmd` as far as it goes without a cluster: what is written down, what is refused, and the key of the run."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from pathlib import Path

import pytest
from llsub_desk import call, make_desk, run_of, submitted

from slurm_share.core import config
from slurm_share.core.settings import Messages, Settings
from slurm_share.spmd.names import VERSION
from slurm_share.triples import planning, rank_python, run_folder
from slurm_share.triples.rules import together

GOOD = f"#!/bin/sh\necho version {VERSION}\n"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a program of ranks, and a python3 that has the package."""
    made = make_desk(tmp_path, monkeypatch)
    (made / "prog.py").write_text("print('hello')\n")
    put_python(made, GOOD)
    monkeypatch.delenv(rank_python.ENV_PYTHON, raising=False)
    return made


def put_python(desk: Path, text: str, name: str = "python3") -> Path:
    """Replace the user's Python by a program."""
    file = desk / "bin" / name
    file.write_text(text)
    file.chmod(0o755)
    return file


def test_a_python_file_runs_in_the_python_of_the_path(desk: Path) -> None:
    """Absolute in run.json, though PATH names it otherwise; ranks are tasks, one for each process."""
    assert call("--spmd", "prog.py", "[1,8]", "--", "-v", "3") == 0
    run = run_of(desk)
    command = (str(desk / "bin/python3"), "-u", "-m", "slurm_share.spmd", str(desk / "prog.py"), "-v", "3")
    assert run.command == command
    assert (run.together, run.keep_going) == (True, False)
    assert (run.tasks, run.processes, run.distribution, run.retries, run.task_kind) == (8, 8, "block", 0, "rank")
    assert run.name == "prog.py"
    assert together.python_of(run) == command[0]


def test_an_executable_program_is_started_itself(desk: Path) -> None:
    put_python(desk, "#!/bin/sh\nexit 3\n")
    (desk / "prog.py").write_text("#!/bin/sh\n")
    (desk / "prog.py").chmod(0o755)
    assert call("prog.py", "[1,2]", "--spmd", "--keep-going") == 0
    run = run_of(desk)
    assert run.command == (str(desk / "prog.py"),)
    assert run.keep_going
    assert together.python_of(run) is None


def test_a_program_of_the_user_has_the_python_that_a_variable_names(
    desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLSUB_PYTHON, as a path or as a name; links are not followed, for a virtual environment's Python is one."""
    real = put_python(desk, GOOD, "mine")
    (desk / "venv").symlink_to(real)
    monkeypatch.setenv(rank_python.ENV_PYTHON, str(desk / "venv"))
    assert call("--spmd", "prog.py", "[1,2]") == 0
    assert run_of(desk).command[0] == str(desk / "venv")
    assert rank_python.find({"PATH": f"{desk}/bin", rank_python.ENV_PYTHON: "mine"}) == str(real)


def test_a_python_that_is_not_there_is_refused(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(rank_python.ENV_PYTHON, "/no/python")
    assert call("--spmd", "prog.py", "[1,2]") == 2
    assert "LLSUB_PYTHON=/no/python is not an executable program" in capsys.readouterr().err
    monkeypatch.delenv(rank_python.ENV_PYTHON)
    monkeypatch.setenv("PATH", "")
    assert call("--spmd", "prog.py", "[1,2]") == 2
    assert "no python3 on your PATH" in capsys.readouterr().err
    assert not (desk / "LLSUB.1").exists()


def test_a_wrong_variable_of_ranks_is_refused_before_submission(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLSUB_TRANSPORT", "zmq")
    assert call("--spmd", "prog.py", "[1,2]") == 2
    assert "LLSUB_TRANSPORT=zmq: write mpi (mpi4py) or own (slurm_share's), or unset it" in capsys.readouterr().err
    assert not submitted(desk)


def test_the_python_of_our_packages_is_not_for_programs(monkeypatch: pytest.MonkeyPatch, desk: Path) -> None:
    (desk / "ours" / "bin").mkdir(parents=True)
    (desk / "bin/python3").rename(desk / "ours/bin/python3")
    put_python(desk, GOOD, "python")
    monkeypatch.setattr(rank_python, "OUR_PREFIX", str(desk / "ours"))
    monkeypatch.setattr(sys, "prefix", str(desk / "ours"))
    assert rank_python.find({"PATH": f"{desk}/ours/bin:{desk}/bin"}) == str(desk / "bin/python")


MISSING = "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'slurm_share'\" >&2\nexit 1\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (MISSING, "has no slurm_share.spmd, which ranks need to send messages; install it there with: slurm-share"),
        ("#!/bin/sh\necho version 0\n", f"with protocol version 0, but this slurm-share has {VERSION}"),
        ("#!/bin/sh\necho 'ImportError: bad' >&2\nexit 1\n", "cannot import slurm_share.spmd: ImportError: bad"),
    ],
)
def test_a_python_without_the_package_is_refused(
    desk: Path, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    put_python(desk, text)
    assert call("--spmd", "prog.py", "[1,2]") == 2
    said = capsys.readouterr().err
    assert why in said
    assert str(desk / "bin/python3") in said
    assert not (desk / "LLSUB.1").exists()
    assert not submitted(desk)


def test_a_python_that_does_not_answer_is_worth_a_note(
    desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_python, "CHECK_S", 0.2)
    put_python(desk, "#!/bin/sh\nexec sleep 60\n")
    assert call("--spmd", "prog.py", "[1,2]") == 0
    assert "cannot check whether" in capsys.readouterr().err


@pytest.mark.parametrize(
    "word",
    [
        "--tasks=lines", "--ntasks=9", "--retries=0", "--max-failures=1", "--distribution=block", "--pack",
        "--gpu-mem=1G", "--compare-sharing", "--oom-retries=1",
    ],
)  # fmt: skip
def test_what_ranks_cannot_have_is_refused(desk: Path, capsys: pytest.CaptureFixture[str], word: str) -> None:
    (desk / "lines").write_text("a\nb\n")
    assert call("--spmd", "prog.py", "[1,2]", word) == 2
    assert f"{word.partition('=')[0]} conflicts with --spmd: " in capsys.readouterr().err
    assert not submitted(desk)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("prog.py", "[1,auto]"), "[1,auto] conflicts with --spmd"),
        (("prog.py", "[8,256]"), "2048 ranks"),
        (("prog.py", "[1,257]"), "256 on a node"),
        (("prog.py",), "--spmd needs a triple"),
        (("[1,2]",), "--spmd needs a program"),
    ],
)
def test_a_triple_that_ranks_cannot_have_is_refused(
    desk: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], why: str
) -> None:
    assert call("--spmd", *words) == 2
    assert why in capsys.readouterr().err


def test_without_the_option_a_python_file_has_to_be_executable(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("prog.py", "[1,2]") == 2
    assert "it is not executable" in capsys.readouterr().err
    assert call("task.sh", "[1,2]", "--keep-going") == 2
    assert "--keep-going needs --pack" in capsys.readouterr().err


def test_a_run_of_ranks_is_resumed_with_all_ranks(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--spmd", "prog.py", "[1,2]", "--checkpoint-signal", "USR1@60", "--until-done=3") == 0
    run = run_of(desk)
    assert (run.checkpoint_signal, run.until_done) == (signal.SIGUSR1, 3)
    assert "--signal=USR1@60" in submitted(desk)[0]
    folder = run_folder.node_folder(desk / "LLSUB.1", run, 0, 1, "n1")
    folder.mkdir(parents=True)
    ends = [{"task": 0, "rank": 0, "outcome": "done"}, {"task": 1, "rank": 1, "outcome": "saved"}]
    common = {"attempt": 1, "node": "n1", "slot": None, "gpu": None, "gpu_uuid": None, "cpus": "", "started": 1.0,
              "seconds": 1.0, "code": 0, "signal": None, "peak_gpu_mib": None, "why": "", "job": "4711"}  # fmt: skip
    (folder / run_folder.RESULTS).write_text("".join(json.dumps(common | one) + "\n" for one in ends))
    assert call("--resume", "LLSUB.1") == 0
    shown = capsys.readouterr()
    assert "all 2 ranks of LLSUB.1 start again" in shown.out + shown.err
    assert len(submitted(desk)) == 2
    script = (desk / "LLSUB.1" / run_folder.LAUNCH_SCRIPT).read_text()
    assert "llsub --resume starts all ranks again" in script


def test_retries_of_one_rank_are_refused_at_resume(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--spmd", "prog.py", "[1,2]") == 0
    assert call("--resume", "LLSUB.1", "--retries=2") == 2
    assert "--retries conflicts with --spmd: a rank that has ended cannot join the run again" in capsys.readouterr().err
    assert len(submitted(desk)) == 1


def test_ranks_on_several_nodes_have_a_key_that_nobody_else_reads(desk: Path) -> None:
    before = os.umask(0)
    try:
        assert call("--spmd", "prog.py", "[2,2]") == 0
        assert call("--spmd", "prog.py", "[1,2]") == 0
    finally:
        os.umask(before)
    folder = desk / "LLSUB.1" / "rendezvous"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    key = folder / "key"
    assert (stat.S_IMODE(key.stat().st_mode), len(key.read_bytes())) == (0o600, 32)
    assert not (desk / "LLSUB.2" / "rendezvous").exists()
    text = "".join(file.read_text() for file in (desk / "LLSUB.1").iterdir() if file.is_file())
    assert key.read_bytes().hex() not in text


def test_a_refused_submission_leaves_no_key(desk: Path) -> None:
    (desk / "refuse").touch()
    assert call("--spmd", "prog.py", "[2,2]") == 2
    assert not (desk / "LLSUB.1").exists()


def test_a_site_can_refuse_messages_between_nodes(
    desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "read_settings", lambda partition: Settings(messages=Messages(between_nodes="off")))
    assert call("--spmd", "prog.py", "[2,2]") == 2
    assert "mpi4py" in capsys.readouterr().err
    assert call("--spmd", "prog.py", "[1,2]") == 0


def test_a_dry_run_shows_the_ranks(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--spmd", "prog.py", "[2,4]", "--dry-run=script") == 0
    said = capsys.readouterr().out
    assert f"8 ranks that start together, each: {desk}/bin/python3 -u -m slurm_share.spmd {desk}/prog.py" in said
    assert "# triple [2,4]: 8 processes, which are ranks that send messages to each other." in said
    assert call("--spmd", "prog.py", "[1,4]", "--dry-run", "--local") == 0
    assert "4 ranks that start together" in capsys.readouterr().out
    assert not (desk / "LLSUB.1").exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('between_nodes = "no"', "messages.between_nodes"),
        ('interface = "a b"', "messages.interface: must be the name of a network interface"),
        ('ports = "5-2"', "messages.ports: must be a range of ports"),
        ("port = 1", "messages.port: unknown key; did you mean ports?"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(config.ConfigError, match=why):
        config.parse(f"[messages]\n{text}\n", "f")
    with pytest.raises(config.ConfigError, match=r"wants a table: \[messages\]"):
        config.parse("messages = 1\n", "f")


def test_settings_of_messages_are_read() -> None:
    read = config.parse('messages.between_nodes = "off"\nmessages.ports = "60000-60010"\n', "f").settings
    assert read.messages == Messages(between_nodes="off", ports="60000-60010")

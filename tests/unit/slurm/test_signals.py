"""Signals: to that very process and no other, and what is said where nothing is sent."""

from __future__ import annotations

import os
import signal as signals
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_share.cli import main as command
from slurm_share.core.errors import CommandError, SlurmShareError
from slurm_share.core.process import Deadline, identify, stream
from slurm_share.node.records import NodeProcess
from slurm_share.slurm import signals as slurm_signals

WAIT_S = 60.0
WAITS = (sys.executable, "-c", "print('ready', flush=True); import sys; sys.stdin.read()")


@pytest.fixture
def living():
    child = stream(WAITS)
    deadline = Deadline.after(WAIT_S)
    while "ready" not in child.lines():
        assert deadline.left() > 0
        child.wait(0.01)
    known = identify(child.pid)
    assert known is not None
    yield child, known
    child.stop(Deadline.after(WAIT_S))


def test_the_very_process_gets_the_signal(living) -> None:
    child, known = living
    slurm_signals.send(known, "TERM")
    assert child.wait(WAIT_S) == -signals.SIGTERM


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"start_ticks": 1}, "another one has its number now"),
        ({"start_ticks": None}, "another one has its number now"),
        ({"uid": 4_000_000}, "is not of user 4000000"),
        ({"uid": None}, "is not of user None"),
        ({"pid": 0}, "has ended"),
        ({"pid": -1}, "has ended"),
    ],
)
def test_another_process_gets_nothing(living, change, said) -> None:
    """Another start time, another user, or a number below one, which means a group of processes."""
    child, known = living
    with pytest.raises(SlurmShareError, match=f"{said}.*nothing was sent"):
        slurm_signals.send(replace(known, **change), "KILL")
    assert child.wait(0) is None


def test_a_process_that_has_ended_gets_nothing(living) -> None:
    child, known = living
    child.stop(Deadline.after(WAIT_S))
    with pytest.raises(SlurmShareError, match="has ended"):
        slurm_signals.send(known, "TERM")


def test_the_command_on_the_node_signals_only_the_callers_own_process(living, capsys, monkeypatch) -> None:
    child, known = living
    words = ["signal", f"--pid={known.pid}", "--job=4711", "TERM"]
    assert command.main([*words, f"--start={known.start_ticks + 1}"]) == 1
    assert "another one has its number now; nothing was sent" in capsys.readouterr().err
    in_job = NodeProcess(known, 4712)
    monkeypatch.setattr("slurm_share.node.processes.read_process", lambda pid: in_job)
    assert command.main([*words, f"--start={known.start_ticks}"]) == 1
    assert "is in job 4712 and not in 4711; nothing was sent" in capsys.readouterr().err
    monkeypatch.setattr(
        "slurm_share.node.processes.read_process", lambda pid: NodeProcess(known, 4712, is_own_claim=True)
    )
    monkeypatch.setattr(os, "geteuid", lambda: known.uid + 1)
    assert command.main([*words, f"--start={known.start_ticks}"]) == 1
    assert "is not of user" in capsys.readouterr().err
    monkeypatch.undo()
    assert child.wait(0) is None
    assert command.main([*words, f"--start={known.start_ticks}"]) == 0
    assert child.wait(WAIT_S) == -signals.SIGTERM


def test_the_command_is_not_in_the_help(capsys) -> None:
    with pytest.raises(SystemExit):
        command.main(["--help"])
    assert "signal" not in capsys.readouterr().out


def test_a_signal_that_there_is_not_is_the_callers_mistake(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["signal", "--pid=5", "--start=1", "--job=1", "SEGV"])
    assert ended.value.code == 2


def test_the_step_names_one_node_and_takes_nothing_of_the_job() -> None:
    argv = slurm_signals.step_argv(
        job=4, component=1, node="n2", of_job=5, pid=77, start_ticks=99, name="USR1", program=("share",)
    )
    assert argv[:4] == ["srun", "--jobid=4", "--het-group=1", "--nodelist=n2"]
    assert {"--nodes=1", "--ntasks=1", "--overlap", "--gres=none", "--mem=0"} <= set(argv)
    # It is srun that gives up, so that what we end at our own limit is no step that begins later.
    assert any(word.startswith("--immediate=") and int(word[12:]) < slurm_signals.TIMEOUT_S for word in argv)
    assert argv[-6:] == ["share", "signal", "--pid=77", "--start=99", "--job=5", "USR1"]


@pytest.mark.parametrize(
    ("part", "words"), [("steps", []), ("script", ["--batch"]), ("all", ["--full"])], ids=["steps", "script", "all"]
)
def test_scancel_is_told_who(part, words) -> None:
    assert slurm_signals.scancel_argv("5.0", "INT", part=part) == ["scancel", "--signal=INT", *words, "--", "5.0"]


def program(folder: Path, script: str) -> list[str]:
    file = folder / "program"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return [str(file)]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo 'slurm-share: process 7 has ended; nothing was sent' >&2; "
            "echo 'srun: error: n1: task 0: Exited with exit code 1' >&2; exit 1",
            "^process 7 has ended; nothing was sent$",
        ),
        ("echo 'srun: error: Unable to confirm allocation for job 9' >&2; exit 1", "^Unable to confirm allocation"),
        ("exit 9", "srun ended with 9"),
    ],
)
def test_why_srun_sent_nothing_is_said(tmp_path: Path, script, said) -> None:
    with pytest.raises(SlurmShareError, match=said):
        slurm_signals.through_srun(program(tmp_path, script), {})


def test_an_srun_that_does_not_answer_leaves_it_open(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(slurm_signals, "TIMEOUT_S", 0.05)
    with pytest.raises(CommandError, match="no answer"):
        slurm_signals.through_srun(program(tmp_path, "exec sleep 60"), {"PATH": os.environ["PATH"]})


def test_what_scancel_says_against_it_is_said(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SCANCEL_INTERACTIVE", "1")
    slurm_signals.through_scancel(program(tmp_path, '[ -z "$SCANCEL_INTERACTIVE" ]'))
    with pytest.raises(SlurmShareError, match=r"^Kill job error on job id 8: Access/permission denied$"):
        slurm_signals.through_scancel(
            program(tmp_path, "echo 'scancel: error: Kill job error on job id 8: Access/permission denied' >&2")
        )

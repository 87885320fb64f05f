"""--checkpoint-signal: its values, and what it says beside sbatch's --signal."""

from __future__ import annotations

import signal

import pytest

from slurm_share.core.errors import UsageError
from slurm_share.triples.rules import checkpoint
from slurm_share.triples.rules.checkpoint import Checkpoint


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("USR1", Checkpoint(signal.SIGUSR1)),
        ("SIGUSR1", Checkpoint(signal.SIGUSR1)),
        ("sigusr2", Checkpoint(signal.SIGUSR2)),
        ("usr1@120", Checkpoint(signal.SIGUSR1, 120)),
        ("TERM", Checkpoint(signal.SIGTERM)),
    ],
)
def test_a_signal_has_its_name_and_its_seconds(text: str, found: Checkpoint) -> None:
    assert checkpoint.parse(text) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("RTMIN", "real-time signals differ"),
        ("SIGRTMIN+3", "real-time signals differ"),
        ("KILL", "programs cannot handle it"),
        ("SIGSTOP@60", "programs cannot handle it"),
        ("CONT", "it stops or continues a program"),
        ("CHLD", "whenever one of their child processes"),
        ("USER1", "does not begin with the name of a signal; did you mean USR1"),
        ("", "does not begin with the name of a signal; write a name such as USR1"),
        ("10", "does not begin with the name of a signal"),
        ("SIG", "does not begin with the name of a signal"),
        ("B:USR1@60", "does not begin with the name of a signal"),
        ("USR1@", "write the seconds before the time limit after @"),
        ("USR1@0", "write the seconds before the time limit after @"),
        ("USR1@65536", "write the seconds before the time limit after @, 1 to 65535"),
        ("USR1@2m", "write the seconds before the time limit after @"),
    ],
)
def test_a_value_that_cannot_mean_save_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"^--checkpoint-signal=.*{why}"):
        checkpoint.parse(text)


def test_a_signal_that_ends_the_launcher_is_for_moves_only() -> None:
    checkpoint.check(Checkpoint(signal.SIGHUP), is_moving=True)
    for wanted, is_moving in ((Checkpoint(signal.SIGTERM), False), (Checkpoint(signal.SIGTERM, 60), True)):
        with pytest.raises(UsageError, match="write USR1 or USR2"):
            checkpoint.check(wanted, is_moving=is_moving)


@pytest.mark.parametrize("written", ["USR1@120", "B:USR1@60", "SIGUSR2", "10@60", "R:12"])
def test_a_signal_of_slurm_alone_says_what_exit_0_means(written: str) -> None:
    (said,) = checkpoint.sbatch_notes(None, written, is_moving=False)
    assert f"--signal={written}: a task that saves its state on it must end with exit code 75; with 0 it counts" in said


def test_what_slurm_sends_agrees_with_what_tasks_wait_for() -> None:
    notes = checkpoint.sbatch_notes
    assert notes(None, None, is_moving=False) == notes(None, "TERM@30", is_moving=False) == ()
    assert notes(Checkpoint(signal.SIGUSR1, 120), "USR1@120", is_moving=False) == ()
    assert notes(Checkpoint(signal.SIGUSR1), "B:USR1@60", is_moving=False) == ()
    assert notes(Checkpoint(signal.SIGUSR1), None, is_moving=True) == ()
    (said,) = notes(Checkpoint(signal.SIGUSR1), None, is_moving=False)
    assert "scancel --signal=USR1 JOB" in said
    with pytest.raises(UsageError, match="name different signals"):
        notes(Checkpoint(signal.SIGUSR1, 120), "USR2@60", is_moving=False)

"""Parse `--checkpoint-signal SIGNAL[@SECONDS]`: the signal on which tasks save their state and end.

With @SECONDS, Slurm sends it to the launchers that long before the time limit (`sbatch --signal`). A packed run with
--undo=pause also sends it to a task that moves to another GPU.
"""

from __future__ import annotations

import re
import signal

from msgspec import Struct

from ...core import names, numbers
from ...core.errors import UsageError, shown
from ...core.text import did_you_mean

OPTION = "--checkpoint-signal"
FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)
"""The signals that a launcher takes without ending the run."""
SECONDS_MAX = 65535
"""sbatch(1), --signal: the time is an integer between 0 and 65535."""
_STOPS = "it stops or continues a program, which cannot save its state then"
_NOT_CAUGHT = {
    signal.SIGKILL: "programs cannot handle it",
    signal.SIGSTOP: "programs cannot handle it",
    signal.SIGCONT: _STOPS,
    signal.SIGTSTP: _STOPS,
    signal.SIGTTIN: _STOPS,
    signal.SIGTTOU: _STOPS,
    signal.SIGCHLD: "programs get it whenever one of their child processes ends",
}
"""Signals that cannot be a request to save the state, and why."""


class Checkpoint(Struct, frozen=True):
    """The parsed option."""

    signal: signal.Signals
    seconds: int | None = None
    """Seconds before the time limit; None: Slurm is not asked to send it."""

    @property
    def name(self) -> str:
        return self.signal.name.removeprefix("SIG")

    @property
    def sbatch_value(self) -> str | None:
        """Return the value of sbatch's --signal; None: the option is not needed."""
        return None if self.seconds is None else f"{self.name}@{self.seconds}"


def parse(text: str) -> Checkpoint:
    """Return the value of --checkpoint-signal, such as USR1@120 or SIGUSR1. Raises UsageError."""
    word, at, seconds = text.partition("@")
    found = _parse_signal(word, text)
    if not at:
        return Checkpoint(found)
    if not re.fullmatch("[0-9]{1,5}", seconds, re.ASCII) or not 1 <= int(seconds) <= SECONDS_MAX:
        raise UsageError(
            f"{OPTION}={shown(text)}: write the seconds before the time limit after @, 1 to {SECONDS_MAX}: USR1@120"
        )
    return Checkpoint(found, int(seconds))


def _parse_signal(word: str, text: str) -> signal.Signals:
    name = word.upper().removeprefix("SIG")
    if name.startswith("RT"):
        raise UsageError(
            f"{OPTION}={shown(text)}: the numbers of real-time signals differ between systems; write USR1 or USR2"
        )
    found = signal.Signals.__members__.get(f"SIG{name}")
    if found is None:
        known = [member.removeprefix("SIG") for member in signal.Signals.__members__]
        hint = did_you_mean(name, [one for one in known if not one.startswith("RT")], "write a name such as USR1")
        raise UsageError(f"{OPTION}={shown(text)} does not begin with the name of a signal{hint}")
    if found in _NOT_CAUGHT:
        raise UsageError(
            f"{OPTION}={shown(text)}: {_NOT_CAUGHT[found]}; write the signal on which your program saves its state, "
            "such as USR1"
        )
    return found


def check(wanted: Checkpoint | None, *, is_moving: bool) -> None:
    """Raise UsageError for a signal that would end the run before its tasks have saved their state.

    is_moving: a packed run with --undo=pause, which itself sends the signal to tasks.
    """
    if wanted is None or wanted.signal in FORWARDED or (is_moving and wanted.seconds is None):
        return
    raise UsageError(
        f"{OPTION}={wanted.name}: a launcher passes on USR1 and USR2 only, and other signals end the run or the "
        "launcher; write USR1 or USR2"
    )


def sbatch_notes(wanted: Checkpoint | None, written: str | None, *, is_moving: bool) -> tuple[str, ...]:
    """Return notes on what a signal of Slurm means for the tasks.

    written: the value of sbatch's --signal from #SBATCH lines, --options, or `wanted`; None: there is none. Raises
    UsageError if --signal and --checkpoint-signal name different signals.
    """
    number = None if written is None else _signal_of(written)
    if wanted is None:
        if number not in FORWARDED:
            return ()
        return (
            f"--signal={written}: a task that saves its state on it must end with exit code {names.EXIT_SAVED}; with 0 "
            f"it counts as done, unless you write {OPTION}={number.name.removeprefix('SIG')}",
        )
    if written is not None and number is not wanted.signal:
        raise UsageError(
            f"{OPTION}={wanted.name} and --signal={written} of sbatch name different signals; write {OPTION} alone, "
            f"such as {OPTION}=USR1@120"
        )
    if written is None and not is_moving:
        return (
            f"{OPTION}={wanted.name}: Slurm sends it before the time limit only with a time, {wanted.name}@120; by "
            f"hand: scancel --signal={wanted.name} JOB",
        )
    return ()


def local_notes(wanted: Checkpoint | None) -> tuple[str, ...]:
    """Return notes on a run on this machine, which has no time limit."""
    if wanted is None or wanted.seconds is None:
        return ()
    return (
        f"{OPTION}={wanted.sbatch_value}: without Slurm there is no time limit; kill -{wanted.name} with the "
        "launcher's pid tells the tasks to save their state",
    )


class JobEndTime(Struct, frozen=True):
    """When the job of a launcher ends, as Slurm says now. Unix times, seconds."""

    ends: int
    """Its time limit, which may have been changed, or the end of the grace of a preemption."""
    preempted: int | None = None
    """When another job began to preempt it; None: it is not preempted."""


def preemption_left_s(end: JobEndTime, now: float) -> float:
    """Return the seconds that a preempted job has left (GraceTime of slurm.conf); 0: it is not preempted.

    SIGTERM without a preemption ends the run: the job was cancelled, or its time is over.
    """
    return 0.0 if end.preempted is None else max(end.ends - now, 0.0)


def _signal_of(written: str) -> signal.Signals | None:
    """Return the signal in a value of sbatch's --signal: [{R|B}:]<sig_num>[@sig_time]; None: not known."""
    word = written.rpartition(":")[2].partition("@")[0].upper()
    number = numbers.whole(word)
    if number is not None:
        return next((one for one in signal.Signals if one == number), None)
    return signal.Signals.__members__.get(f"SIG{word.removeprefix('SIG')}")

"""Ask Slurm when the job of this launcher ends, without waiting for the answer."""

from __future__ import annotations

import time

from ...core.background import BackgroundCall
from ...core.errors import CommandError
from ...core.process import Deadline
from ...core.records import JobStart
from ...core.text import span_text
from ...slurm import jobs
from ..rules.checkpoint import JobEndTime

ANSWER_S = 24.0
"""Longest wait for squeue, in seconds: until shortly before tasks are killed as at a time limit (loop.GRACE_S)."""

AGAIN_S = 0.5
"""Pause before squeue is asked again, in seconds."""


class JobEnd:
    """A question to Slurm that is being answered in a thread."""

    def __init__(self, job: int) -> None:
        """Ask for the end of a job by its id."""
        self._call = BackgroundCall(lambda: _read(job))
        self.problem: CommandError | None = None
        """Why there is no answer; None: there is one, or none yet."""

    @classmethod
    def ask(cls, job: str) -> JobEnd | None:
        """Ask for the end of a job, written as in records.Ended; None: this is no job of Slurm."""
        number = JobStart.parse(job).number
        return None if number is None else cls(number)

    @property
    def is_answered(self) -> bool:
        """Return whether `answer` returns at once."""
        return self._call.wait(0.0)

    def answer(self) -> JobEndTime | None:
        """Return when the job ends; None: it has no time limit, is ending already, or Slurm does not answer."""
        try:
            return self._call.answer()
        except CommandError as error:
            self.problem = error
            return None


def end_text(end: JobEndTime, now: float) -> str:
    """Return the sentence on the job's end. `now`: Unix time."""
    at = time.strftime("%H:%M:%S", time.localtime(end.ends))
    left = f", in {span_text(end.ends - now)}" if end.ends > now else ""
    return f"the job {'is preempted by another one and ' if end.preempted is not None else ''}ends at {at}{left}"


def _read(job: int) -> JobEndTime | None:
    """Read the end of a job. Raises CommandError.

    Asks again within ANSWER_S: the signal that is the reason for the question goes to each process of the step where
    Slurm follows processes by their parents (proctrack/linuxproc), and squeue is one of them.
    """
    deadline = Deadline.after(ANSWER_S)
    while True:
        try:
            # The loop may wait for squeue's process before this thread does, so only its output tells whether it
            # succeeded.
            one = jobs.read_shown(job, timeout_s=deadline.left())
            return None if one is None or one.ends is None else JobEndTime(one.ends, one.preempted)
        except CommandError:
            if deadline.left() < AGAIN_S:
                raise
        time.sleep(AGAIN_S)

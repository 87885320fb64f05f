"""The errors that a call or an executor may raise, beside the exceptions of the user's own functions:

    ExecutorError(RuntimeError)
        WorkerLost                              the process that ran this call ended
        TimeLimit (TimeoutError)                this call ran for longer than its `timeout`
        NotStored (OSError)                     arguments or result could not be written, for example on a full disk
        NotReadable                             the result, or the exception, could not be pickled or unpickled
        RunEnded (BrokenExecutor)               the run's job ended, and calls were left
            InitializerFailed                   the initializer failed, so no worker can run anything
            SubmissionFailed                    the job could not be submitted

A call that failed in its own function raises that exception. Its cause is a `RemoteTraceback`.
"""

from __future__ import annotations

from concurrent.futures import BrokenExecutor


class ExecutorError(RuntimeError):
    """A call could not be run, or its result is not known. The text says what happened, why, and what helps."""


class WorkerLost(ExecutorError):
    """The process that ran the call ended: a signal, os._exit, out of memory. It may have begun, or not."""


class TimeLimit(ExecutorError, TimeoutError):
    """The call ran for longer than its `timeout`; its worker was ended and started again."""


class NotStored(ExecutorError, OSError):
    """Arguments or result could not be written into the run's folder, for example because the disk is full."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class NotReadable(ExecutorError):
    """A result or an exception could not be pickled, or the pickle could not be read. The text has the traceback."""


class RunEnded(ExecutorError, BrokenExecutor):
    """The run's job ended while calls were left. `Executor.attach` runs them in another job."""


class InitializerFailed(RunEnded):
    """The initializer raised an exception or ended its process. Nothing can run in this executor."""


class SubmissionFailed(RunEnded):
    """The job could not be submitted. The text has what `llsub` or Slurm said."""


class RemoteTraceback(Exception):
    """The traceback of an exception in the process where it was raised, as text. It is the exception's `__cause__`."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'

    @property
    def tb(self) -> str:
        """Return the text, by the name that it has in the cause of a ProcessPoolExecutor's exception."""
        return str(self.args[0])

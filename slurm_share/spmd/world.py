"""The run that this process is a rank of: made at the first use, once per process."""

from __future__ import annotations

from .transport import Transport


def transport() -> Transport:
    """Return this process's transport: a run's, mpi4py's, or that of a single rank where there is no run.

    Raises RunEnded, TransportError; UsageError in a forked child of a rank.
    """
    raise NotImplementedError

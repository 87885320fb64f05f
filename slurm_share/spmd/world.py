"""The run that this process is a rank of: made at the first use, once per process."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Mapping

from . import mpi
from .errors import UsageError
from .names import ENV_RENDEZVOUS
from .transport import Transport

_FORKED = (
    "this process was forked from a rank, and messages are the rank's: send and receive in the rank itself; "
    "a process that only computes may be forked"
)
_lock = threading.Lock()
_made: Transport | None = None
_forked = False


def transport() -> Transport:
    """Return this process's transport: a run's, mpi4py's, or that of a single rank where there is no run.

    Raises RunEnded, TransportError; UsageError in a forked child of a rank.
    """
    global _made
    if _made is not None and not _forked:
        return _made
    with _lock:
        if _forked:
            raise UsageError(_FORKED)
        if _made is None:
            _made = _make(os.environ)
            atexit.register(_close)
        return _made


def _make(environ: Mapping[str, str]) -> Transport:
    # Imported here: a third of what the whole package takes, for programs that import it and use no message.
    if mpi.wanted(environ):
        return mpi.make()
    if environ.get(ENV_RENDEZVOUS):
        from .joining import join
        from .sockets import SocketTransport

        return SocketTransport(join(environ), environ)
    from .single import SingleTransport

    return SingleTransport()


def _close() -> None:
    if _made is not None and not _forked:
        try:
            _made.close()
        except KeyboardInterrupt:
            sys.stderr.write("slurm-share: interrupted before all messages were delivered\n")


def _leave() -> None:
    """In a forked child: the parent's sockets are closed here, so that their end is seen when the parent ends.

    Before the parent's first use of messages too: the child would otherwise become the rank in its place.
    """
    global _forked, _lock
    _lock = threading.Lock()
    if _made is None and not os.environ.get(ENV_RENDEZVOUS):
        return
    if _made is not None:
        from .single import SingleTransport

        if isinstance(_made, SingleTransport):
            return
    _forked = True
    leave = getattr(_made, "leave", None)  # sockets' alone; MPI's connections are MPI's
    if leave is not None:
        leave(_FORKED)


os.register_at_fork(after_in_child=_leave)

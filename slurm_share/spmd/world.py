"""Transport of this process, made once, at the first use of messages."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Mapping

from . import checks
from .errors import UsageError
from .names import ENV_RENDEZVOUS
from .transport import Transport

_FORKED = "this process was forked from a rank, and only the rank can send and receive; a forked process may compute"
_lock = threading.Lock()
_made: Transport | None = None
_forked = False


def transport() -> Transport:
    """Return this process's transport: sockets in a run, mpi4py, or a single rank outside of both.

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
    # Imported here because it is a third of the package's import time, which programs without messages need not spend.
    if checks.uses_mpi(environ):
        from . import mpi4py_transport

        return mpi4py_transport.make_transport()
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
    """Close the copies of the parent's sockets in a forked child, so that peers notice the parent's end.

    Also bar a child that is forked before the parent's first message: it would become the rank in its place.
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
    leave = getattr(_made, "leave", None)  # only sockets have it; MPI owns its connections
    if leave is not None:
        leave(_FORKED)


os.register_at_fork(after_in_child=_leave)

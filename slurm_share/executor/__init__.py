"""A `concurrent.futures.Executor` whose calls run in a job of Slurm, or in local processes.

The package is installed in the user's own Python: it needs cloudpickle only (`pip install 'slurm-share[executor]'`),
and imports nothing else of slurm_share. The names below are imported at their first use.
"""

from __future__ import annotations

TYPE_CHECKING = False  # mypy takes it as true; importing `typing` would cost more than this module
if TYPE_CHECKING:
    from .client import Executor
    from .errors import (
        ExecutorError,
        InitializerFailed,
        NotReadable,
        NotStored,
        RemoteTraceback,
        RunEnded,
        SubmissionFailed,
        TimeLimit,
        WorkerLost,
    )
    from .exchange import Future

__all__ = ["Executor", "ExecutorError", "Future", "InitializerFailed", "NotReadable", "NotStored", "RemoteTraceback"]
__all__ += ["RunEnded", "SubmissionFailed", "TimeLimit", "WorkerLost"]

_HOME = {"Executor": "client", "Future": "exchange"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOME.get(name, 'errors')}"), name)

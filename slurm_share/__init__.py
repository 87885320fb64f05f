"""slurm-share: the GPUs of a node, shared between the tasks of one Slurm user.

The names below are the API for other programs. They are imported on first use, because every Prolog of a cluster
imports this package and most need none of them.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as mypy knows it; importing `typing` costs more than all this
if TYPE_CHECKING:
    from .core.config import load as load_config  # noqa: F401  (a clearer name outside the module)
    from .core.errors import SlurmShareError as SlurmShareError
    from .core.paths import Paths as Paths
    from .core.records import ShareRequest as ShareRequest
    from .core.settings import Settings as Settings
    from .executor import Executor as Executor
    from .node.records import Gpu as Gpu
    from .node.records import GpuReading as GpuReading
    from .share import Ledger as Ledger
    from .share import Plan as Plan
    from .share import Refusal as Refusal
    from .share import admit as admit
    from .slurm.records import JobContext as JobContext

_HOME = {
    "load_config": ("core.config", "load"),
    "admit": ("share.rules.allocation", "admit"),
    "SlurmShareError": ("core.errors", "SlurmShareError"),
    "Paths": ("core.paths", "Paths"),
    "Settings": ("core.settings", "Settings"),
    "Executor": ("executor", "Executor"),
    "ShareRequest": ("core.records", "ShareRequest"),
    "Gpu": ("node.records", "Gpu"),
    "GpuReading": ("node.records", "GpuReading"),
    "JobContext": ("slurm.records", "JobContext"),
    **{name: ("share.records", name) for name in ("Ledger", "Plan", "Refusal")},
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module, attribute = _HOME[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)

"""slurm-share: the GPUs of a node, shared between the tasks of one Slurm user.

The names below are the front door. They are imported when first asked for, because every Prolog of a cluster imports
this package and most of them ask for nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as mypy knows it; importing `typing` costs more than all this
if TYPE_CHECKING:
    from .config import load as load_config  # noqa: F401  (a plainer name at the door)
    from .errors import SlurmShareError as SlurmShareError
    from .paths import Paths as Paths
    from .records import Gpu as Gpu
    from .records import GpuReading as GpuReading
    from .records import JobContext as JobContext
    from .records import Ledger as Ledger
    from .records import Plan as Plan
    from .records import Refusal as Refusal
    from .records import ShareRequest as ShareRequest
    from .settings import Settings as Settings
    from .share.rules.allocation import admit as admit

_HOME = {
    "load_config": ("config", "load"),
    "admit": ("share.rules.allocation", "admit"),
    "SlurmShareError": ("errors", "SlurmShareError"),
    "Paths": ("paths", "Paths"),
    "Settings": ("settings", "Settings"),
    **{
        noun: ("records", noun)
        for noun in ("Gpu", "GpuReading", "JobContext", "Ledger", "Plan", "Refusal", "ShareRequest")
    },
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module, attribute = _HOME[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)

"""MPS: control daemons, their life cycle, folders, cgroups and processes."""

from __future__ import annotations

from ..core.lazy import exports

TYPE_CHECKING = False  # mypy takes it for True
if TYPE_CHECKING:
    from .session import ControlDaemon

__getattr__, __all__ = exports(__name__, names={"session": ["ControlDaemon"]})

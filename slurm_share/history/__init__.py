"""The archive of what users' jobs did, and reports on it."""

from __future__ import annotations

from ..core.lazy import exports

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from . import archive, archiving, records, report_text
    from .rules import report

__getattr__, __all__ = exports(
    __name__,
    modules=["archive", "archiving", "records", "report_text", "rules.report"],
)

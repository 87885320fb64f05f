"""What a job did, after its end or so far: read from all sources, merged, printed."""

from __future__ import annotations

from ..core.lazy import exports

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from . import records, short_text

__getattr__, __all__ = exports(__name__, modules=["records", "short_text"])

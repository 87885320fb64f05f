"""The report of a job, after its end or so far: read from all sources, merged, printed."""

from __future__ import annotations

from ..core.lazy import exports

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from . import page, resubmission, rows, short_text, sources, tables, text, weeks
    from .records import JobFigures, JobReport
    from .rules import figures, next_time
    from .rules.next_time import NextTime
    from .rules.site_week import SiteIdle

__getattr__, __all__ = exports(
    __name__,
    modules=[
        *("page", "resubmission", "rows", "rules.figures", "rules.next_time", "short_text", "sources", "tables"),
        *("text", "weeks"),
    ],
    names={"records": ["JobFigures", "JobReport"], "rules.next_time": ["NextTime"], "rules.site_week": ["SiteIdle"]},
)

"""What jobs and tasks have used: records that are kept after their end, and how energy is divided among them."""

from __future__ import annotations

from ..core.lazy import exports

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from .records import POINTS, VERSION, EnergyUse, GpuEnergy, GpuSeries, GpuUse, JobUse, Source, TaskUse, UseSeries

__getattr__, __all__ = exports(
    __name__,
    names={
        "records": [
            *("POINTS", "VERSION", "EnergyUse", "GpuEnergy", "GpuSeries", "GpuUse", "JobUse", "Source", "TaskUse"),
            "UseSeries",
        ]
    },
)

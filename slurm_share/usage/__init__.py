"""The use of nodes and GPUs by jobs and tasks: records that outlast them, and how energy is divided among them."""

from __future__ import annotations

from ..core.lazy import exports

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from . import comment, files, gpu_jobs, note
    from .records import (
        POINTS,
        VERSION,
        EnergyRule,
        EnergyUse,
        GpuEnergy,
        GpuSeries,
        GpuUse,
        JobUse,
        Source,
        Sources,
        TaskUse,
        UseSeries,
    )
    from .rules import counted, energy
    from .rules.energy import (
        Charge,
        GpuMoment,
        Holder,
        Meter,
        MeterBase,
        MigInstance,
        add_charges,
        mig_holders,
        slices_of,
    )
    from .series import GpuSample, Recorder

__getattr__, __all__ = exports(
    __name__,
    modules=("comment", "files", "gpu_jobs", "note", "rules.counted", "rules.energy"),
    names={
        "records": [
            *("POINTS", "VERSION", "EnergyRule", "EnergyUse", "GpuEnergy", "GpuSeries", "GpuUse", "JobUse", "Source"),
            *("Sources", "TaskUse", "UseSeries"),
        ],
        "rules.energy": [
            *(
                "Charge",
                "GpuMoment",
                "Holder",
                "Meter",
                "MeterBase",
                "MigInstance",
                "add_charges",
                "mig_holders",
                "slices_of",
            ),
        ],
        "series": ["GpuSample", "Recorder"],
    },
)

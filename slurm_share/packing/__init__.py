"""Packing: places unlike tasks on the GPUs of a user's allocation by booked memory, and learns their sizes."""

from __future__ import annotations

from ..core.lazy import exports

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from . import history_queries
    from .bookings import Bookings
    from .bookings_reader import read_bookings
    from .fingerprint import key_of
    from .journal import DECISIONS, Journal, explain_task, read_journal
    from .node_sizes import NodeSizes
    from .outside_sizes import OutsideSizes
    from .packer import Packer
    from .records import (
        POLICIES,
        After,
        EndFacts,
        EndKind,
        GiveUp,
        GpuFacts,
        GpuSample,
        Guard,
        Hold,
        Order,
        PackRequest,
        PackSettings,
        PolicyName,
        Start,
        TaskAsk,
        TaskKey,
        TaskRun,
        TaskSample,
        TaskSpec,
    )
    from .rules.endings import how_ended
    from .rules.estimate.estimator import Estimator
    from .rules.fingerprint import name_software
    from .rules.log_messages import asked_mib, memory_message
    from .rules.preview import Preview, preview_run
    from .simulator.requests import SimulationRequest, check_picture, draw_run, run_simulation, write_picture
    from .task_history import History, Writer, read_history, read_site

__getattr__, __all__ = exports(
    __name__,
    modules=["history_queries"],
    names={
        "bookings": ["Bookings"],
        "bookings_reader": ["read_bookings"],
        "fingerprint": ["key_of"],
        "journal": ["DECISIONS", "Journal", "explain_task", "read_journal"],
        "outside_sizes": ["OutsideSizes"],
        "packer": ["Packer"],
        "records": [
            "After",
            "EndFacts",
            "EndKind",
            "GiveUp",
            "GpuFacts",
            "GpuSample",
            "Guard",
            "Hold",
            "Order",
            "POLICIES",
            "PackRequest",
            "PackSettings",
            "PolicyName",
            "Start",
            "TaskAsk",
            "TaskKey",
            "TaskRun",
            "TaskSample",
            "TaskSpec",
        ],
        "rules.endings": ["how_ended"],
        "rules.estimate.estimator": ["Estimator"],
        "rules.fingerprint": ["name_software"],
        "rules.log_messages": ["asked_mib", "memory_message"],
        "rules.preview": ["Preview", "preview_run"],
        "simulator.requests": ["SimulationRequest", "check_picture", "draw_run", "run_simulation", "write_picture"],
        "node_sizes": ["NodeSizes"],
        "task_history": ["History", "Writer", "read_history", "read_site"],
    },
)

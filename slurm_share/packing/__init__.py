"""Packing: places unlike tasks on the GPUs of a user's allocation by booked memory, and learns their sizes."""

from __future__ import annotations

from ..core.lazy import exports

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from .fingerprint import key_of
    from .records import (
        POLICIES,
        GpuFacts,
        Guard,
        Order,
        PackRequest,
        PackSettings,
        PolicyName,
        TaskAsk,
        TaskRun,
        TaskSpec,
    )
    from .rules.estimate.chain import Estimator
    from .rules.messages import GPU_MEMORY_MESSAGES, asked_mib
    from .rules.preview import Preview, look_ahead
    from .simulator.requests import SimulationRequest, run_simulation, write_picture
    from .task_history import read_history

__getattr__, __all__ = exports(
    __name__,
    names={
        "fingerprint": ["key_of"],
        "records": [
            "GpuFacts",
            "Guard",
            "Order",
            "POLICIES",
            "PackRequest",
            "PackSettings",
            "PolicyName",
            "TaskAsk",
            "TaskRun",
            "TaskSpec",
        ],
        "rules.estimate.chain": ["Estimator"],
        "rules.messages": ["GPU_MEMORY_MESSAGES", "asked_mib"],
        "simulator.requests": ["SimulationRequest", "run_simulation", "write_picture"],
        "rules.preview": ["Preview", "look_ahead"],
        "task_history": ["read_history"],
    },
)

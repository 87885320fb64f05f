"""Packing: places unlike tasks on the GPUs of a user's allocation by booked memory, and learns their sizes."""

from __future__ import annotations

from ..core.lazy import exports

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from .records import POLICIES, Guard, Order, PackRequest, PackSettings, PolicyName, TaskSpec
    from .rules.messages import GPU_MEMORY_MESSAGES, asked_mib
    from .simulator.requests import SimulationRequest, run_simulation, write_picture

__getattr__, __all__ = exports(
    __name__,
    names={
        "records": ["Guard", "Order", "POLICIES", "PackRequest", "PackSettings", "PolicyName", "TaskSpec"],
        "rules.messages": ["GPU_MEMORY_MESSAGES", "asked_mib"],
        "simulator.requests": ["SimulationRequest", "run_simulation", "write_picture"],
    },
)

"""The columns of nodes, users, jobs, GPUs, processes and advice: one table for text, TSV and the dashboard.

`Column` says how a quantity is read from a row, its unit, its text and which outputs have it. llload's tables and plain
lines, TSV and CSV, and the dashboard's tables, filters, help and choice of columns are made from them.
"""

from __future__ import annotations

from ...core.lazy import exports

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from .advice_columns import ADVICE
    from .base import REST, Column, Raw, shown_in
    from .gpu_columns import GPUS
    from .job_columns import JOBS
    from .node_columns import NODES
    from .process_columns import PROCESSES
    from .user_columns import USERS

# llload's table of nodes needs no other table: each is loaded when it is first used.
__getattr__, __all__ = exports(
    __name__,
    names={
        "advice_columns": ["ADVICE"],
        "base": ["REST", "Column", "Raw", "shown_in"],
        "gpu_columns": ["GPUS"],
        "job_columns": ["JOBS"],
        "node_columns": ["NODES"],
        "process_columns": ["PROCESSES"],
        "user_columns": ["USERS"],
    },
)

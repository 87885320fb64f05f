"""The columns of nodes, users, jobs, GPUs, processes and advice: one table for text, TSV and the dashboard.

`Column` says how a quantity is read from a row, its unit, its text and which outputs have it. llload's tables and plain
lines, TSV and CSV, the dashboard's tables, filters, help and choice of columns are made of them.
"""

from .advice_columns import COLUMNS as ADVICE
from .base import REST, Column, Raw, shown_in
from .gpu_columns import COLUMNS as GPUS
from .job_columns import COLUMNS as JOBS
from .node_columns import COLUMNS as NODES
from .process_columns import COLUMNS as PROCESSES
from .user_columns import COLUMNS as USERS

__all__ = ["ADVICE", "GPUS", "JOBS", "NODES", "PROCESSES", "REST", "USERS", "Column", "Raw", "shown_in"]

"""The columns that the tables of jobs and of users have in common. Each table gives the description, and which columns
go first if there is no room."""

from __future__ import annotations

from ..rules.job_rows import UsageRow
from ..text import (
    NONE,
    gb,
    number,
    share,
    summed_count,
    summed_load,
    summed_memory,
    summed_percent,
    worst,
)
from .base import Column

GPUS: Column[UsageRow] = Column(
    "gpus", "GPUS", "",
    text=lambda row: NONE if row.is_waiting else number(row.gpus),
    value=lambda row: row.gpus,
    right=True, least=4, most=7, sorts_down=True,
)  # fmt: skip
IDLE: Column[UsageRow] = Column(
    "gpus_idle", "IDLE", "",
    text=lambda row: NONE if row.has_no_gpu or not row.node_names else summed_count(row.idle_gpus),
    value=lambda row: row.idle_gpus.value if row.gpus or row.held else None,
    letter=lambda row: "H" if row.idle_gpus.value else "",
    right=True, least=4, most=5, goes=1, alias=("idle",), sorts_down=True,
)  # fmt: skip
GPU: Column[UsageRow] = Column(
    "gpu", "GPU", "",
    text=lambda row: NONE if row.has_no_gpu else summed_percent(row.gpu_percent, is_whole=row.is_whole),
    value=lambda row: row.gpu_percent, bar=lambda row: share(row.gpu_percent),
    unit="%", right=True, least=9, most=18, sorts_down=True,
)  # fmt: skip
GPU_LOAD: Column[UsageRow] = Column(
    "gpu_load", "GPULOAD", "",
    text=lambda row: NONE if row.has_no_gpu else summed_load(row.gpu_load), value=lambda row: row.gpu_load.value,
    twin="gpu", right=True, least=5, most=9, sorts_down=True,
)  # fmt: skip
GPU_MEMORY: Column[UsageRow] = Column(
    "gmem", "GPUMEM", "",
    text=lambda row: NONE if row.has_no_gpu else summed_memory(row.gpu_memory),
    value=lambda row: gb(row.gpu_memory.value),
    unit="GB", right=True, least=6, most=11, alias=("gpumem",), sorts_down=True,
)  # fmt: skip
CPU: Column[UsageRow] = Column(
    "cpu", "CPU", "",
    text=lambda row: NONE if row.is_waiting else summed_percent(row.cpu_percent, is_whole=row.is_whole),
    value=lambda row: row.cpu_percent, bar=lambda row: share(row.cpu_percent),
    unit="%", right=True, least=9, most=18, sorts_down=True,
)  # fmt: skip
MEMORY: Column[UsageRow] = Column(
    "mem", "MEMORY", "",
    text=lambda row: NONE if row.is_waiting else summed_memory(row.memory), value=lambda row: gb(row.memory.value),
    unit="GB", right=True, least=7, most=11, alias=("memory",), sorts_down=True,
)  # fmt: skip
MEMORY_FULL = 90.0
"""Percent of the requested memory from which it is marked."""
REQUESTED_MEMORY: Column[UsageRow] = Column(
    "reqmem", "REQMEM", "",
    text=lambda row: summed_memory(row.memory_requested), value=lambda row: gb(row.memory_requested.value),
    unit="GB", right=True, least=6, most=11, sorts_down=True,
)  # fmt: skip
USED_MEMORY: Column[UsageRow] = Column(
    "memuse", "MEMUSE", "",
    text=lambda row: NONE if row.is_waiting else summed_percent(row.memory_percent, is_whole=row.is_whole),
    value=lambda row: row.memory_percent,
    letter=lambda row: "H" if (row.memory_percent or 0.0) >= MEMORY_FULL else "",
    unit="%", right=True, least=6, most=7, sorts_down=True,
)  # fmt: skip
CPUS: Column[UsageRow] = Column(
    "cpus", "CPUS", "",
    text=lambda row: number(row.cpus_requested), value=lambda row: row.cpus_requested,
    right=True, least=4, most=7, sorts_down=True,
)  # fmt: skip
NOTE: Column[UsageRow] = Column(
    "note", "NOTE", "",
    text=lambda row: " ".join(row.codes), value=lambda row: " ".join(row.codes), letter=lambda row: worst(row.codes),
    whole=lambda row: " ".join(row.codes), least=5, alias=("flags",), sorts_down=True,
)  # fmt: skip

"""The columns that the tables of jobs and of users have in common. Each table gives the description, and which columns
go first if there is no room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from ..rules.job_rows import UsageRow
from ..text import (
    ABOUT_IDLE,
    NONE,
    UNKNOWN,
    gb,
    letter_of,
    share,
    summed_count,
    summed_load,
    summed_memory,
    summed_percent,
    worst,
)
from .base import Column

Row = TypeVar("Row", bound=UsageRow)


class UsageColumns(Generic[Row]):
    """The common columns, for the rows of one table."""

    def __init__(self, has_no_gpu: Callable[[Row], bool]) -> None:
        self._has_no_gpu = has_no_gpu

    def gpus(self, doc: str, goes: int) -> Column[Row]:
        """Return the column of GPUs that Slurm gave."""
        return Column(
            "gpus", "GPUS", doc,
            text=lambda row: NONE if row.is_waiting else UNKNOWN if row.gpus is None else str(row.gpus),
            value=lambda row: row.gpus,
            right=True, least=4, most=7, goes=goes, sorts_down=True,
        )  # fmt: skip

    def idle(self, doc: str) -> Column[Row]:
        """Return the column of idle GPUs."""
        return Column(
            "gpus_idle", "IDLE", f"{doc}; {ABOUT_IDLE}",
            text=lambda row: NONE if self._has_no_gpu(row) or not row.node_names else summed_count(row.idle_gpus),
            value=lambda row: row.idle_gpus.value if row.gpus or row.held else None,
            right=True, least=4, most=5, goes=1, letter=lambda row: "L" if row.idle_gpus.value else "",
            alias=("idle",), sorts_down=True,
        )  # fmt: skip

    def gpu(self, doc: str) -> Column[Row]:
        """Return the column of the GPUs' load in percent."""
        return Column(
            "gpu", "GPU", doc,
            text=lambda row: (
                NONE if self._has_no_gpu(row) else summed_percent(row.gpu_percent, is_whole=row.is_whole)
            ),
            value=lambda row: row.gpu_percent,
            bar=lambda row: share(row.gpu_percent),
            unit="%", right=True, least=9, most=18, letter=lambda row: letter_of(row.codes, "g"), sorts_down=True,
        )  # fmt: skip

    def gpu_load(self, doc: str, goes: int) -> Column[Row]:
        """Return the column of the GPUs' load as a sum."""
        return Column(
            "gpu_load", "GPULOAD", doc,
            text=lambda row: NONE if self._has_no_gpu(row) else summed_load(row.gpu_load),
            value=lambda row: row.gpu_load.value,
            twin="gpu", right=True, least=5, most=9, goes=goes, sorts_down=True,
        )  # fmt: skip

    def gmem(self, doc: str, goes: int) -> Column[Row]:
        """Return the column of GPU memory."""
        return Column(
            "gmem", "GPUMEM", doc,
            text=lambda row: NONE if self._has_no_gpu(row) else summed_memory(row.gpu_memory),
            value=lambda row: gb(row.gpu_memory.value),
            unit="GB", right=True, least=6, most=11, goes=goes, alias=("gpumem",), sorts_down=True,
        )  # fmt: skip

    def cpu(self, doc: str) -> Column[Row]:
        """Return the column of CPU load in percent."""
        return Column(
            "cpu", "CPU", doc,
            text=lambda row: NONE if row.is_waiting else summed_percent(row.cpu_percent, is_whole=row.is_whole),
            value=lambda row: row.cpu_percent,
            bar=lambda row: share(row.cpu_percent),
            unit="%", right=True, least=9, most=18, letter=lambda row: letter_of(row.codes, "c"), sorts_down=True,
        )  # fmt: skip

    def mem(self, doc: str, goes: int) -> Column[Row]:
        """Return the column of host memory."""
        return Column(
            "mem", "MEMORY", doc,
            text=lambda row: NONE if row.is_waiting else summed_memory(row.memory),
            value=lambda row: gb(row.memory.value),
            unit="GB", right=True, least=7, most=11, goes=goes, alias=("memory",), sorts_down=True,
        )  # fmt: skip

    def note(self, doc: str, goes: int, most: int) -> Column[Row]:
        """Return the column of the nodes' flags."""
        return Column(
            "note", "NOTE", doc,
            text=lambda row: " ".join(row.codes),
            value=lambda row: " ".join(row.codes),
            least=5, most=most, goes=goes, letter=lambda row: worst(row.codes), alias=("flags",), sorts_down=True,
        )  # fmt: skip

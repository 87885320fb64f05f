"""The report for programs: JSON (schema 1), and CSV with a row for each task or GPU."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import to_builtins

from ..load import Value, values
from ..usage import GpuUse, TaskUse
from .records import SCHEMA, JobFigures, JobReport
from .rules import figures as adding
from .rules.next_time import NextTime

GPU_HEADINGS = (
    "report", "node", "gpu", "uuid", "name", "simulated", "held_s", "measured_s", "utilization_percent", "sm_percent",
    "dram_percent", "own_sm_percent", "memory_peak_mib", "memory_total_mib", "memory_cap_mib", "memory_booked_mib",
    "idle_s", "idle_longest_s", "was_shared", "energy_j", "energy_idle_j", "energy_rule", "device_j",
)  # fmt: skip
TASK_HEADINGS = (
    "report", "task", "attempt", "step", "outcome", "slot", "began", "seconds", "cpu_s", "memory_peak_mib", "gpu",
    "uuid", "gpu_memory_peak_mib", "gpu_memory_cap_mib", "gpu_memory_booked_mib", "sm_percent", "gpu_idle_s",
    "energy_j", "energy_rule",
)  # fmt: skip
"""Columns in an order on which programs may rely: a new column comes last."""


def as_json(found: Sequence[tuple[JobReport, JobFigures, NextTime]]) -> str:
    """Return the documented JSON form. Unknown is null, with its reason in `unknown`."""
    reports = []
    for report, sums, then in found:
        built: dict[str, Any] = to_builtins(report)
        built["figures"] = {
            **to_builtins(sums),
            "cpu_percent": _rounded(sums.cpu_percent),
            "memory_percent": _rounded(sums.memory_percent),
            "gpu_memory_percent": _rounded(sums.gpu_memory_percent),
        }
        built["next"] = to_builtins(then)
        reports.append(built)
    # ASCII: names that users choose may hold characters that reorder or hide what a terminal shows.
    return json.dumps({"schema": SCHEMA, "reports": reports}, indent=2)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def as_csv(reports: Iterable[JobReport]) -> Iterator[str]:
    """Yield lines of CSV: a row for each attempt at a task if tasks are known, else one for each GPU."""
    several = tuple(reports)
    tasks = [(report.title, task) for report in several for task in adding.all_tasks(report)]
    if tasks:
        yield from values.as_csv([TASK_HEADINGS, *(_task_row(title, task) for title, task in tasks)])
        return
    rows = [
        _gpu_row(report.title, one.node, one.use)
        for report in several
        for one in adding.gpus_of(report.uses, report.now)
    ]
    yield from values.as_csv([GPU_HEADINGS, *rows])


def _gpu_row(title: str, node: str, use: GpuUse) -> list[Value]:
    energy = use.energy
    return [
        title, node, use.index, use.uuid, use.name, use.simulated, use.held_s, use.measured_s, use.utilization_percent,
        use.sm_percent, use.dram_percent, use.own_sm_percent, use.memory_peak_mib, use.memory_total_mib,
        use.memory_cap_mib, use.memory_booked_mib, use.idle_s, use.idle_longest_s, use.was_shared,
        None if energy is None else energy.joules, None if energy is None else energy.idle_j,
        None if energy is None else energy.rule, use.device_j,
    ]  # fmt: skip


def _task_row(title: str, task: TaskUse) -> list[Value]:
    use = task.gpus[0] if task.gpus else None
    energy = None if use is None else use.energy
    return [
        title, task.task, task.attempt, task.step, task.outcome, task.slot, task.began, task.seconds, task.cpu_s,
        task.memory_peak_mib,
        *(
            [None] * 9
            if use is None
            else [
                use.index, use.uuid, use.memory_peak_mib, use.memory_cap_mib, use.memory_booked_mib, use.own_sm_percent,
                use.idle_s, None if energy is None else energy.joules, None if energy is None else energy.rule,
            ]
        ),
    ]  # fmt: skip

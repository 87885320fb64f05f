"""The table of GPUs: who is on each, how many tasks, memory and load; llload's table of GPUs with bars."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from slurm_share.load.snapshot import GpuLoad
from slurm_share.load.text import why_silent
from slurm_share.node.gpu_figures import Activity

from ..column import Column, Unit
from ..gpu_rows import GpuRow, SlotRow, slot_rows
from ..history import History, Of
from ..widgets import signs
from ..wire import Subject
from .cells import (
    ABOUT_NOTE,
    NONE,
    SPARK_VALUES,
    UNKNOWN,
    gb,
    gigabytes,
    joined,
    known,
    letter_of,
    named,
    percent_words,
    share,
    worst,
)

STEPS, FREE, OVER = "▁▂▃▄▅▆▇█", "·", "!"
PLAIN_STEPS, PLAIN_FREE = "12345678", "."
"""The same for a terminal that has no more than ASCII."""
OF_CAP_FULL = 95.0
"""Percent of its cap, from which a task is about to end for want of memory."""


def load(row: GpuRow) -> str:
    """Over 5 minutes: 1.00 is always busy."""
    return UNKNOWN if row.gpu is None or row.gpu.load_percent_5min is None else f"{row.gpu.load_percent_5min / 100:.2f}"


def by(row: GpuRow) -> str:
    """What its load rests on."""
    if row.gpu is None:
        return UNKNOWN
    return (
        "sm" if row.gpu.sm_percent_windows is not None else "util" if row.gpu.load_percent_5min is not None else UNKNOWN
    )


def now_percent(row: GpuRow) -> float | None:
    """SM activity where the driver gives it, else utilisation."""
    if row.gpu is None:
        return None
    return row.gpu.load_percent


def users(row: GpuRow) -> str:
    """Who has a task on it; + for others who are not shown."""
    if row.gpu is None or not row.knows_tasks:
        return UNKNOWN
    found = ",".join(named(user) for user in sorted({one.user for one in row.tasks}))
    if row.gpu.others_mib:
        return f"{found}+others" if found else "others"
    return found or NONE


def jobs(row: GpuRow) -> str:
    """Slurm's numbers of the jobs on it."""
    return UNKNOWN if not row.knows_tasks else joined(sorted({one.job for one in row.tasks if one.job is not None}))


def memory(row: GpuRow) -> str:
    """In use / all of it."""
    if row.gpu is None:
        return UNKNOWN
    used, total = gigabytes(row.gpu.memory_used_mib), gigabytes(row.gpu.memory_total_mib)
    return f"{used.removesuffix('GB')}/{total}" if used[-2:] == total[-2:] else f"{used}/{total}"


def slots(row: GpuRow) -> str:
    """One sign for each slot of a share and each task without: memory against its cap."""
    if not row.knows_tasks:
        return UNKNOWN
    return "".join(_sign(one) for one in slot_rows(row) if not one.is_mps) or NONE


def _sign(row: SlotRow) -> str:
    if row.process is None:
        return PLAIN_FREE if signs.are_plain() else FREE
    part = row.process.of_cap
    if part is None:
        return UNKNOWN
    steps = PLAIN_STEPS if signs.are_plain() else STEPS
    return OVER if row.cap_mib and part >= OF_CAP_FULL else steps[max(0, min(7, int(part * 8 / 100)))]


def note(row: GpuRow) -> str:
    """Letters, a GPU's problem, who else is on it, why a node is silent: as llload's last column."""
    node = row.node.node
    if row.gpu is None:
        if node.snapshot is None:
            return " ".join([*row.codes, why_silent(node)])
        sums = node.snapshot.gpu_sums
        if sums is not None:
            return f"{sums.count} GPUs, not each by itself from this source"
        if node.snapshot.hidden_gpus:
            return f"{node.snapshot.hidden_gpus} GPUs that only others use"
        return " ".join([*row.codes, "no GPU answers"])
    said = [code for code in row.codes if code[0] == "v"]
    if row.gpu.mig_parent:
        said.append("MIG: its instances follow")
    if row.gpu.problem is not None:
        said.append(f"n! {row.gpu.problem}")
    if row.gpu.others_mib:
        said.append(f"others have {gigabytes(row.gpu.others_mib)}")
    return " ".join(said)


def _measured(value: Callable[[GpuLoad], float | None], row: GpuRow) -> float | None:
    return None if row.gpu is None else value(row.gpu)


def _counter(value: Callable[[Activity], float | None], row: GpuRow) -> str:
    """A driver that has GPM for this GPU gives all of it or says why not; one that has none has nothing to say."""
    if row.gpu is None:
        return UNKNOWN
    none = NONE if row.gpu.sm_percent_windows is None and row.gpu.activity == Activity() else UNKNOWN
    return percent_words(value(row.gpu.activity), none)


def columns(history: History) -> tuple[Column[GpuRow], ...]:
    """llload's order; the bars first where it is narrow."""

    steps, free = (PLAIN_STEPS, PLAIN_FREE) if signs.are_plain() else (STEPS, FREE)

    def spark(of: Of, row: GpuRow) -> tuple[float | None, ...]:
        if row.gpu is None:
            return ()
        return history.spark(Subject(node=row.node.name, gpu=row.gpu.uuid), of, SPARK_VALUES)

    def number(
        id: str, heading: str, doc: str, text: Callable[[GpuRow], str], value: Callable[[GpuLoad], float | None],
        goes: int, most: int = 7, unit: Unit = "",
    ) -> Column[GpuRow]:  # fmt: skip
        return Column(
            id, heading, doc, text=text, value=partial(_measured, value), right=True,
            least=max(4, len(heading)), most=most, goes=goes, unit=unit, sorts_down=True,
        )  # fmt: skip

    return (
        Column(
            "hostname", "HOSTNAME", "the node, as Slurm calls it",
            text=lambda row: named(row.node.name),
            value=lambda row: row.node.name,
            least=8, most=32, alias=("node", "host"),
        ),
        Column(
            "gpu", "GPU", "its number on the node; of a MIG instance with the profile",
            text=lambda row: row.name or UNKNOWN,
            value=lambda row: None if row.gpu is None else row.gpu.index,
            twin="load", least=3, most=12, alias=("index",),
        ),
        Column(
            "user", "USERS", "who has a task on it",
            text=users,
            value=lambda row: known(users(row)),
            details=True, least=6, most=20, goes=2, alias=("users",),
        ),
        Column(
            "job", "JOBS", "Slurm's numbers of the jobs on it",
            text=jobs,
            value=lambda row: known(jobs(row)),
            details=True, least=5, most=20, goes=5, alias=("jobs",),
        ),
        Column(
            "tasks", "TASKS", "programs on it; MPS's own are none",
            text=lambda row: str(len(row.tasks)) if row.knows_tasks else UNKNOWN,
            value=lambda row: len(row.tasks) if row.knows_tasks else None,
            details=True, right=True, least=5, most=6, goes=4, sorts_down=True,
        ),
        Column(
            "slots", "SLOTS",
            "a sign for each slot: how full its memory is against its cap "
            f"({steps[0]} to {steps[-1]}, {OVER} above 95 percent), {free} free",
            text=slots,
            value=lambda row: known(slots(row)),
            details=True, least=5, most=24, goes=3,
        ),
        Column(
            "load", "LOAD", "mean over 5 minutes: 1.00 is always busy; filters take percent",
            text=load,
            value=lambda row: None if row.gpu is None else row.gpu.load_percent_5min,
            bar=lambda row: None if row.gpu is None else share(row.gpu.load_percent_5min),
            unit="%", right=True, least=9, most=20, sorts_down=True,
        ),
        Column(
            "by", "BY", "what the load rests on: sm is SM activity, util is utilisation, an upper bound of it",
            text=by,
            value=lambda row: known(by(row)),
            least=4, most=4,
        ),
        Column(
            "mem", "MEM", "memory in use, in percent",
            text=lambda row: percent_words(row.memory_percent),
            value=lambda row: row.memory_percent,
            bar=lambda row: share(row.memory_percent),
            unit="%", twin="memory_used", right=True, least=9, most=20, sorts_down=True,
            letter=lambda row: letter_of(row.codes, "v"), alias=("gmem",),
        ),
        Column(
            "memory_used", "GPUMEM", "memory in use / all of it",
            text=memory,
            value=lambda row: None if row.gpu is None else gb(row.gpu.memory_used_mib),
            unit="GB", twin="mem", right=True, least=9, most=14, goes=1, alias=("gpumem",), sorts_down=True,
        ),
        Column(
            "trend", "LOAD 10 MIN", "load over the last ten minutes, from 0 to 100 percent",
            text=load,
            value=lambda row: None if row.gpu is None else row.gpu.load_percent_5min,
            spark=partial(spark, "gpu_load_percent"),
            unit="%", least=11, most=20, goes=9, sorts_down=True,
        ),
        number("now", "NOW", "load since the sample before, percent", lambda row: percent_words(now_percent(row)),
               lambda gpu: gpu.load_percent, 6, unit="%"),
        number("occ", "OCC", "warps resident, of those that fit, percent (occupancy)",
               partial(_counter, lambda one: one.occupancy_percent), lambda gpu: gpu.activity.occupancy_percent, 11,
               unit="%"),
        number("tensor", "TENSOR", "tensor cores at work, percent",
               partial(_counter, lambda one: one.tensor_percent), lambda gpu: gpu.activity.tensor_percent, 12,
               unit="%"),
        number("dram", "DRAM", "memory bandwidth in use, percent",
               partial(_counter, lambda one: one.dram_percent), lambda gpu: gpu.activity.dram_percent, 10,
               unit="%"),
        number("watt", "WATT", "power, W",
               lambda row: UNKNOWN if row.gpu is None or row.gpu.power_w is None else f"{row.gpu.power_w:.0f}",
               lambda gpu: gpu.power_w, 7),
        number("temp", "TEMP", "temperature, degrees Celsius",
               lambda row: UNKNOWN if row.gpu is None or row.gpu.temperature_c is None
               else f"{row.gpu.temperature_c}C",
               lambda gpu: gpu.temperature_c, 8),
        Column(
            "note", "NOTE", f"a GPU's problem, others' memory on it; {ABOUT_NOTE}",
            text=note,
            value=note,
            least=5, keeps=14, most=44,
            letter=lambda row: "!" if row.gpu is not None and row.gpu.problem else worst(row.codes),
            alias=("flags",), sorts_down=True,
        ),
        Column(
            "name", "NAME", "its model",
            text=lambda row: UNKNOWN if row.gpu is None else row.gpu.name,
            value=lambda row: None if row.gpu is None else row.gpu.name,
            least=8, most=28, goes=13, alias=("model",),
        ),
        number("load1", "1MIN", "load over 1 minute",
               lambda row: UNKNOWN if row.gpu is None or (means := row.gpu.load_percent_windows) is None
               else f"{means.m1 / 100:.2f}",
               lambda gpu: None if gpu.load_percent_windows is None else gpu.load_percent_windows.m1, 14, unit="%"),
        number("load15", "15MIN", "load over 15 minutes",
               lambda row: UNKNOWN if row.gpu is None or (means := row.gpu.load_percent_windows) is None
               else f"{means.m15 / 100:.2f}",
               lambda gpu: None if gpu.load_percent_windows is None else gpu.load_percent_windows.m15, 15, unit="%"),
        Column(
            "uuid", "UUID", "the driver's own name of it",
            text=lambda row: UNKNOWN if row.gpu is None else row.gpu.uuid,
            value=lambda row: None if row.gpu is None else row.gpu.uuid,
            least=8, most=44, goes=16, shown=False,
        ),
    )  # fmt: skip

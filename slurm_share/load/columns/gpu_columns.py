"""The columns of a GPU or a MIG instance. A new figure of `GpuLoad` needs one line here: `_figure(...)` in GPUS.

llload --detail then shows it in tables and plain lines, TSV and CSV have it, and the dashboard has it in its table of
GPUs with filters, help and choice of columns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import takewhile

from ...node.gpu_figures import Activity, Means
from ..rules import rates
from ..rules.flags import MEANINGS
from ..rules.gpu_rows import GpuRow
from ..rules.visible import BEFORE
from ..snapshot import GpuLoad
from ..text import (
    ABOUT_NOTE,
    NONE,
    UNKNOWN,
    first_of,
    gb,
    gigabytes,
    joined,
    known,
    letter_of,
    load_text,
    moment_text,
    named,
    number,
    percent_text,
    share,
    why_silent,
    worst,
)
from .base import DASHBOARD, EVERYWHERE, GOES_FIRST, NOT_PLAIN, ON_SCREEN, VALUES, Column, Output, Raw, Unit

_UNITS: dict[str, Unit] = {"_percent": "%", "_mib": "GB", "_s": "s", "_mhz": "", "_w": "", "_c": ""}
"""End of a field's name -> unit of its column. Columns in megahertz, watts and degrees name the unit in `doc`."""
OF_CAP_FULL = 95.0
"""Percent of its cap from which a task is about to run out of memory."""


# --- Texts of cells ---------------------------------------------------------------------------------------------------


def load(row: GpuRow) -> str:
    """Return the mean load over 5 minutes as text; 1.00 is always busy."""
    return UNKNOWN if row.gpu is None else load_text(_hundredth(row.gpu.load_percent_5min))


def by(row: GpuRow) -> str:
    """Return the counter on which the load rests: sm or util."""
    if row.gpu is None or row.gpu.load_percent_5min is None:
        return UNKNOWN
    return "util" if row.gpu.sm_percent_windows is None else "sm"


def now_percent(row: GpuRow) -> float | None:
    """Return the SM activity since the sample before; utilisation if the driver does not report it."""
    return None if row.gpu is None else row.gpu.load_percent


def users(row: GpuRow) -> str:
    """Return the users with a task on it, and those whose jobs hold it; for a silent node those in Slurm's queue.
    `+others` stands for users who are not shown."""
    names = _names(row)
    if names is None:
        return UNKNOWN
    found = ",".join(map(named, names))
    if row.gpu is not None and row.gpu.others_mib:
        return f"{found}+others" if found else "others"
    return found or NONE


def jobs(row: GpuRow) -> str:
    """Return the jobs with a task on it, and those that hold it, as squeue writes them; for a silent node those in
    Slurm's queue."""
    if row.gpu is None:
        return joined(row.node.queued_jobs) if row.node.queued_jobs or row.node.figures.cpus_used == 0 else UNKNOWN
    numbers = _numbers(row)
    return UNKNOWN if numbers is None else joined(map(row.node.job_name, numbers))


def _names(row: GpuRow) -> list[str] | None:
    if row.gpu is None:
        return list(row.node.queued_users) or ([] if row.node.figures.cpus_used == 0 else None)
    names = {*(row.users or ()), *(one.user for one in row.holders)}
    return None if row.users is None and not names else sorted(names)


def _numbers(row: GpuRow) -> list[int] | None:
    numbers = {*(row.jobs or ()), *(one.job for one in row.holders)}
    return None if row.jobs is None and not numbers else sorted(numbers)


def job_keys(row: GpuRow) -> str | None:
    """Return the names of its jobs for filters: as squeue writes them, and Slurm's numbers; None: not known."""
    if row.gpu is None:
        return row.node.queued_keys or None
    numbers = _numbers(row)
    return row.node.job_keys(numbers) if numbers else known(jobs(row))


def held_idle(row: GpuRow) -> str:
    """Return which jobs hold the GPU without a process on it; empty: none, or not known."""
    there = set(row.jobs or ())
    if not row.knows_tasks:
        return ""
    jobs = ",".join(row.node.job_name(one.job) for one in row.holders if one.job not in there)
    return f"held by {jobs}" if jobs else ""


def holder(row: GpuRow) -> str:
    """Return who holds the GPU without a process on it: held by alice, job 4711; empty: nobody, or not known."""
    if not held_idle(row) or row.jobs:
        return ""
    users = ",".join(dict.fromkeys(named(one.user) for one in row.holders))
    jobs = ",".join(row.node.job_name(one.job) for one in row.holders)
    return f"held by {users}, job {jobs}"


def memory(row: GpuRow) -> str:
    """Return the memory as text: in use / total."""
    if row.gpu is None:
        return UNKNOWN
    used, total = gigabytes(row.gpu.memory_used_mib), gigabytes(row.gpu.memory_total_mib)
    return f"{used.removesuffix('GB')}/{total}" if used[-2:] == total[-2:] else f"{used}/{total}"


def booked(row: GpuRow) -> str:
    """Return the memory that packed runs have booked on it; empty if none has."""
    return "" if row.gpu is None or row.gpu.booked_mib is None else gigabytes(row.gpu.booked_mib)


def _work(row: GpuRow) -> rates.RateSum | None:
    return rates.of_gpu(row.gpu, row.tasks)


def held(row: GpuRow) -> list[str]:
    """Return the tasks for which packed runs keep it free, such as: held for task 17 since 14:02."""
    gpu, node = row.gpu, row.node.node
    taken = 0.0 if node.snapshot is None else node.snapshot.taken
    return [
        f"held for task {one.held_for}" + (f" since {moment_text(one.held_since, taken)}" if one.held_since else "")
        for one in ([] if gpu is None else gpu.bookings)
        if one.held_for is not None
    ]


def _others_mib(row: GpuRow) -> int | None:
    """Return the memory of processes that are not shown; None from a source without processes."""
    snapshot = row.node.node.snapshot
    return None if row.gpu is None or snapshot is None or not snapshot.knows_processes else row.gpu.others_mib


def _memory_free_mib(gpu: GpuLoad) -> int | None:
    total, used = gpu.memory_total_mib, gpu.memory_used_mib
    return None if total is None or used is None else total - used


def _memory_triple(row: GpuRow) -> tuple[str, str, str]:
    if row.gpu is None:
        return (UNKNOWN, UNKNOWN, UNKNOWN)
    return (
        gigabytes(row.gpu.memory_total_mib),
        gigabytes(row.gpu.memory_used_mib),
        gigabytes(_memory_free_mib(row.gpu)),
    )


def _memory_plain(row: GpuRow) -> str:
    total, used, _ = ("unknown" if cell == UNKNOWN else cell for cell in _memory_triple(row))
    return f"memory {used} of {total} used"


def note(row: GpuRow) -> str:
    """Return the note of the dashboard: flags, the GPU's problem, others' memory, or why the node is silent."""
    node = row.node.node
    if row.gpu is not None:
        return llload_note(row)
    if node.snapshot is None:
        return " ".join([*row.codes, why_silent(node)])
    sums = node.snapshot.gpu_sums
    if sums is not None:
        return f"{sums.count} GPUs; this source has only their sums"
    if node.snapshot.hidden_gpus:
        return f"{node.snapshot.hidden_gpus} GPUs that only others use"
    return " ".join([*row.codes, "no GPU answers"])


def _note_whole(row: GpuRow) -> str:
    """Return the begin of the note that is never cut: the flags, and the first of the jobs that hold the GPU."""
    codes = takewhile(MEANINGS.__contains__, note(row).split())
    return " ".join([*codes, *([first_of(held_idle(row))] if held_idle(row) else [])])


def llload_note(row: GpuRow) -> str:
    """Return the note of llload's table, which has no lines for silent nodes."""
    return "" if row.gpu is None else _note_of(row, row.gpu, [code for code in row.codes if code[0] in "iv"])


def _note_of(row: GpuRow, gpu: GpuLoad, said: list[str]) -> str:
    if gpu.mig_parent:
        said.append("MIG: its instances follow")
    if gpu.problem is not None:
        said.append(f"n! {gpu.problem}")
    if gpu.is_host_memory:
        said.append("memory of the node")
    said += [held_idle(row)] if held_idle(row) else []
    said += held(row)
    if gpu.others_mib:
        said.append(f"others have {gigabytes(gpu.others_mib)}")
    return " ".join(said)


# --- Making columns ---------------------------------------------------------------------------------------------------


def _of_gpu(read: Callable[[GpuLoad], float | None], row: GpuRow) -> float | None:
    return None if row.gpu is None else read(row.gpu)


def _written(read: Callable[[GpuLoad], float | None], write: Callable[[float], str], row: GpuRow) -> str:
    value = _of_gpu(read, row)
    return UNKNOWN if value is None else write(value)


def _counter(field: str, row: GpuRow) -> str:
    """Return a GPM counter as text: `-` if the driver has no GPM for this GPU, `?` if it has and did not report it."""
    if row.gpu is None:
        return UNKNOWN
    has_none = row.gpu.sm_percent_windows is None and row.gpu.activity == Activity()
    none = NONE if has_none and row.gpu.unknown.get("activity") != BEFORE else UNKNOWN
    return percent_text(getattr(row.gpu.activity, field), none)


def _figure(
    field: str, heading: str, doc: str, *, id: str = "", sign: str = "",
    outputs: frozenset[Output] = EVERYWHERE, goes: int = GOES_FIRST,
) -> Column[GpuRow]:  # fmt: skip
    """Return the column of a figure of GpuLoad or its Activity. The end of the field's name gives text and unit, the
    rest of the name is the column's id. `sign`: text after the number, for a unit that the end does not give."""
    end, unit = next(((end, unit) for end, unit in _UNITS.items() if field.endswith(end)), ("", ""))
    of_activity = field in Activity.__struct_fields__

    def read(gpu: GpuLoad) -> float | None:
        value: float | None = getattr(gpu.activity if of_activity else gpu, field)
        return value

    def value(gpu: GpuLoad) -> float | None:
        found = read(gpu)
        return gb(found) if unit == "GB" else found

    def write(found: float) -> str:
        return percent_text(found) if unit == "%" else gigabytes(int(found)) if unit == "GB" else f"{found:.0f}{sign}"

    return Column(
        id or field.removesuffix(end), heading, doc,
        text=partial(_counter, field) if of_activity else partial(_written, read, write),
        value=partial(_of_gpu, value), raw=partial(_of_gpu, read), unit=unit, field=field, outputs=outputs,
        right=True, least=max(4, len(heading)), most=max(7, len(heading)), goes=goes, sorts_down=True,
    )  # fmt: skip


def _mean(minutes: int, goes: int) -> Column[GpuRow]:
    """Return the column of the load over 1 or 15 minutes."""

    def read(gpu: GpuLoad) -> float | None:
        means: Means | None = gpu.load_percent_windows
        return None if means is None else means.m1 if minutes == 1 else means.m15

    return Column(
        f"load{minutes}", f"{minutes}MIN", f"load over {minutes} minute{'' if minutes == 1 else 's'}",
        text=lambda row: load_text(_hundredth(_of_gpu(read, row))), value=partial(_of_gpu, read),
        raw=lambda row: _hundredth(_of_gpu(read, row)),
        unit="%", outputs=NOT_PLAIN,
        right=True, least=max(4, len(f"{minutes}MIN")), most=7, goes=goes, sorts_down=True,
    )  # fmt: skip


def _hundredth(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _field(field: str, doc: str, raw: Callable[[GpuLoad], Raw]) -> Column[GpuRow]:
    """Return a column that only TSV and CSV have, from a field of GpuLoad."""

    def value(row: GpuRow) -> Raw:
        return None if row.gpu is None else raw(row.gpu)

    return Column(field, field.upper(), doc, text=lambda row: str(value(row)), value=value, outputs=VALUES)


def _is_idle(row: GpuRow) -> bool | None:
    found: bool | None = None
    for held in row.node.node.held_gpus or ():
        if row.gpu is not None and held.uuid == row.gpu.uuid and held.idle is not None:
            found = held.idle
    return found


# --- The table --------------------------------------------------------------------------------------------------------

GPUS: tuple[Column[GpuRow], ...] = (
    Column(
        "hostname", "HOSTNAME", "the node, as Slurm calls it",
        text=lambda row: named(row.node.name), value=lambda row: row.node.name,
        outputs=ON_SCREEN, least=8, most=32, cut="middle", whole=lambda row: named(row.node.name),
        alias=("node", "host"),
    ),
    Column(
        "gpu", "GPU", "the GPU's number on the node; with the profile for a MIG instance",
        text=lambda row: row.name or UNKNOWN, value=lambda row: None if row.gpu is None else row.gpu.index,
        outputs=NOT_PLAIN, twin="load", least=3, most=12, whole=lambda row: row.name or UNKNOWN, alias=("index",),
    ),
    Column(
        "user", "USERS", "users with a task on the GPU, or whose job holds it",
        text=users, value=lambda row: known(users(row)),
        table=lambda row: UNKNOWN if (found := _names(row)) is None else joined(found),
        field="users", raw=lambda row: ",".join(_names(row) or ()) or None,
        outputs=NOT_PLAIN, needs="details", least=6, keeps=20, most=20, goes=2, cut="list", repeats=True,
        whole=lambda row: first_of(users(row)), alias=("users",),
    ),
    Column(
        "job", "JOBS", "the jobs with a task on the GPU, and those that hold it, as squeue writes them",
        text=jobs, value=job_keys, has_names=True,
        field="jobs", raw=lambda row: ",".join(map(str, _numbers(row) or ())) or None,
        outputs=NOT_PLAIN, needs="details", least=5, keeps=18, most=20, goes=3, cut="list",
        whole=lambda row: first_of(jobs(row)), alias=("jobs",),
    ),
    Column(
        "tasks", "TASKS", "programs on the GPU, without MPS's own",
        text=lambda row: number(row.task_count), value=lambda row: row.task_count,
        outputs=ON_SCREEN, needs="details", right=True, least=5, most=6, goes=14, sorts_down=True,
    ),
    Column(
        "load", "LOAD", "mean over 5 minutes: 1.00 is always busy; filters take percent",
        text=load, value=lambda row: None if row.gpu is None else row.gpu.load_percent_5min,
        field="load5", raw=lambda row: None if row.gpu is None else _hundredth(row.gpu.load_percent_5min),
        bar=lambda row: None if row.gpu is None else share(row.gpu.load_percent_5min),
        unit="%", right=True, least=9, most=20, sorts_down=True,
    ),
    Column(
        "by", "BY", "what the load rests on: sm is SM activity, util is utilisation, an upper bound of it",
        text=by, value=lambda row: known(by(row)), field="load_by", outputs=NOT_PLAIN, least=4, most=4,
    ),
    Column(
        "mem", "MEM", "memory in use, in percent",
        text=lambda row: percent_text(row.memory_percent), value=lambda row: row.memory_percent,
        bar=lambda row: share(row.memory_percent),
        outputs=DASHBOARD, unit="%", twin="memory_used", right=True, least=9, most=20, sorts_down=True,
        letter=lambda row: letter_of(row.codes, "v"), alias=("gmem",),
    ),
    Column(
        "memory_used", "GPUMEM", "memory in use / all of it",
        text=memory, value=lambda row: None if row.gpu is None else gb(row.gpu.memory_used_mib),
        field="memory_used_mib", raw=lambda row: None if row.gpu is None else row.gpu.memory_used_mib,
        triple=_memory_triple, plain=_memory_plain,
        unit="GB", twin="mem", right=True, least=9, most=14, goes=11, alias=("gpumem",), sorts_down=True,
    ),
    Column(
        "booked", "BOOKED", "memory that packed runs (llsub --pack) have booked; shown only if one has",
        text=booked, value=lambda row: None if row.gpu is None else gb(row.gpu.booked_mib),
        field="booked_mib", raw=lambda row: None if row.gpu is None else row.gpu.booked_mib,
        table=lambda row: booked(row) or NONE,
        unit="GB", right=True, least=6, most=9, goes=13, sorts_down=True, unless_empty=True,
    ),
    Column(
        "rate", "RATE",
        "units of work a second, a minute or an hour of its tasks together, as their launcher measures it; shown only "
        "if all of them count the same unit",
        text=lambda row: rates.text(_work(row)), value=lambda row: rates.per_s(_work(row)), field="rate_per_s",
        table=lambda row: rates.text(_work(row), with_source=True) or NONE,
        plain=lambda row: f"rate {rates.text(_work(row), with_source=True)}",
        right=True, least=4, most=18, goes=13, sorts_down=True, unless_empty=True,
    ),
    Column(
        "now", "NOW", "SM activity since the sample before, percent; utilisation if the driver does not report it",
        text=lambda row: percent_text(now_percent(row)), value=now_percent,
        outputs=ON_SCREEN, unit="%", right=True, least=4, most=7, goes=16, sorts_down=True,
    ),
    _figure("occupancy_percent", "OCC", "resident warps in percent of those that fit (occupancy)",
            id="occ", outputs=NOT_PLAIN, goes=21),
    _figure("tensor_percent", "TENSOR", "tensor cores in use, percent", outputs=NOT_PLAIN, goes=22),
    _figure("dram_percent", "DRAM", "memory bandwidth in use, percent", outputs=NOT_PLAIN, goes=20),
    _figure("power_w", "WATT", "power, W", id="watt", outputs=NOT_PLAIN, goes=17),
    _figure("temperature_c", "TEMP", "temperature, degrees Celsius", id="temp", sign="C", outputs=NOT_PLAIN, goes=18),
    Column(
        "note", "NOTE", f"the GPU's problem, the task for which it is kept free, others' memory; {ABOUT_NOTE}",
        text=note, value=note, table=llload_note,
        outputs=ON_SCREEN, least=5, keeps=14, most=14, whole=_note_whole,
        short=lambda row: " ".join(row.codes) or NONE if row.gpu is None else "",
        letter=lambda row: "!" if row.gpu is not None and row.gpu.problem else worst(row.codes),
        alias=("flags",), sorts_down=True,
    ),
    Column(
        "name", "NAME", "the GPU's model",
        text=lambda row: UNKNOWN if row.gpu is None else row.gpu.name,
        value=lambda row: None if row.gpu is None else row.gpu.name,
        plain=lambda row: "" if row.gpu is None else row.gpu.name,
        least=8, most=28, goes=23, cut="middle", repeats=True, alias=("model",),
    ),
    _mean(1, 24),
    _mean(15, 25),
    Column(
        "uuid", "UUID", "the driver's identifier of the GPU",
        text=lambda row: UNKNOWN if row.gpu is None else row.gpu.uuid,
        value=lambda row: None if row.gpu is None else row.gpu.uuid,
        outputs=frozenset({"values", "dashboard"}), least=8, most=44, goes=26, shown=False,
    ),
    _field("mig_of", "UUID of the GPU that a MIG instance is part of", lambda gpu: gpu.mig_of),
    _field("load_over_s", "how long the load was measured, seconds",
           lambda gpu: None if gpu.load_percent_windows is None else gpu.load_percent_windows.over_s),
    _figure("utilization_percent", "UTIL", "utilisation, percent", outputs=VALUES),
    _figure("sm_percent", "SM", "multiprocessors with work, percent", outputs=VALUES),
    _figure("fp64_percent", "FP64", "FP64 units in use, percent", outputs=VALUES),
    _figure("fp32_percent", "FP32", "FP32 units in use, percent", outputs=VALUES),
    _figure("fp16_percent", "FP16", "FP16 units in use, percent", outputs=VALUES),
    _field("memory_mib", "memory of the GPU", lambda gpu: gpu.memory_total_mib),
    _field("memory_free_mib", "free memory", _memory_free_mib),
    Column(
        "others_mib", "OTHERS_MIB", "memory of processes that are not shown",
        text=lambda row: str(_others_mib(row)), value=_others_mib,
        outputs=VALUES,
    ),
    _field("held_for", "the task for which a packed run keeps it free",
           lambda gpu: next((one.held_for for one in gpu.bookings if one.held_for is not None), None)),
    _field("clients", "processes with a context on it", lambda gpu: gpu.clients),
    _field("mps_servers", "servers of MPS among its processes", lambda gpu: gpu.mps_servers),
    _field("energy_j", "energy since the driver was loaded, J", lambda gpu: gpu.energy_j),
    _field("unattributed_energy_j", "energy that no job is charged with, J", lambda gpu: gpu.unattributed_energy_j),
    Column(
        "idle", "IDLE", "whether a job that holds it leaves it idle",
        text=lambda row: str(_is_idle(row)), value=_is_idle,
        outputs=VALUES,
    ),
    _field("problem", "why the GPU cannot be used", lambda gpu: gpu.problem),
)  # fmt: skip
"""The columns in the dashboard's order, bars first. llload has its own order (`load/output/`)."""

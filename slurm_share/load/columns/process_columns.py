"""The columns of the table of a node's GPUs: each GPU, its slots with their processes, and processes without a slot."""

from __future__ import annotations

from functools import partial

from ...core.text import counted, rate_text
from ..rules import rates
from ..rules.figures import percent
from ..rules.gpu_rows import SlotRow
from ..snapshot import TaskProgress
from ..text import NONE, UNKNOWN, first_of, gb, gigabytes, known, load_text, named, number, percent_text, share
from . import gpu_columns
from .base import DASHBOARD, NOT_PLAIN, TABLE, VALUES, Column, Raw

FREE = "free"
PAUSED = "paused"


def _none(row: SlotRow, field: str = "") -> str:
    """Return the text of a cell without a value: `?` if it is not known whether there is one, `-` if there is none.
    `field`: the field of the process's record."""
    if row.is_unknown or (row.process is not None and not row.is_mps and field in row.process.process.unknown):
        return UNKNOWN
    return NONE


def slot(row: SlotRow) -> str:
    """Return the slot's number; `all` is the GPU itself."""
    if row.kind == "gpu":
        return "all"
    return number(row.number, _none(row, "slot"))


def task(row: SlotRow) -> str:
    """Return the task's number, in its run of llsub or in its step; for a GPU, the number of its tasks."""
    if row.kind == "gpu":
        return UNKNOWN if row.on.task_count is None else counted(row.on.task_count, "task")
    return number(None if row.process is None else row.process.process.task, _none(row, "task"))


def user(row: SlotRow) -> str:
    """Return the user of the process, or of the slot's job."""
    if row.kind == "gpu":
        return gpu_columns.users(row.on)
    if row.process is not None:
        return named(row.process.process.user)
    return NONE if row.job is None else named(row.job.user)


def job(row: SlotRow) -> str:
    """Return the job as squeue writes it."""
    if row.kind == "gpu":
        return gpu_columns.jobs(row.on)
    found = _job_number(row)
    return NONE if found is None else row.on.node.job_name(found)


def _job_number(row: SlotRow) -> int | None:
    its_job = row.job if row.process is None else row.process.process
    return None if its_job is None else its_job.job


def _job_keys(row: SlotRow) -> str | None:
    if row.kind == "gpu":
        return gpu_columns.job_keys(row.on)
    found = _job_number(row)
    return known(job(row)) if found is None else row.on.node.job_keys([found])


def load_percent(row: SlotRow) -> float | None:
    """Return the share of the time in which kernels ran since the sample before, of a process or of the GPU."""
    if row.kind == "gpu":
        return None if row.on.gpu is None else row.on.gpu.utilization_percent
    return None if row.process is None or row.process.on is None else row.process.on.sm_time_percent


def load(row: SlotRow) -> str:
    """Return the share of the time as text, in percent."""
    return _none(row) if row.kind == "slot" and row.process is None else percent_text(load_percent(row))


def memory_mib(row: SlotRow) -> int | None:
    """Return the GPU memory in use, of a process or of the GPU."""
    if row.kind == "gpu":
        return None if row.on.gpu is None else row.on.gpu.memory_used_mib
    return None if row.process is None or row.process.on is None else row.process.on.memory_mib


def peak_mib(row: SlotRow) -> int | None:
    """Return the highest GPU memory that was seen of the process."""
    return None if row.process is None or row.process.on is None else row.process.on.peak_mib


def most_mib(row: SlotRow) -> int | None:
    """Return the limit of GPU memory: the task's cap, or the GPU's memory for a task without a cap and for a GPU. None:
    not known."""
    if row.kind == "gpu":
        return None if row.on.gpu is None else row.on.gpu.memory_total_mib
    return None if row.process is None else row.process.most_mib


def memory_percent(row: SlotRow) -> float | None:
    """Return the memory in use in percent of `most_mib`."""
    return percent(memory_mib(row), most_mib(row))


def memory(row: SlotRow) -> str:
    """Return the GPU memory in use as text."""
    return _none(row) if row.kind == "slot" and row.process is None else gigabytes(memory_mib(row))


def cap(row: SlotRow) -> str:
    """Return the cap of a task, or the memory of a GPU."""
    if row.kind == "gpu":
        return gigabytes(most_mib(row))
    return _none(row, "cap_mib") if row.cap_mib is None else gigabytes(row.cap_mib)


def name(row: SlotRow) -> str:
    """Return the program's name; for a GPU, its model."""
    if row.kind == "gpu":
        return UNKNOWN if row.on.gpu is None else row.on.gpu.name
    if row.process is None:
        return UNKNOWN if row.is_unknown else FREE
    return row.process.process.name


def progress(row: SlotRow) -> TaskProgress | None:
    """Return the progress of the process's task, as the launcher of llsub reports it."""
    return None if row.process is None else row.process.process.progress


def rate_per_s(row: SlotRow) -> float | None:
    """Return the task's rate of work; for a GPU, the sum of its tasks' rates if all count the same unit."""
    if row.kind == "gpu":
        return rates.per_s(rates.of_gpu(row.on.gpu, row.on.tasks))
    one = progress(row)
    return None if one is None else 0.0 if one.is_paused else one.rate_per_s


def rate(row: SlotRow, *, with_source: bool = False) -> str:
    """Return the rate as text: 51/s, with its source 51/s log, paused, or empty if there is none."""
    if row.kind == "gpu":
        return rates.text(rates.of_gpu(row.on.gpu, row.on.tasks), with_source=with_source)
    one = progress(row)
    if one is None:
        return ""
    return PAUSED if one.is_paused else rate_text(one.rate_per_s, one.rate_source if with_source else "")


def speed_ratio(row: SlotRow) -> float | None:
    """Return the task's speed as a ratio of its speed alone on a GPU."""
    one = progress(row)
    return None if one is None else one.speed_ratio


def _speed(row: SlotRow) -> str:
    ratio = speed_ratio(row)
    return "" if ratio is None else f"{ratio:.2f}"


def _of_progress(field: str, row: SlotRow) -> Raw:
    """Return a field of the task's progress for TSV; None for an empty text."""
    one = progress(row)
    value: Raw = None if one is None else getattr(one, field)
    return None if value == "" else value


def _progress_field(field: str, doc: str, id: str = "") -> Column[SlotRow]:
    """Return a column that only TSV and CSV have, from a field of the task's progress."""
    return Column(
        id or field, field.upper(), doc,
        text=lambda row: str(_of_progress(field, row)), value=partial(_of_progress, field),
        outputs=VALUES,
    )  # fmt: skip


def _told(field: str, row: SlotRow) -> Raw:
    """Return a field of the process's record; None for a free slot and for a GPU."""
    value: Raw = None if row.process is None else getattr(row.process.process, field)
    return value


def _user_name(row: SlotRow) -> str:
    return "" if row.process is None else row.process.process.user


PROCESSES: tuple[Column[SlotRow], ...] = (
    Column(
        "gpu", "GPU", "the GPU's number on the node",
        text=lambda row: f"{'▸' if row.kind == 'gpu' else ' '}{row.on.name or UNKNOWN}",
        value=lambda row: None if row.on.gpu is None else row.on.name,
        table=lambda row: UNKNOWN if row.on.gpu is None else str(row.on.gpu.index),
        raw=lambda row: None if row.on.gpu is None else row.on.gpu.index,
        outputs=NOT_PLAIN, least=3, most=14, whole=lambda row: f" {row.on.name or UNKNOWN}",
    ),
    Column(
        "slot", "SLOT", "number of the slot among all of its job on this node; all: the GPU itself; -: no slot",
        text=slot, value=lambda row: -1 if row.kind == "gpu" else row.number, raw=lambda row: row.number,
        outputs=NOT_PLAIN, right=True, least=4, most=5,
    ),
    Column(
        "task", "TASK", "its number: of llsub in its run, else in its step, over all nodes",
        text=task, value=partial(_told, "task"),
        outputs=NOT_PLAIN, right=True, least=4, most=9, goes=3,
    ),
    Column(
        "user", "USER", "the user of the process, or of the slot's job",
        text=user, value=lambda row: known(user(row)), table=_user_name, plain=_user_name, raw=partial(_told, "user"),
        least=5, keeps=20, most=16, goes=2, cut="list", repeats=True, whole=lambda row: first_of(user(row)),
    ),
    Column(
        "job", "JOB", "as squeue and scancel write it",
        text=job, value=_job_keys, has_names=True, raw=partial(_told, "job"),
        plain=lambda row: "no job" if job(row) == NONE else f"job {job(row)}",
        least=5, keeps=18, most=12, goes=4, cut="list", whole=lambda row: first_of(job(row)),
    ),
    Column(
        "sm_time", "SMTIME",
        "share of the time in which kernels ran, since the sample before: of a process its own, of a GPU any "
        "(utilisation, an upper bound of SM activity)",
        text=load, value=load_percent,
        outputs=NOT_PLAIN, field="sm_time_percent",
        bar=lambda row: share(load_percent(row)),
        unit="%", right=True, least=9, most=24, alias=("sm", "now", "load"), sorts_down=True,
    ),
    Column(
        "mem", "MEM", "GPU memory in percent of what it may have: of a GPU all of it, of a task its cap",
        text=lambda row: (
            _none(row) if row.kind == "slot" and row.process is None else percent_text(memory_percent(row))
        ),
        value=memory_percent,
        outputs=DASHBOARD,
        bar=lambda row: share(memory_percent(row)),
        unit="%", twin="memory_used", right=True, least=9, most=24, sorts_down=True,
        letter=lambda row: "H" if row.cap_mib and (memory_percent(row) or 0) >= gpu_columns.OF_CAP_FULL else "",
    ),
    Column(
        "rate", "RATE",
        "units of work a second, a minute or an hour, as its launcher measures it (its page names the source); for a "
        "GPU the sum, if all its tasks count the same unit; paused: its launcher has stopped it",
        text=rate, value=rate_per_s, table=lambda row: rate(row, with_source=True) or NONE,
        plain=lambda row: f"rate {rate(row, with_source=True)}",
        field="rate_per_s", raw=partial(_of_progress, "rate_per_s"),
        right=True, least=4, most=18, goes=6, sorts_down=True, unless_empty=True,
    ),
    Column(
        "speed", "SPEED", "its speed now as a ratio of its speed alone on a GPU",
        text=_speed, value=speed_ratio, table=lambda row: _speed(row) or NONE,
        field="speed_ratio", raw=partial(_of_progress, "speed_ratio"),
        right=True, least=5, most=6, goes=8, sorts_down=True, unless_empty=True,
    ),
    Column(
        "memory_used", "GPUMEM", "GPU memory in use",
        text=memory, value=lambda row: gb(memory_mib(row)), field="gpu_memory_mib", raw=memory_mib,
        plain=lambda row: f"GPU memory {memory(row)}",
        unit="GB", twin="mem", right=True, least=6, most=8, goes=11, alias=("gpumem",), sorts_down=True,
    ),
    Column(
        "cap", "CAP", "most GPU memory that MPS lets the task have; of a GPU all that there is",
        text=cap, value=lambda row: gb(most_mib(row) if row.kind == "gpu" else row.cap_mib),
        field="cap_mib", raw=lambda row: row.cap_mib,
        outputs=NOT_PLAIN, unit="GB", right=True, least=6, most=8, goes=12, sorts_down=True,
    ),
    Column(
        "peak", "PEAK", "the most GPU memory that was seen since it started",
        text=lambda row: _none(row) if row.process is None else gigabytes(peak_mib(row)),
        value=lambda row: gb(peak_mib(row)),
        field="gpu_memory_peak_mib", raw=peak_mib,
        outputs=NOT_PLAIN, unit="GB", right=True, least=6, most=8, goes=16, sorts_down=True,
    ),
    Column(
        "cpu", "CPU", "cores in use",
        text=lambda row: _none(row) if row.process is None else load_text(row.process.process.cpu_cores),
        value=partial(_told, "cpu_cores"), field="cpu_cores",
        outputs=NOT_PLAIN, right=True, least=5, most=7, goes=17, sorts_down=True,
    ),
    Column(
        "memory", "MEMORY", "host memory, resident",
        text=lambda row: _none(row) if row.process is None else gigabytes(row.process.process.memory_mib),
        value=lambda row: None if row.process is None else gb(row.process.process.memory_mib),
        field="memory_mib", raw=partial(_told, "memory_mib"),
        outputs=NOT_PLAIN, unit="GB", right=True, least=6, most=8, goes=18, sorts_down=True,
    ),
    Column(
        "pid", "PID", "the process id on the node",
        text=lambda row: _none(row) if row.process is None else str(row.process.process.pid),
        value=partial(_told, "pid"),
        outputs=NOT_PLAIN, right=True, least=5, most=8, goes=5,
    ),
    Column(
        "step", "STEP", "of the job: 0, 1 ..., batch, interactive, extern",
        text=lambda row: _none(row) if row.process is None else row.process.process.step or NONE,
        value=partial(_told, "step"),
        outputs=NOT_PLAIN, least=4, most=12, goes=19,
    ),
    Column(
        "name", "NAME", "the program; for a GPU, its model",
        text=name, value=lambda row: known(name(row)), raw=partial(_told, "name"), plain=name,
        least=6, keeps=12, most=28, goes=15, cut="middle", alias=("program",),
    ),
    Column(
        "hostname", "HOSTNAME", "the node, as Slurm calls it",
        text=lambda row: row.on.node.name, value=lambda row: row.on.node.name,
        outputs=TABLE,
    ),
    Column(
        "uid", "UID", "the user id",
        text=lambda row: "" if row.process is None else str(row.process.process.uid), value=partial(_told, "uid"),
        outputs=VALUES,
    ),
    Column(
        "uuid", "UUID", "the driver's identifier of its GPU",
        text=lambda row: UNKNOWN if row.process is None or row.process.on is None else row.process.on.uuid,
        value=lambda row: None if row.process is None or row.process.on is None else row.process.on.uuid,
        outputs=VALUES,
    ),
    _progress_field("rate_source", "the source of its rate: progress, log, output, finished"),
    _progress_field("units", "the work that its program reports as done"),
    _progress_field("is_paused", "whether its launcher has paused it for the other tasks on its GPU"),
    _progress_field("task", "number of its task in its run of llsub", id="run_task"),
)  # fmt: skip
"""The dashboard's columns in its order, then those of llload --processes, which has rows of processes only."""

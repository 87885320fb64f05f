"""The columns of the table of jobs: Slurm's facts, what each job's tasks use, and how many tasks it should run."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from ...share import queue
from ..rules import idle, rates
from ..rules.job_rows import JobRow, Sum, UsageRow, summed
from ..snapshot import Advice, JobLoad
from ..text import (
    ABOUT_IDLE,
    ABOUT_NOTE,
    NONE,
    UNKNOWN,
    energy_text,
    fold,
    gb,
    gigabytes,
    idle_text,
    load_text,
    moment_text,
    named,
    number,
    summed_count,
    summed_load,
    time_text,
)
from . import usage_columns as usage
from .base import DASHBOARD, ON_SCREEN, TABLE, Column

UNLIMITED = "UNLIMITED"


def job_id(row: JobRow) -> str:
    """Return the job's number as in squeue; for an array in one line, with the number of elements: 77 x12."""
    return f"{row.id} x{sum(row.states.values())}" if row.is_array else row.id


def job_keys(row: JobRow) -> str:
    """Return the names of the job for filters, joined by commas: as squeue writes it, then Slurm's numbers of its
    records, and for an array in one line its elements."""
    elements = (one.id for one in row.records if row.is_array and one.element is not None)
    return ",".join(dict.fromkeys((row.id, *elements, *(str(one.job_id) for one in row.records))))


ELEMENTS_MOST = 32
"""Longest id of waiting elements of an array that is never cut: Slurm itself cuts their list at 64 characters."""


def _whole_id(row: JobRow) -> str:
    return job_id(row)[:ELEMENTS_MOST]


def state(row: JobRow) -> str:
    """Return the state as in squeue's ST; for an array, the elements in each state: 12R 3PD."""
    if not row.states:
        return UNKNOWN
    if len(row.states) == 1:
        return next(iter(row.states))
    return " ".join(f"{count}{state}" for state, count in row.states.items())


def nodes(row: JobRow) -> str:
    """Return the number of nodes; 1/2: one of two answered."""
    if row.is_waiting:
        return NONE
    count = len(row.node_names)
    return str(count) if row.is_whole else f"{row.measured}/{count}"


def place(row: JobRow) -> str:
    """Return squeue's NODELIST(REASON); for an array in one line, the nodes of all elements."""
    if row.node_names and (row.is_array or row.job is None):
        return fold(row.node_names)
    if row.is_waiting and row.job is not None and not row.job.reason:
        return NO_REASON
    return UNKNOWN if row.job is None else queue.place_of(row.job)


def start(row: JobRow) -> str:
    """Return when it started, or is expected to: 14:05; of another day of this year 11-23 14:05, else with its year."""
    whole = UNKNOWN if row.job is None else moment_text(row.starts, row.now)
    return whole.removeprefix(time.strftime("%Y-", time.localtime(row.now)))


def limit(row: JobRow) -> str:
    """Return the time limit as squeue writes it: 1-00:00:00, 30:00, UNLIMITED."""
    if row.is_unlimited:
        return UNLIMITED
    return UNKNOWN if row.limit_s is None else time_text(row.limit_s)


def time_left(row: JobRow) -> str:
    """Return the time until the limit ends it, as squeue writes it; - for a job that waits."""
    if row.is_waiting:
        return NONE
    if row.is_unlimited:
        return UNLIMITED
    return UNKNOWN if row.left_s is None else time_text(row.left_s)


def _seconds(row: JobRow, known: float | None) -> float | None:
    return math.inf if row.is_unlimited else known


REASON_MOST = 30
"""Longest reason that is never cut: Slurm's names of reasons are not longer, texts with node lists are."""


def _whole_reason(row: JobRow) -> str:
    return place(row)[:REASON_MOST] if row.is_waiting else ""


NO_REASON = "(no reason yet)"
"""The place of a waiting job at which Slurm has not looked yet; squeue writes (None)."""


def tasks(row: JobRow) -> str:
    """Return the tasks as text: with a process on a GPU / slots of the share."""
    found = summed_count(row.tasks)
    return found if row.slots is None else f"{found}/{row.slots}"


def _here(row: JobRow) -> JobLoad:
    """Return the load on the row's only node: llload has a line for each node of a job."""
    return row.loads[0][1]


def rate(loads: Sequence[JobLoad], *, with_source: bool = False) -> str:
    """Return the sum of the tasks' rates of work on these nodes as text, `with_source`: with its source; empty if one
    has no rate, or they count different units."""
    return rates.text(rates.of_jobs(load.progress for load in loads), with_source=with_source)


def _idle_here(row: UsageRow) -> str:
    found, is_partial = idle.count(row.held)
    return idle_text(found, partial=is_partial) if row.held else NONE


def nppn(advice: Advice | None) -> str:
    """Return the tasks on a node and the advice: 4 -> 8; 8 stay; 8 change; 8 look; or 8 without an advice."""
    if advice is None:
        return NONE
    now = number(advice.now)
    if advice.verdict in ("more", "fewer"):
        return f"{now} -> {advice.next}"
    return now if advice.verdict == "unknown" else f"{now} {advice.verdict}"


def _energy_j(row: JobRow) -> Sum:
    return summed((load.energy_j for _, load in row.loads), is_all=row.is_whole)


def _energy(row: JobRow) -> str:
    found = _energy_j(row)
    return "" if found.value is None else energy_text(found.value) + (UNKNOWN if found.partial else "")


def _thousands(value: float | None) -> float | None:
    return None if value is None else value / 1000


JOBS: tuple[Column[JobRow], ...] = (
    Column(
        "job", "JOB", "as squeue and scancel write it; 77 x12: an array, twelve elements in one line",
        text=job_id, value=job_keys, has_names=True, table=lambda row: row.id,
        outputs=ON_SCREEN, least=6, most=18, cut="middle", whole=_whole_id, alias=("id", "jobid"),
    ),
    Column(
        "user", "USER", "the job's user",
        text=lambda row: named(row.user), value=lambda row: row.user or None, table=lambda row: _here(row).user,
        outputs=ON_SCREEN, least=5, most=16, goes=3, cut="middle", repeats=True,
        whole=lambda row: named(row.user),
    ),
    Column(
        "name", "NAME", "the job's name",
        text=lambda row: UNKNOWN if row.job is None else row.name or NONE,
        value=lambda row: row.name if row.job is not None else None,
        outputs=ON_SCREEN, least=8, keeps=12, most=28, goes=4, cut="middle",
    ),
    Column(
        "state", "ST", "R runs, PD waits, CG ends ...: as squeue writes it",
        text=state, value=lambda row: state(row) if row.states else None,
        outputs=DASHBOARD, least=2, most=14, goes=1, whole=state, alias=("st",),
    ),
    Column(
        "time", "TIME", "how long it has run",
        text=lambda row: time_text(row.runs_s) if row.job is not None else UNKNOWN, value=lambda row: row.runs_s,
        outputs=DASHBOARD, unit="s", right=True, least=7, most=12, goes=9, sorts_down=True,
    ),
    Column(
        "start", "START", "when it started; for a waiting job, when Slurm expects it to start",
        text=start,
        value=lambda row: None if row.starts is None else row.starts - row.now,
        outputs=DASHBOARD, unit="s", is_moment=True, right=True, least=5, most=11, goes=5,
    ),
    Column(
        "left", "TIME_LEFT", "time until its time limit ends it; for an array, its first running element",
        text=time_left, value=lambda row: None if row.is_waiting else _seconds(row, row.left_s),
        outputs=ON_SCREEN, unit="s", right=True, least=9, most=12, goes=11, alias=("timeleft",), takes_last=True,
    ),
    Column(
        "limit", "LIMIT", "its time limit, as squeue writes it",
        text=limit, value=lambda row: _seconds(row, row.limit_s),
        outputs=ON_SCREEN, unit="s", right=True, least=7, most=12, goes=15, alias=("timelimit",), sorts_down=True,
        takes_last=True,
    ),
    Column(
        "nodes", "NODES", "number of its nodes; 1/2: one of two answered",
        text=nodes, value=lambda row: len(row.node_names),
        outputs=DASHBOARD, right=True, least=5, most=8, goes=16, sorts_down=True,
    ),
    Column(
        "tasks", "TASKS", "tasks with a process on a GPU now / slots of its share",
        text=lambda row: NONE if row.has_no_gpu else tasks(row), value=lambda row: row.tasks.value,
        table=lambda row: NONE if row.has_no_gpu else summed_count(row.tasks),
        outputs=ON_SCREEN, right=True, least=5, most=11, goes=12, sorts_down=True,
    ),
    replace(
        usage.GPUS, doc="GPUs that it has, over all its nodes",
        table=lambda row: number(row.gpus_on(row.loads[0][0].name)), outputs=ON_SCREEN, goes=7,
    ),
    replace(usage.IDLE, doc=f"GPUs that it holds and leaves idle; {ABOUT_IDLE}", table=_idle_here, outputs=ON_SCREEN,
            goes=8),
    replace(
        usage.GPU,
        doc="share of the time in which its kernels ran, in percent of the GPUs that it has; 88%? counts silent nodes "
        "as busy as the others",
        outputs=DASHBOARD, goes=6,
    ),
    replace(
        usage.GPU_LOAD, doc="the same as a sum: 2.00 is two GPUs fully busy; 1.20? is without silent nodes",
        table=lambda row: NONE if row.has_no_gpu else load_text(row.loads[0][1].gpu_load), outputs=ON_SCREEN, goes=19,
    ),
    replace(
        usage.GPU_MEMORY, doc="GPU memory of its processes",
        table=lambda row: NONE if row.has_no_gpu else gigabytes(row.loads[0][1].gpu_memory_mib),
        outputs=ON_SCREEN, goes=13,
    ),
    Column(
        "rate", "RATE",
        "units of work a second, a minute or an hour of its tasks together, as their launchers measure it; shown only "
        "if all of them count the same unit",
        text=lambda row: rate([load for _, load in row.loads]),
        value=lambda row: rates.per_s(rates.of_jobs(load.progress for _, load in row.loads)),
        table=lambda row: rate([_here(row)], with_source=True) or NONE,
        outputs=ON_SCREEN, right=True, least=4, most=18, goes=15, sorts_down=True, unless_empty=True,
    ),
    Column(
        "peak", "TASKPEAK", "the most GPU memory that one task was seen with",
        text=lambda row: gigabytes(row.peak_mib) if row.tasks_measured else NONE, value=lambda row: gb(row.peak_mib),
        outputs=ON_SCREEN, unit="GB", right=True, least=6, most=9, goes=20, alias=("taskpeak",), sorts_down=True,
    ),
    Column(
        "energy", "ENERGY", "energy of its GPUs that it is charged with while the agents watched it; filters take kJ",
        text=_energy, value=lambda row: _thousands(_energy_j(row).value),
        table=lambda row: energy_text(_here(row).energy_j) or NONE,
        outputs=ON_SCREEN, right=True, least=6, most=9, goes=22, sorts_down=True, unless_empty=True, takes_last=True,
    ),
    replace(usage.CPU, doc="CPU time in percent of the CPUs that it has; 88%? as for the GPUs", outputs=DASHBOARD,
            goes=11),
    Column(
        "cores", "CORES", "CPUs that it uses; 20.5? is without silent nodes",
        text=lambda row: NONE if row.is_waiting else summed_load(row.cpu), value=lambda row: row.cpu.value,
        outputs=DASHBOARD, twin="cpu", right=True, least=5, most=9, goes=21, sorts_down=True,
    ),
    replace(
        usage.CPUS, doc="CPUs that Slurm gave it; of a waiting job those that it asks for", outputs=DASHBOARD, goes=20,
        takes_last=True,
    ),
    replace(
        usage.MEMORY, doc="host memory without page cache",
        table=lambda row: gigabytes(row.loads[0][1].memory_mib), outputs=ON_SCREEN, goes=14,
    ),
    replace(
        usage.REQUESTED_MEMORY, doc="host memory that Slurm gave it on all nodes; of a waiting job what it asks for",
        outputs=DASHBOARD, goes=20, takes_last=True,
    ),
    replace(
        usage.USED_MEMORY, doc="host memory in percent of REQMEM; at 100 the kernel ends its processes",
        outputs=DASHBOARD, goes=12, takes_last=True,
    ),
    Column(
        "nppn", "NPPN", "tasks on a node, now -> as advised (view Advice)",
        text=lambda row: nppn(row.advice), value=lambda row: None if row.advice is None else row.advice.next,
        outputs=DASHBOARD, least=6, most=10, goes=10, whole=lambda row: nppn(row.advice), alias=("advice",),
        sorts_down=True,
    ),
    Column(
        "killed", "KILLED", "processes that the kernel ended because the job's memory was full",
        text=lambda row: NONE if row.is_waiting else summed_count(row.kills), value=lambda row: row.kills.value,
        table=lambda row: number(_here(row).memory_kills),
        outputs=ON_SCREEN, right=True, least=6, most=7, goes=18,
        letter=lambda row: "H" if row.kills.value else "", sorts_down=True,
    ),
    Column(
        "nodelist", "NODELIST(REASON)", "its nodes, or why it waits",
        text=place, value=lambda row: None if row.job is None and not row.node_names else place(row),
        outputs=DASHBOARD, least=8, keeps=16, most=48, goes=2, cut="middle", whole=_whole_reason,
        alias=("node", "reason"),
    ),
    replace(usage.NOTE, doc=f"of its nodes, {ABOUT_NOTE}", outputs=DASHBOARD, most=16, goes=17),
    Column(
        "share", "SHARE", "N of --share-gpu=N: its tasks on each GPU",
        text=lambda row: number(row.share, NONE), value=lambda row: row.share,
        table=lambda row: number(_here(row).share, NONE),
        outputs=ON_SCREEN, right=True, least=5, most=6, goes=22, sorts_down=True,
    ),
    Column(
        "sharing", "SHARING", "how its tasks share their GPUs: mps, time-slicing, exclusive, mig",
        text=lambda row: row.sharing, value=lambda row: row.sharing or None,
        table=lambda row: _here(row).sharing or NONE,
        outputs=ON_SCREEN, least=7, most=16, goes=23, unless_empty=True,
    ),
    Column(
        "triple", "TRIPLE", "for a job of llsub: nodes, tasks on each, threads of each",
        text=lambda row: row.triple or NONE, value=lambda row: row.triple or NONE,
        outputs=ON_SCREEN, least=6, most=14, goes=23, whole=lambda row: row.triple or NONE,
    ),
    Column(
        "partition", "PARTITION", "the job's partition",
        text=lambda row: UNKNOWN if row.job is None else row.job.partition or NONE,
        value=lambda row: None if row.job is None else row.job.partition,
        outputs=ON_SCREEN, least=5, most=12, goes=24, cut="list", repeats=True,
    ),
    Column(
        "account", "ACCOUNT", "the account that the job is charged to",
        text=lambda row: UNKNOWN if row.job is None else row.job.account or NONE,
        value=lambda row: None if row.job is None else row.job.account or NONE,
        outputs=ON_SCREEN, least=5, most=14, goes=24, cut="middle", repeats=True, takes_last=True,
    ),
    Column(
        "hostname", "HOSTNAME", "the node, as Slurm calls it",
        text=lambda row: row.loads[0][0].name, value=lambda row: row.loads[0][0].name,
        outputs=TABLE,
    ),
    Column(
        "slots", "SLOTS", "of its share on this node",
        text=lambda row: number(_here(row).slots, NONE), value=lambda row: _here(row).slots,
        outputs=TABLE, right=True,
    ),
    Column(
        "cpu_cores", "CPU", "CPU time since the sample before, in cores",
        text=lambda row: load_text(_here(row).cpu_cores), value=lambda row: _here(row).cpu_cores,
        outputs=TABLE, right=True,
    ),
)  # fmt: skip

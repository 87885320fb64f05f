"""The columns of the table of users: what each user has, and how busy it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..rules.job_rows import UserRow
from ..snapshot import VERDICTS
from ..text import ABOUT_IDLE, ABOUT_NOTE, NONE, UNKNOWN, named, number, of_text, summed_count
from . import advice_columns
from . import usage_columns as usage
from .base import DASHBOARD, Column


def jobs(row: UserRow) -> str:
    """Return the jobs as text: running+waiting, such as 3+12."""
    if not (row.is_told or row.running):
        return UNKNOWN
    return f"{row.running}+{row.waiting}" if row.waiting else str(row.running)


def nodes(row: UserRow) -> str:
    """Return the number of nodes; 2/3: two of three answered."""
    return str(row.measured) if row.is_whole else f"{row.measured}/{len(row.node_names)}"


def names_value(names: Iterable[str]) -> str | None:
    """Return names, each once, joined by commas; None: there are none."""
    return ",".join(sorted({one for name in names for one in name.split(",") if one})) or None


def names_text(names: Iterable[str]) -> str:
    """Return names as `names_value` does; - for none."""
    return names_value(names) or NONE


ADVISED = tuple(verdict for verdict in VERDICTS if verdict not in ("stay", "unknown"))


def advice(row: UserRow) -> str:
    """Return how many of the user's jobs should run more tasks on a node, fewer, or change something else."""
    counts = advice_columns.counts(row.advice)
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if verdict in ADVISED)
    return said or (NONE if not row.advice else "stay" if any(one.verdict == "stay" for one in row.advice) else UNKNOWN)


USERS: tuple[Column[UserRow], ...] = (
    Column(
        "user", "USER", "the user's name",
        text=lambda row: named(row.user), value=lambda row: row.user or None,
        least=6, most=24, cut="middle", whole=lambda row: named(row.user), alias=("name",),
    ),
    Column(
        "jobs", "JOBS", "jobs with nodes; 3+12: twelve more wait",
        text=jobs, value=lambda row: row.running if row.is_told or row.running else None,
        right=True, least=4, most=9, sorts_down=True,
    ),
    Column(
        "nodes", "NODES", "nodes with a job or a process of the user; 2/3: two of three answered",
        text=nodes, value=lambda row: len(row.node_names),
        right=True, least=5, most=9, goes=5, sorts_down=True,
    ),
    replace(usage.GPUS, doc="GPUs that the user's jobs have; without Slurm those with a process on them", goes=6),
    replace(usage.IDLE, doc=f"GPUs that the user's jobs hold and leave idle; {ABOUT_IDLE}"),
    replace(
        usage.GPU,
        doc="GPU load in percent of the GPUs that the user has; 88%? counts silent nodes as busy as the others",
    ),
    replace(usage.GPU_LOAD, doc="sum over GPUs: 2.00 is two fully busy; 1.20? is without silent nodes", goes=14),
    replace(usage.GPU_MEMORY, doc="GPU memory in use", goes=13),
    replace(usage.CPU, doc="CPU time in percent of the CPUs that the user has; 88%? as for the GPUs"),
    Column(
        "cores", "CORES", "CPUs in use / CPUs that the user's jobs have",
        text=lambda row: NONE if row.is_waiting else of_text(
            (
                number(row.cpus),
                UNKNOWN if row.cpu.value is None else f"{row.cpu.value:.0f}{UNKNOWN if row.cpu.partial else ''}",
                "",
            )
        ),
        value=lambda row: row.cpu.value,
        twin="cpu", right=True, least=7, most=12, goes=17, sorts_down=True,
    ),
    replace(usage.MEMORY, doc="host memory of the user's jobs", goes=15),
    replace(
        usage.REQUESTED_MEMORY, doc="host memory that Slurm gave the user's jobs", outputs=DASHBOARD, goes=19,
        takes_last=True, shown=False,
    ),
    Column(
        "processes", "PROCS", "processes on GPUs",
        text=lambda row: NONE if row.has_no_gpu else summed_count(row.processes),
        value=lambda row: row.processes.value,
        right=True, least=5, most=8, goes=18, sorts_down=True,
    ),
    Column(
        "advice", "ADVICE", "jobs that should run more tasks on a node, and fewer (view Advice)",
        text=advice, value=lambda row: sum(
            count for verdict, count in advice_columns.counts(row.advice).items() if verdict in ADVISED
        ),
        least=6, most=18, goes=16, cut="list", sorts_down=True,
    ),
    Column(
        "account", "ACCOUNT", "the accounts that the user's jobs are charged to",
        text=lambda row: names_text(one.account for one in row.records),
        value=lambda row: names_value(one.account for one in row.records), has_names=True,
        outputs=DASHBOARD, least=5, most=14, goes=20, cut="list", repeats=True, takes_last=True, shown=False,
    ),
    Column(
        "partition", "PARTITION", "the partitions of the user's jobs",
        text=lambda row: names_text(one.partition for one in row.records),
        value=lambda row: names_value(one.partition for one in row.records), has_names=True,
        outputs=DASHBOARD, least=5, most=14, goes=21, cut="list", repeats=True, takes_last=True, shown=False,
    ),
    replace(usage.NOTE, doc=f"of the user's nodes, {ABOUT_NOTE}", most=20, goes=1),
)  # fmt: skip

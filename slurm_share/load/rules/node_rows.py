"""The row of a node: its record with figures and flags, for llload and the dashboard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from ...slurm.records import QueuedJob
from ..snapshot import NodeLoad, Snapshot, Survey
from . import figures, flags, idle
from .figures import NodeFigures
from .flags import SEVERITIES, URGENT, Flag, Severity, in_order, severity


class NodeRow(Struct, frozen=True, gc=False, omit_defaults=True):
    """A node with its figures and flags, computed by the process that reads the survey."""

    node: NodeLoad
    figures: NodeFigures
    flags: tuple[Flag, ...] = ()
    queued_users: tuple[str, ...] = ()
    """Users with jobs there by Slurm's queue, for a silent node."""
    queued_jobs: tuple[str, ...] = ()
    """Jobs there by Slurm's queue, as squeue writes them, for a silent node."""
    job_names: dict[int, str] = {}
    """Slurm's number of a job there -> the job as squeue writes it, where that is another: 77_3, 4711+1."""

    def job_name(self, number: int) -> str:
        """Return a job as squeue writes it, by Slurm's number of its record."""
        return self.job_names.get(number) or str(number)

    @property
    def queued_keys(self) -> str:
        """Return the names for filters, as `job_keys`, of the jobs by Slurm's queue."""
        return ",".join(dict.fromkeys((*self.queued_jobs, *map(str, self.job_names))))

    def job_keys(self, numbers: Iterable[int]) -> str:
        """Return the names of jobs for filters, joined by commas: as squeue writes them, and Slurm's numbers."""
        return ",".join(dict.fromkeys(one for number in numbers for one in (self.job_name(number), str(number))))

    @property
    def name(self) -> str:
        """Return Slurm's name of the node."""
        return self.node.name

    @property
    def codes(self) -> tuple[str, ...]:
        """Return each flag's code once, the most severe first, as in llload's NOTE: m!, gL."""
        return in_order(flag.code for flag in self.flags)

    @property
    def severity(self) -> Severity:
        """Return the severity of its most severe flag."""
        return severity(flag.code for flag in self.flags) if self.flags else ""

    @property
    def needs_attention(self) -> bool:
        """Return whether somebody should look at it."""
        return self.severity in URGENT

    @property
    def is_used(self) -> bool:
        """Return whether jobs have CPUs of it by Slurm."""
        return figures.is_used(self.node)

    @property
    def is_free(self) -> bool:
        """Return whether no job has CPUs of it by Slurm, and one could start there."""
        return self.figures.is_open and self.figures.cpus_used == 0

    @property
    def is_out(self) -> bool:
        """Return whether no job has CPUs of it by Slurm, and none could start there: drained, down, reserved."""
        return not self.figures.is_open and self.figures.cpus_used == 0


def row_of(node: NodeLoad, names: Mapping[int, str] | None = None) -> NodeRow:
    """Return the row of a node whose GPUs have been judged (`idle.py`). `names`: as `names_of`."""
    one = figures.figures(node)
    there = {} if not names or node.snapshot is None else _names_there(node, node.snapshot, names)
    return NodeRow(node, one, flags.flags(node, one, there), job_names=there)


def rows_of(survey: Survey) -> tuple[NodeRow, ...]:
    """Return a row for each node of a survey, with its GPUs judged."""
    return judged_rows(idle.judged(survey))


def judged_rows(survey: Survey) -> tuple[NodeRow, ...]:
    """Return a row for each node of a survey whose GPUs have been judged."""
    names = names_of(survey.jobs)
    return tuple(row_of(node, names) for node in survey.nodes)


def names_of(jobs: Iterable[QueuedJob]) -> dict[int, str]:
    """Return Slurm's number of each job -> the job as squeue writes it, where that is another."""
    return {job.job_id: job.id for job in jobs if job.array is not None or job.het is not None}


def _names_there(node: NodeLoad, snapshot: Snapshot, names: Mapping[int, str]) -> dict[int, str]:
    numbers = {one.job for one in snapshot.jobs} | {one.job for one in node.held_gpus or ()}
    numbers |= {one.job for one in snapshot.processes if one.job is not None}
    return {number: names[number] for number in numbers if number in names}


CALM_S = 60.0
"""Seconds for which a node keeps its place after it has become less severe, so that a load at a bound does not move
rows at every survey. Ours."""


class SeverityOrder:
    """The order of nodes by severity, the worst first, then by name, over successive surveys. A node that becomes more
    severe rises at once; one that becomes less severe falls after CALM_S."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, float]] = {}
        """Node -> its rank, and when it last was that severe, Unix time."""
        self._places: dict[str, int] = {}

    def sorted(self, rows: Sequence[NodeRow], now: float, *, is_held: bool = False) -> list[NodeRow]:
        """Return the rows in order. `now`: Unix time of the survey. `is_held`: keep the order of the survey before;
        nodes that it did not have come last."""
        ranks = {row.name: self._rank(row, now) for row in rows}
        last = len(self._places)
        if is_held:
            found = sorted(rows, key=lambda row: (self._places.get(row.name, last), -ranks[row.name]))
        else:
            found = sorted(rows, key=lambda row: -ranks[row.name])
        self._places = {row.name: place for place, row in enumerate(found)}
        return found

    def _rank(self, row: NodeRow, now: float) -> int:
        rank = SEVERITIES.index(row.severity)
        held, since = self._since.get(row.name, (rank, now))
        if rank < held and 0.0 <= now - since < CALM_S:
            return held
        self._since[row.name] = (rank, now)
        return rank

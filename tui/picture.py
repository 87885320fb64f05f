"""The picture that the dashboard draws: a complete survey with the rows of its nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from msgspec.structs import replace

from slurm_share.load import Advice, NodeRow, QueueState, Snapshot, Survey, names_of, nodes_of, queue_reader, queue_rows
from slurm_share.slurm.records import QueuedJob

from .wire import Position, SurveyBegin


@dataclass(frozen=True)
class SurveyPicture:
    """One survey with what belongs to it. Immutable."""

    survey: Survey
    """The whole survey, with its nodes."""
    nodes: tuple[NodeRow, ...]
    advice: tuple[Advice, ...] = ()
    took_s: float = 0.0
    """Duration of the survey, seconds."""
    details: bool = True
    """False: it has no processes, jobs and users of nodes."""
    position: Position | None = None
    """None: not a replay."""
    arrived: float = 0.0
    """When the dashboard had received all of it, time.monotonic()."""
    number: int = field(default=0, compare=False)
    """Number of the survey in this run of the dashboard."""

    queue: QueueState | None = field(default=None, compare=False)
    """The queue of the whole cluster, as it was read last; None: not read yet."""

    @cached_property
    def queue_state(self) -> QueueState | None:
        """Return the queue: of the whole cluster, of a demonstration, or what a recording has of it. None: it is being
        read."""
        if self.survey.source == "demo":
            return queue_reader.demo_queue(self.survey)
        return queue_rows.of_survey(self.survey) if self.is_replay else self.queue

    @cached_property
    def by_name(self) -> dict[str, NodeRow]:
        return {row.name: row for row in self.nodes}

    @property
    def is_replay(self) -> bool:
        return self.survey.source == "replay"

    @cached_property
    def snapshots(self) -> list[Snapshot]:
        return [found for row in self.nodes if (found := row.node.snapshot) is not None]

    @cached_property
    def is_simulated(self) -> bool:
        return self.survey.source == "demo" or self.survey.simulated


def with_queued(rows: tuple[NodeRow, ...], jobs: Iterable[QueuedJob]) -> tuple[NodeRow, ...]:
    """Return the rows with users and jobs from Slurm's queue on silent nodes."""
    silent: dict[str, list[QueuedJob]] = {row.name: [] for row in rows if row.node.snapshot is None}
    if not silent:
        return rows
    for job in jobs:
        for name in nodes_of(job):
            if name in silent:
                silent[name].append(job)

    def completed(row: NodeRow) -> NodeRow:
        there = silent.get(row.name, ())
        users, ids = tuple(sorted({job.user for job in there})), tuple(job.id for job in there)
        return replace(row, queued_users=users, queued_jobs=ids, job_names=names_of(there)) if there else row

    return tuple(map(completed, rows))


def put_together(
    begin: SurveyBegin,
    rows: tuple[NodeRow, ...],
    advice: tuple[Advice, ...] = (),
    *,
    jobs: tuple[QueuedJob, ...] = (),
    arrived: float = 0.0,
    number: int = 0,
    queue: QueueState | None = None,
) -> SurveyPicture:
    """Return the picture made from the messages of one survey."""
    jobs = (*begin.survey.jobs, *jobs)
    survey = replace(begin.survey, nodes=tuple(row.node for row in rows), jobs=jobs)
    return SurveyPicture(
        survey=survey, nodes=with_queued(rows, jobs), advice=advice, took_s=begin.took_s, details=begin.details,
        position=begin.position, arrived=arrived, number=number, queue=queue,
    )  # fmt: skip

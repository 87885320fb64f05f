"""What the commands would act on, made of rows. Values in, values out."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from slurm_share.load import JobRow, ProcessRow, job_rows, text

from ..picture import Picture
from ..place import Process
from ..target import Target


def of_job(row: JobRow) -> Target:
    """The job; of an array in one line, all of the array."""
    return Target(
        owner=row.user,
        job=row.id,
        job_id=row.number if row.job is None else row.job.job_id,
        job_name=row.name,
        nodes=text.fold(row.node_names),
    )


def of_rows(picture: Picture | None, rows: Iterable[Collection[JobRow]]) -> tuple[Target, ...]:
    """The one own job of each of these rows, each job once; nothing where a row has none of them or several, since
    nobody said which."""
    if picture is None:
        return ()
    found: dict[str, Target] = {}
    for jobs in rows:
        own = [job for job in jobs if job.is_own and job.job is not None]
        if len(own) != 1:
            return ()
        found[own[0].id] = of_job(own[0])
    return tuple(found.values())


def on_node(picture: Picture, node: str) -> list[JobRow]:
    """The jobs on a node."""
    return [job for job in job_rows(picture, arrays=False) if node in job.node_names]


def of_process(row: ProcessRow, picture: Picture) -> Target:
    """That process on its node."""
    one = row.process
    record = next((job for job in picture.survey.jobs if job.job_id == one.job), None) if one.job is not None else None
    return Target(
        owner=one.user,
        job="" if one.job is None else str(one.job) if record is None else record.id,
        job_id=one.job,
        job_name="" if record is None else record.name,
        nodes=row.node.name,
        node=row.node.name,
        process=Process(one.pid, one.start_ticks),
        process_name=one.name,
        step=one.step or "",
        task=one.task,
    )

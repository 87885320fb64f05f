"""Make the targets of actions from rows. Pure: values in, values out."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from slurm_share.load import JobRow, ProcessRow, job_rows

from ..location import JobPlace, Process
from ..picture import SurveyPicture


def job_target(row: JobRow) -> JobPlace:
    """Return the job as a target; for an array in one line the whole array."""
    return JobPlace(owner=row.user, job=row.id, job_id=row.number if row.job is None else row.job.job_id)


def single_job_targets(rows: Iterable[Collection[JobRow]]) -> tuple[JobPlace, ...]:
    """Return the viewer's own job of each row, every job once. Empty if a row has none or several, since the choice
    would be a guess."""
    found: dict[str, JobPlace] = {}
    for jobs in rows:
        own = [job for job in jobs if job.is_own and job.job is not None]
        if len(own) != 1:
            return ()
        found[own[0].id] = job_target(own[0])
    return tuple(found.values())


def jobs_on_node(picture: SurveyPicture, node: str) -> list[JobRow]:
    return [job for job in job_rows(picture, arrays=False) if node in job.node_names]


def process_target(row: ProcessRow, picture: SurveyPicture) -> JobPlace:
    one = row.process
    record = next((job.id for job in picture.survey.jobs if job.job_id == one.job), str(one.job))
    return JobPlace(
        owner=one.user, job="" if one.job is None else record, job_id=one.job, node=row.node.name,
        process=Process(one.pid, one.start_ticks), process_name=one.name, step=one.step or "", task=one.task,
    )  # fmt: skip

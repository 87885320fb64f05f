"""An element of an array and a part of a heterogeneous job are written as in squeue on every screen."""

from __future__ import annotations

import re
from functools import cache

import pytest
from dashboards import a_survey, picture_of
from msgspec.structs import replace
from slurm_share_tui.location import Location, Process
from slurm_share_tui.picture import SurveyPicture
from view_apps import looking

from slurm_share.load.output import plain, table
from slurm_share.load.output.notes import View
from slurm_share.load.rules.idle import judged
from slurm_share.load.rules.node_rows import rows_of
from slurm_share.load.snapshot import Survey

EVERYTHING = View(gpus=True, detail=True, jobs=True, processes=True)


@cache
def survey() -> Survey:
    """The demonstration, with every running job an element of array 77 or a part of heterogeneous job 88."""
    found = judged(a_survey())
    jobs = []
    for at, job in enumerate(found.jobs):
        as_array, as_part = replace(job, array=77, element=at), replace(job, het=(88, at))
        jobs.append(job if not job.nodes else as_array if at % 2 else as_part)
    return replace(found, jobs=tuple(jobs))


@cache
def picture() -> SurveyPicture:
    return picture_of(survey())


def names() -> dict[int, str]:
    return {job.job_id: job.id for job in survey().jobs if job.nodes}


def places() -> list[Location]:
    """Return every view, for one thing that of a job with a process."""
    row = next(row for row in picture().nodes if row.node.snapshot and row.node.snapshot.processes)
    process = next(one for one in row.node.snapshot.processes if one.job and one.gpus)
    gpu = process.gpus[0].uuid
    return [
        *(Location(view=view) for view in ("nodes", "users", "jobs", "gpus")),
        Location(view="nodes", job=process.job, job_name=names()[process.job]),
        Location(view="node", node=row.name),
        Location(view="gpu", node=row.name, gpu=gpu, gpu_name="GPU 0"),
        Location(view="process", node=row.name, gpu=gpu, process=Process(process.pid, process.start_ticks)),
    ]


def with_a_record_number(text: str) -> list[str]:
    """Return the lines with Slurm's number of the record of an element or a part, as a job."""
    some = "|".join(str(number) for number in names())
    return [line for line in text.splitlines() if re.search(rf"(?:job |held by |\bJOBS? +)(?:{some})(?![\d_+])", line)]


@pytest.mark.parametrize("place", places(), ids=lambda place: f"{place.view}{' of a job' if place.job else ''}")
async def test_a_view_has_the_jobs_as_squeue_writes_them(place):
    async with looking(place, picture(), size=(200, 50)) as (app, _):
        assert not with_a_record_number(app.text)
        for column in app.shown.columns:
            if column.id in ("job", "jobs") and place.view != "users":
                cells = {part for row in app.shown.grid.rows for part in column.text(row).split(",")}
                assert not cells.intersection(map(str, names()))
                assert re.search(r"\b(77_\d+|88\+\d+)\b", ",".join(cells)), cells


@pytest.mark.parametrize(
    "place", [one for one in places() if one.view not in ("users", "process")], ids=lambda one: one.view
)
async def test_a_filter_takes_a_job_by_either_number(place):
    async with looking(place, picture(), size=(200, 50)) as (app, _):
        grid = app.shown.grid
        by = "jobs" if any(column.id == "jobs" for column in app.shown.columns) else "job"
        found = 0
        for number, name in names().items():
            shown = []
            for text in (f"{by}={name}", f"{by}={number}", f"{by}~{number}"):
                grid.query_text = text
                assert not grid.mistake
                shown.append([app.shown.key(row) for row in grid.shown_rows])
            assert shown[0] == shown[1]
            assert set(shown[1]) <= set(shown[2])
            found += len(shown[0])
        assert found


def test_the_tables_and_the_flags_of_llload_have_them_too():
    for lines in (table.as_lines(survey(), EVERYTHING, 250), plain.as_plain(survey(), EVERYTHING)):
        assert not with_a_record_number("\n".join(lines))
        assert re.search(r"\b77_\d", "\n".join(lines))
    reasons = [flag.why for row in rows_of(survey()) for flag in row.flags if "job " in flag.why]
    assert reasons
    assert not with_a_record_number("\n".join(reasons))

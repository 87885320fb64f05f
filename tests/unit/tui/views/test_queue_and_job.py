"""The view of the queue and the page of a job."""

from __future__ import annotations

import dataclasses
import re

import pytest
from dashboards import NOW, a_picture, a_survey, picture_of
from msgspec.structs import replace
from slurm_share_tui.location import Location
from slurm_share_tui.wire import JobLife, Point, ReadLife
from view_apps import look_at, looking, put_on

from slurm_share.load import QueueState
from slurm_share.slurm.records import SlurmNode

QUEUE = Location(view="queue")
JOB = Location(view="job", user="alice", job=36942)
SIZES = ((80, 24), (120, 40), (20, 5), (200, 50))


def live(found, queue: QueueState | None = None):
    """Return the picture as one of a live cluster."""
    return dataclasses.replace(found, survey=replace(found.survey, source="srun"), queue=queue)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("location", [QUEUE, JOB], ids=["queue", "job"])
def test_every_size_is_drawn(location: Location, size: tuple[int, int]) -> None:
    assert look_at(location, a_picture(), size=size).strip()


def test_the_queue_has_reasons_free_gpus_and_nodes_with_who_and_when() -> None:
    text = look_at(QUEUE, a_picture(), size=(80, 24))
    assert re.search(r"14 jobs wait +for 23 GPUs +3 of them yours", text)
    assert re.search(r"free GPUs +h100 0 of 12 \(4 out of service\) +v100 2 of 16", text)
    assert re.search(r"QOSMaxGRESPerUser +gpu +2 +2", text)
    assert "Jobs with a higher priority wait before it (Priority)" in text
    assert re.search(r"h-9 +drained +4 +GPU 2: Xid 79.* root +11-20", text)
    assert re.search(r"c-2 +down\* ", text)


async def test_a_queue_that_is_not_read_yet_or_fails_says_so() -> None:
    assert "is being read" in await shown(live(a_picture()))
    why = "the queue is not known: Slurm does not answer: no word from its controller within ten seconds (squeue)"
    text = await shown(live(a_picture(), QueueState(taken=NOW, problem=why)))
    assert why in " ".join(text.split())
    assert "no job waits" in await shown(live(a_picture(), QueueState(taken=NOW)))


async def shown(picture) -> str:
    async with looking(QUEUE, picture, size=(80, 24)) as (app, pilot):
        await pilot.pause()
        return app.text


async def test_the_second_table_has_the_nodes_and_copies_their_names() -> None:
    async with looking(QUEUE, a_picture(), size=(80, 24)) as (app, pilot):
        app.shown.out.focus()
        await pilot.pause()
        assert app.shown.copy_lines() == ("h-9",)
        put_on(app.shown.grid, "Dependency gpu 1")
        await pilot.pause()
        assert (
            app.shown.enter_location() is None
        )  # neither the job of the other table's cursor, nor a node without figures
        assert app.shown.targets() == ()
        app.shown.grid.focus()
        put_on(app.shown.grid, "Dependency gpu 1")
        await pilot.pause()
        assert app.shown.enter_location() == Location(view="job", user="alice", job=990040, job_name="990040 evaluate")


async def test_a_node_out_of_service_that_answers_can_be_entered() -> None:
    found = a_picture()
    node = SlurmNode(name=found.nodes[0].name, states=("DRAIN",), reason="a", cpus=1, memory_mib=1)
    async with looking(QUEUE, live(found, QueueState(taken=NOW, out=(node,))), size=(80, 24)) as (app, pilot):
        app.shown.out.focus()
        await pilot.pause()
        assert app.shown.enter_location() == Location(view="node", node=node.name)


def test_a_job_has_what_it_asked_for_has_and_uses_and_says_since_when_it_is_known() -> None:
    pictures = [a_picture(now=NOW - 600 + 20 * step) for step in range(31)]
    text = look_at(JOB, *pictures, size=(120, 40))
    assert re.search(r"time +running for 21:52 +1-23:38:08 left of 2-00:00:00", text)
    assert re.search(r"asked for 1 node +96 CPUs +4 GPUs +1024.0GB on each node", text)
    assert re.search(r"memory 242.9GB of 1024.0GB \(24%\)", text)
    assert re.search(r"priority +1000 +partition gpu +QOS normal +account vision", text)
    assert re.search(r"since \d\d:\d\d, seen by this dashboard; it began 12 min before", text)


async def test_a_live_job_is_asked_about_and_drawn_from_the_agents_records() -> None:
    asked: list[object] = []
    found = live(a_picture())
    async with looking(JOB, found, size=(120, 40)) as (app, pilot):
        app.shown.tell, app.shown._asked = asked.append, (0, 0.0)
        app.history.add_life(JobLife(job=36942, problem="no agent answers"))
        app.shown.draw(found, JOB)
        await pilot.pause()
        assert "(no agent answers)" in app.text
        assert [(one.job, one.nodes, one.cpus) for one in asked if isinstance(one, ReadLife)] == [(36942, ("h-1",), 96)]
        began = next(job.start for job in found.survey.jobs if job.job_id == 36942)
        points = tuple(Point(began + 60.0 * step, 50.0, 80.0, None, 40.0, 30.0) for step in range(22))
        app.history.add_life(JobLife(job=36942, points=points, by="the agents' records"))
        app.shown.draw(found, JOB)
        await pilot.pause()
        assert "from the agents' records" in app.text
        assert "it began" not in app.text
        assert "50% of its CPUs" in app.text


def test_a_waiting_job_says_why_in_words() -> None:
    survey = a_survey()
    job = replace(
        survey.jobs[0], job_id=5, nodes="", states=("PENDING",), reason="QOSMaxGRESPerUser", priority=7, gpu_indexes=(),
        memory_on_nodes_mib=(), start=None, ends=None,
    )  # fmt: skip
    text = look_at(Location(view="job", job=5), picture_of(replace(survey, jobs=(*survey.jobs, job))), size=(80, 24))
    assert "the limit of its QOS on GPUs of its user is reached (QOSMaxGRESPerUser)" in re.sub(r"\s+", " ", text)
    assert "priority" in text


def test_a_job_that_has_ended_says_so() -> None:
    location = Location(view="job", user="alice", job=11, job_name="11_[2-50] " + 50 * "a")
    text = " ".join(look_at(location, a_picture(), size=(80, 24)).split())
    assert "has ended, or it is not yours (Esc: back)" in text
    assert "slurm-share report 11 " in text


def test_jobs_have_their_sums_below_the_table_and_they_follow_the_filter() -> None:
    text = look_at(Location(view="jobs"), a_picture(), size=(120, 40))
    assert re.search(r"sum of 9 jobs +GPU 11.13\? of 18 +4 GPUs left idle +CPU 360.36\? of 608 +memory 583.5GB\?", text)

    async def filtered(app, pilot) -> None:
        app.shown.grid.query_text = "user=alice"

    survey = a_survey()
    held = [
        replace(survey.jobs[0], job_id=number, states=("PENDING",), nodes="", gpus=gpus)
        for number, gpus in ((7, 3), (8, None))
    ]
    some = picture_of(replace(survey, jobs=(*survey.jobs, *held)))
    assert "2 jobs wait for 3? GPUs" in look_at(Location(view="jobs"), some, size=(200, 50))

    assert "sum of 4 of 9 jobs" in look_at(Location(view="jobs"), a_picture(), size=(120, 40), play=filtered)

"""The screens of a large cluster and of a recorded one show first what needs somebody, at three terminal sizes."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from dashboards import NOW, picture_of
from scenes import NEED, kinds_of_nodes, large, recorded
from slurm_share_tui.location import Location
from slurm_share_tui.picture import SurveyPicture
from view_apps import look_at, looking

SIZES = ((80, 24), (120, 40), (200, 50))
GROUPS = {"silent": "dead", "broken": "dead", "memory full": "full", "killed": "full", "GPU full": "full"}

at_every_size = pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")


@cache
def picture(scene: str) -> SurveyPicture:
    """Return the picture of a scene; constant."""
    return picture_of(large(NOW) if scene == "large" else recorded())


async def to_the_end(app: Any, pilot: Any) -> None:
    """Go to the last row."""
    await pilot.press("end")


def rows(text: str, pattern: str) -> list[str]:
    """Return the lines of the table: those that begin with this."""
    return [line for line in text.splitlines() if re.match(rf"[ *]{pattern}", line)]


@at_every_size
def test_nodes_that_need_somebody_come_first_the_worst_at_the_top(size: tuple[int, int]) -> None:
    kinds = kinds_of_nodes()
    text = look_at(Location(view="nodes"), picture("large"), size=size)

    shown = [kinds[line.split()[0]] for line in rows(text, r"d-")]
    groups = [GROUPS.get(kind, kind) for kind in shown[:20]]
    assert len(shown) > 10
    assert set(shown[:20]) <= set(NEED)
    assert groups == sorted(groups, key=["dead", "full", "idle"].index)
    assert re.search(r"^ *400 nodes +20 need attention", text, re.MULTILINE)


async def test_only_the_nodes_that_need_somebody_are_left_with_f() -> None:
    async with looking(Location(view="nodes"), picture("large")) as (app, pilot):
        app.shown.flag()
        await pilot.pause()
        assert {kinds_of_nodes()[row.name] for row in app.shown.grid.shown_rows} == set(NEED)
        assert app.shown.grid.count == sum(NEED.values())


@at_every_size
@pytest.mark.parametrize("scene", ["large", "recorded"])
def test_numbers_of_jobs_are_whole_and_waiting_jobs_say_why(scene: str, size: tuple[int, int]) -> None:
    jobs = picture(scene).survey.jobs
    numbers = {str(job.array or job.job_id) for job in jobs}
    running = {str(job.array or job.job_id) for job in jobs if job.states[0] == "RUNNING"}
    reasons = {str(job.array or job.job_id): job.reason for job in jobs if job.states[0] == "PENDING"}

    text = look_at(Location(view="jobs"), picture(scene), size=size, play=to_the_end)

    lines = {line.split()[0]: line for line in rows(text, r"\d{7}")}
    assert len(lines) > 10
    assert lines.keys() <= numbers
    waiting = lines.keys() - running
    assert len(waiting) >= 8
    for number in waiting:
        assert " PD " in lines[number]
        assert f"({reasons[number]})"[:24] in lines[number]


@at_every_size
def test_a_gpu_that_is_held_and_has_no_process_names_its_holder(size: tuple[int, int]) -> None:
    text = look_at(Location(view="gpus"), picture("recorded"), size=size)
    held = rows(text, r"n3 ")
    assert len(held) == 2
    assert all(" alice " in line for line in held)

"""In every theme, only what is wrong now is drawn as an error: no full use, nothing of the past."""

from __future__ import annotations

import pytest
from dashboards import a_survey, picture_of, until
from msgspec.structs import replace
from shell import dashboard, shown
from slurm_share_tui import themes
from slurm_share_tui.location import Location
from slurm_share_tui.picture import SurveyPicture
from slurm_share_tui.user_config import UserConfig

QUIET = ("h-1", "h-2", "v-1", "v-6", "v-7")
"""Nodes that answer and have a GPU in use."""


def full_but_well() -> SurveyPicture:
    """Everything is in full use, processes were killed in the past, and nothing is wrong now."""
    survey = a_survey()
    nodes = []
    for node in survey.nodes:
        if node.name not in QUIET:
            continue
        seen = node.snapshot
        gpus = tuple(replace(gpu, memory_used_mib=gpu.memory_total_mib) for gpu in seen.gpus)
        jobs = tuple(replace(job, memory_kills=3) for job in seen.jobs)
        load = (4.0 * seen.cpus,) * 3
        nodes.append(replace(node, snapshot=replace(seen, gpus=gpus, jobs=jobs, load=load)))
    return picture_of(replace(survey, nodes=tuple(nodes)))


def with_a_dead_node() -> SurveyPicture:
    found = full_but_well().survey
    dead = replace(found.nodes[0], snapshot=None, why="no answer within 5 s")
    return picture_of(replace(found, nodes=(dead, *found.nodes[1:])))


def errors(app) -> list[str]:
    """Return the texts that are drawn as errors: in the theme's colour of errors, without colours bold and reversed."""
    drawn = []
    grid, lines = app.main_screen.grid, app.screen._compositor.render_strips()
    over = grid.get_component_rich_style("grid--over")
    for strip in lines:
        for segment in strip:
            style = segment.style
            if style is None or not segment.text.strip():
                continue
            is_colour = style.color is not None and style.color == over.color and not over.color.is_default
            is_plain = over.color.is_default and style.reverse and style.bold and segment.text.strip() in {"!", "n!"}
            if is_colour or is_plain or (style.bgcolor == over.color and not over.color.is_default):
                drawn.append(segment.text.strip())
    return drawn


@pytest.mark.parametrize("theme", themes.NAMES)
async def test_full_use_and_the_past_are_not_red_and_a_dead_node_is(theme):
    async with dashboard(size=(200, 50), config=UserConfig(theme=theme)) as (pilot, app, feed):
        await shown(pilot, feed, full_but_well())
        for view in ("nodes", "jobs", "users", "gpus", "advice"):
            await app.main_screen.go((Location(view=view),))
            await pilot.pause()
            assert errors(app) == [], view
        await app.main_screen.go((Location(view="nodes"),))
        dead = with_a_dead_node()
        feed.bring(dead)
        await until(pilot, lambda: app.picture is dead)
        await pilot.pause()
        if theme != themes.MONO:
            assert any("n!" in text for text in errors(app))

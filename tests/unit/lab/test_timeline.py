from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from slurm_share.lab import timeline
from slurm_share.lab.records import Bar


def bar(task, start, end, mib, **changes):
    given = {"gpu": 0, "task": task, "start_s": start, "end_s": end, "memory": ((start, mib),), "outcome": "done"}
    return Bar(**(given | changes))


def text_of(svg):
    return " ".join(ElementTree.fromstring(svg).itertext())


def test_a_picture_is_valid_and_has_every_task_and_gpu():
    svg = timeline.draw(
        [bar(7, 0.0, 60.0, 5000, name="a<b"), bar(8, 10.0, 90.0, 9000, gpu=1)],
        [40960, 40960],
        "t & u",
        is_simulated=True,
    )
    text = text_of(svg)
    for word in ("task 7 (a<b)", "task 8", "GPU 0", "GPU 1", "simulated: t & u", "40.0 GiB", "5000 MiB"):
        assert word in text


def test_a_task_that_was_lost_is_told_by_more_than_colour():
    svg = timeline.draw([bar(1, 0.0, 9.0, 100, outcome="gpu memory", attempt=2)], [1000], "t", is_simulated=True)
    assert "fill='url(#lost)'" in svg
    assert "attempt 2: gpu memory" in text_of(svg)


def test_tasks_are_stacked_and_fall_when_one_below_ends():
    stacked = timeline._stacked([bar(2, 5.0, 20.0, 300), bar(1, 0.0, 10.0, 1000)])
    assert [(one.task, pieces) for one, pieces in stacked] == [
        (1, [(0.0, 10.0, 0, 1000)]),
        (2, [(5.0, 10.0, 1000, 300), (10.0, 20.0, 0, 300)]),
    ]


def test_memory_over_time_is_the_height():
    growing = bar(1, 0.0, 10.0, 0, memory=((0.0, 0), (4.0, 500), (6.0, 800)))
    assert timeline._stacked([growing])[0][1] == [(0.0, 4.0, 0, 0), (4.0, 6.0, 0, 500), (6.0, 10.0, 0, 800)]


@pytest.mark.parametrize("bars", [[], [bar(1, 3.0, 3.0, 10)]])
def test_a_run_of_nothing_has_a_picture_too(bars):
    ElementTree.fromstring(timeline.draw(bars, [1000], "t", is_simulated=True))


def test_a_picture_can_be_rendered():
    cairosvg = pytest.importorskip("cairosvg")
    png = cairosvg.svg2png(timeline.draw([bar(1, 0.0, 9.0, 500)], [1000], "t", is_simulated=True).encode())
    assert png.startswith(b"\x89PNG")

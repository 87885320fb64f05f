"""The work rates of tasks: by task, bounded, with gaps where nothing was measured."""

from __future__ import annotations

import pytest
from dashboards import NOW, picture_of
from msgspec.structs import replace
from slurm_share_tui.history import FINE_S, History, WorkHistory, full_per_s, key_of
from slurm_share_tui.picture import Picture

from slurm_share.load.snapshot import NodeLoad, ProcessLoad, Snapshot, Survey, TaskProgress


def a_process(per_s: float | None, *, pid: int = 10, task: int = 3, paused: bool = False, **more) -> ProcessLoad:
    fields = {"speed_ratio": None, **more}
    progress = TaskProgress(task=task, run="r", rate_per_s=per_s, rate_source="log", is_paused=paused, **fields)
    return ProcessLoad(pid=pid, name="python", uid=1, user="u", job=7, progress=progress)


def seen(at: float, *processes: ProcessLoad) -> Picture:
    """Return a picture this many seconds after NOW."""
    snapshot = Snapshot(node="n1", taken=NOW + at, cpus=1, cores=1, processes=processes)
    survey = Survey(taken=NOW + at, user="u", source="srun", nodes=(NodeLoad(name="n1", snapshot=snapshot),))
    return picture_of(survey)


def taken(*looks: tuple[float, ProcessLoad]) -> WorkHistory:
    history = WorkHistory()
    for number, (at, process) in enumerate(looks):
        history.take(number, seen(at, process))
    return history


def test_the_speed_of_a_task_is_in_percent_of_that_alone():
    now = a_process(5.0, speed_ratio=0.5)
    looks = (a_process(10.0), a_process(None), a_process(5.0, paused=True), now)
    history = taken(*((20.0 * at, one) for at, one in enumerate(looks)))
    assert history.percents("n1", now, 40) == (100.0, None, 0.0, 50.0)
    assert history.most_per_s("n1", now) == 10.0


def test_without_a_speed_alone_the_most_that_was_seen_is_full():
    now = a_process(5.0)
    history = taken((0, a_process(20.0)), (20, now))
    assert (history.percents("n1", now, 40), history.most_per_s("n1", now)) == ((100.0, 25.0), 20.0)
    assert full_per_s(now, [None]) is None


def test_a_task_is_known_by_its_number_and_not_by_its_process():
    history = taken((0, a_process(20.0)))
    assert history.percents("n1", a_process(20.0, pid=99), 40) == (100.0,)
    assert history.percents("n2", a_process(20.0), 40) == ()
    assert history.percents("n1", a_process(20.0, task=4), 40) == ()
    silent = replace(a_process(20.0), progress=None)
    assert (key_of("n1", silent), history.percents("n1", silent, 40), history.most_per_s("n1", silent)) == (
        None, (), None,
    )  # fmt: skip


def test_more_looks_than_there_is_room_for_become_means():
    now = a_process(10.0)
    history = taken(*((20.0 * at, a_process(10.0 if at % 2 else 5.0)) for at in range(100)))
    found = history.percents("n1", now, 16)
    assert len(found) <= 16
    assert set(found) == {75.0} or found[0] in (50.0, 100.0)
    assert len(history.percents("n1", now, 1000)) == FINE_S / 20 + 1


def test_a_replay_that_goes_back_takes_what_came_after_away():
    history = taken((0, a_process(1.0)), (20, a_process(2.0)), (20, a_process(4.0)), (10, a_process(4.0)))
    assert history.percents("n1", a_process(4.0), 40) == (25.0, 100.0)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("slurm_share_tui.history.RATES_MOST", 3)
    history = taken(*((20.0 * at, a_process(1.0 + at)) for at in range(9)))
    assert len(history.percents("n1", a_process(9.0), 40)) == 3


def test_the_dashboards_history_has_it():
    history = History()
    history.take(seen(0, a_process(2.0)))
    assert history.work.percents("n1", a_process(2.0), 40) == (100.0,)

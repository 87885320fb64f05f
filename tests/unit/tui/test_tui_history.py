"""The history: every survey for ten minutes, means before, bounded, with gaps where nothing was seen."""

from __future__ import annotations

import threading
from dataclasses import replace as changed
from itertools import pairwise

import pytest
from dashboards import NOW, a_picture, a_survey, picture_of
from msgspec.structs import replace
from slurm_share_tui import history as room
from slurm_share_tui import history_values
from slurm_share_tui.history import FINE_S, FigureHistory, WorkHistory, full_per_s, key_of
from slurm_share_tui.picture import SurveyPicture
from slurm_share_tui.wire import Point, RecordedPoints, Subject

from slurm_share.load.snapshot import (
    GpuLoad,
    GpuSums,
    GpuUser,
    Means,
    NodeLoad,
    ProcessLoad,
    Snapshot,
    Survey,
    TaskProgress,
    UserLoad,
)
from slurm_share.node.gpu_figures import Activity
from slurm_share.slurm.records import SlurmNode

N1 = Subject(node="n1")


def level(percent: float) -> Means:
    return Means(percent, percent, percent, 900.0)


def a_node(name: str = "n1", load: float | None = 4.0, **more) -> NodeLoad:
    """Return a node of eight CPUs with this load and 100 of 400 MiB in use."""
    known = {"node": name, "taken": NOW, "cpus": 8, "cores": 8, "memory_total_mib": 400, "memory_used_mib": 100}
    loads = None if load is None else (load, load, load)
    return NodeLoad(name=name, snapshot=Snapshot(**{**known, "load": loads, **more}))


def arrived_picture(at: float, *nodes: NodeLoad) -> SurveyPicture:
    """Return a picture this many seconds after NOW."""
    return picture_of(Survey(taken=NOW + at, user="alice", source="srun", nodes=nodes))


def seen(points) -> list[tuple[float, float | None]]:
    """Return the points as (seconds after NOW, CPU load)."""
    return [(point.taken - NOW, point.cpu_load_percent) for point in points]


def a_gpu(uuid: str = "GPU-1", **more) -> GpuLoad:
    known = {"uuid": uuid, "index": 0, "name": "A", "memory_total_mib": 1000, "memory_used_mib": 250}
    return GpuLoad(**{**known, "utilization_percent_windows": level(80), **more})


def test_a_node_is_five_figures() -> None:
    gpus = (
        a_gpu(),
        a_gpu("GPU-2", sm_percent_windows=level(20), activity=Activity(sm_percent=30.0), memory_used_mib=750),
    )
    row = arrived_picture(0, a_node(gpus=gpus)).nodes[0]
    assert history_values.node_values(row) == (50.0, 50.0, 30.0, 25.0, 50.0)
    assert history_values.gpu_values(gpus[0]) == (None, 80.0, None, None, 25.0)
    assert history_values.gpu_values(gpus[1]) == (None, 20.0, 30.0, None, 75.0)


def test_a_line_of_sums_has_the_same_figures() -> None:
    sums = GpuSums(count=4, memory_total_mib=4000, memory_used_mib=1000, gpu_load=2.0, gpu_load_by="sm")
    row = arrived_picture(0, a_node(gpu_sums=sums)).nodes[0]
    assert history_values.node_values(row) == (50.0, 50.0, 50.0, 25.0, 25.0)
    by_both = arrived_picture(0, a_node(gpu_sums=replace(sums, gpu_load_by="both"))).nodes[0]
    assert history_values.node_values(by_both)[1:3] == (50.0, None)


def test_a_silent_node_is_unknown_and_not_zero() -> None:
    slurm = SlurmNode(name="n1", states=("ALLOCATED",), cpus=8, cpus_allocated=8, memory_mib=1, load5=4.0)
    for told in (None, slurm):
        row = arrived_picture(0, NodeLoad(name="n1", slurm=told, why="no agent answers")).nodes[0]
        assert history_values.node_values(row) == history_values.NOTHING


def test_a_user_is_what_is_theirs_over_all_nodes() -> None:
    mine = GpuUser(uid=2001, sm_percent_windows=level(40))
    gpus = (a_gpu(users=(mine,)), a_gpu("GPU-2"))
    user = UserLoad(
        uid=2001, user="alice", gpus=("GPU-1",), gpu_memory_mib=250, gpu_load=0.5, cpu_cores=2.0, memory_mib=50
    )
    idle = UserLoad(uid=2002, user="bob", gpu_load=0.0)
    rows = arrived_picture(
        0, a_node(gpus=gpus, users=(user, idle)), a_node("n2", users=(replace(user, gpus=()),))
    ).nodes
    found = history_values.user_values(rows)
    assert found["alice"] == (25.0, 100.0, 40.0, 12.5, 50.0)
    assert found["bob"] == (None, 0.0, None, None, None)


def test_one_subject_is_found_as_in_the_whole() -> None:
    picture = a_picture()
    for subject, values in history_values.all_values(picture.nodes, gpus=True):
        assert history_values.subject_values(picture.nodes, subject) == values
    assert history_values.subject_values(picture.nodes, Subject(node="nowhere")) is None
    assert history_values.point_of(picture.nodes, Subject(user="nobody"), 5.0) == Point(5.0)


def test_every_subject_of_a_look_can_be_asked_for() -> None:
    history = FigureHistory()
    picture = a_picture()
    history.take(picture)
    for subject, values in history_values.all_values(picture.nodes, gpus=True):
        (point,) = history.points(subject, 600)
        assert point.taken == picture.survey.taken
        kept = tuple(getattr(point, field) for field in room.FIELDS)
        assert kept == tuple(None if value is None else pytest.approx(value, rel=1e-6) for value in values)
        assert history.spark(subject, "cpu_load_percent", 8) == (point.cpu_load_percent,)
    assert history.points(Subject(node="nowhere"), None) == ()
    assert history.spark(Subject(node="nowhere"), "gpu_load_percent", 8) == (None,)


def test_what_is_not_seen_is_a_gap() -> None:
    history = FigureHistory()
    for at, nodes in enumerate(((a_node("n2"),), (a_node(),), (NodeLoad(name="n1"),), (a_node("n2"),), (a_node(),))):
        history.take(arrived_picture(5 * at, *nodes))
    assert seen(history.points(N1, None)) == [(5, 50.0), (10, None), (15, None), (20, 50.0)]
    assert history.spark(N1, "cpu_load_percent", 8) == (None, 50.0, None, None, 50.0)


def test_ten_minutes_are_fine_and_what_is_before_is_the_mean_of_a_minute() -> None:
    history = FigureHistory()
    for at in range(0, 3 * 3600, 10):
        history.take(arrived_picture(at, a_node(load=8.0 if at % 20 else 0.0)))
    points = history.points(N1, None)
    times = [point.taken - NOW for point in points]
    assert times == sorted(set(times))
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[-60:] == [10.0] * 60
    assert max(pauses) <= 600
    assert [round(pause) for pause in pauses[-110:-62]] == [60] * 48
    assert len(points) == pytest.approx(61 + 50 + 12, abs=4)
    assert {point.cpu_load_percent for point in points if point.taken - NOW < 5000} == {50.0}
    assert seen(history.points(N1, 600))[0][0] == 3 * 3600 - 10 - 600
    assert len(history.points(N1, 3600)) == pytest.approx(61 + 50, abs=2)


def test_means_are_of_what_is_known() -> None:
    history = FigureHistory()
    for at in range(0, 1200, 20):
        is_silent = at % 60 == 20 or at >= 240
        history.take(
            arrived_picture(at, a_node(load=None if is_silent else 4.0), *([a_node("n2")] if at % 60 == 0 else []))
        )
    before = [point for point in history.points(N1, None) if point.taken - NOW < 590]
    assert {point.cpu_load_percent for point in before if point.taken - NOW < 180} == {50.0}
    assert {point.cpu_load_percent for point in before if point.taken - NOW > 300} == {None}
    assert {point.memory_percent for point in before} == {25.0}
    assert {point.cpu_load_percent for point in history.points(Subject(node="n2"), None)[:3]} == {50.0}


def test_a_sparkline_shows_all_ten_minutes_in_its_width() -> None:
    """Means that were drawn once do not change."""
    history = FigureHistory()
    shown = []
    for at in range(200):
        history.take(arrived_picture(5 * at, a_node(load=8.0 * (at % 2))))
        shown.append(history.spark(N1, "cpu_load_percent", 10))
        assert len(shown[-1]) <= 10
    assert shown[3] == (0.0, 100.0, 0.0, 100.0)
    assert set(shown[-1][1:-1]) == {50.0}
    assert shown[190][2:-2] == shown[191][2:-2]
    assert history.spark(N1, "cpu_load_percent", 0) == ()


def test_a_look_of_an_earlier_time_takes_the_place_of_what_was_after_it() -> None:
    history = FigureHistory()
    for at in (0, 5, 10, 15, 10, 12):
        history.take(arrived_picture(at, a_node(load=at / 10)))
    assert seen(history.points(N1, None)) == [(at, pytest.approx(at * 1.25)) for at in (0, 5, 10, 12)]
    assert history.newest == NOW + 12


def test_what_a_recording_has_is_the_answer_from_then_on() -> None:
    history = FigureHistory()
    history.take(arrived_picture(1000, a_node()))
    assert not history.has_recorded(N1)
    history.add_recorded(
        RecordedPoints(N1, tuple(Point(NOW + at, cpu_load_percent=1.0) for at in (2000, 0, 900, 1000)))
    )
    assert history.has_recorded(N1)
    assert [at for at, _ in seen(history.points(N1, None))] == [0, 900, 1000, 2000]
    assert [at for at, _ in seen(history.points(N1, 600))] == [900, 1000]


def test_only_a_few_pasts_are_kept() -> None:
    history = FigureHistory()
    subjects = [Subject(node=f"n{number}") for number in range(room.RECORDED_MOST + 1)]
    for subject in subjects[:-1]:
        history.add_recorded(RecordedPoints(subject, ()))
    history.points(subjects[0], None)
    history.add_recorded(RecordedPoints(subjects[-1], ()))
    assert [history.has_recorded(subject) for subject in subjects] == [True, False, *[True] * (room.RECORDED_MOST - 1)]


def test_a_large_cluster_has_nodes_and_no_gpus(monkeypatch) -> None:
    monkeypatch.setattr(room, "NODES_WITH_GPUS", 11)
    history = FigureHistory()
    picture = a_picture()
    history.take(picture)
    gpu = next(gpu for row in picture.nodes if row.node.snapshot for gpu in row.node.snapshot.gpus)
    node = next(row.name for row in picture.nodes if row.node.snapshot and gpu in row.node.snapshot.gpus)
    assert len(history.points(Subject(node=node), None)) == 1
    assert history.points(Subject(node=node, gpu=gpu.uuid), None) == ()


def test_memory_is_bounded_by_leaving_the_oldest_out(monkeypatch) -> None:
    monkeypatch.setattr(room, "VALUES_MOST", 100)
    history = FigureHistory()
    for at in range(100):
        history.take(arrived_picture(at, a_node(), a_node("n2")))
    assert len(history._fine) == 10
    assert len(history._minutes) <= 10
    one_large = picture_of(a_survey(count=40, now=NOW + 200))
    history.take(one_large)
    assert history.newest == NOW + 200
    assert len(history._fine) == 1


def test_looks_come_in_while_others_read() -> None:
    history = FigureHistory()
    failures: list[BaseException] = []
    over = threading.Event()

    def read() -> None:
        try:
            while not over.is_set():
                history.spark(N1, "cpu_load_percent", 12)
                history.points(N1, None)
                history.points(Subject(user="alice"), 600)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for at in range(150):
        history.take(arrived_picture(at * 7, a_node(), *([a_node(f"n{at}")] if at % 3 else [])))
    over.set()
    for reader in readers:
        reader.join()
    assert failures == []
    assert history.spark(N1, "cpu_load_percent", 4)[-1] == 50.0


def test_a_picture_without_nodes_is_a_moment_without_anything() -> None:
    history = FigureHistory()
    history.take(arrived_picture(0))
    history.take(changed(arrived_picture(5, a_node()), details=False))
    assert seen(history.points(N1, None)) == [(5, 50.0)]


# --- Work -------------------------------------------------------------------------------------------------------------


def a_process(per_s: float | None, *, pid: int = 10, task: int = 3, paused: bool = False, **more) -> ProcessLoad:
    fields = {"speed_ratio": None, **more}
    progress = TaskProgress(task=task, run="r", rate_per_s=per_s, rate_source="log", is_paused=paused, **fields)
    return ProcessLoad(pid=pid, name="python", uid=1, user="u", job=7, progress=progress)


def worked(at: float, *processes: ProcessLoad) -> SurveyPicture:
    """Return a picture this many seconds after NOW."""
    snapshot = Snapshot(node="n1", taken=NOW + at, cpus=1, cores=1, processes=processes)
    survey = Survey(taken=NOW + at, user="u", source="srun", nodes=(NodeLoad(name="n1", snapshot=snapshot),))
    return picture_of(survey)


def taken(*looks: tuple[float, ProcessLoad]) -> WorkHistory:
    history = WorkHistory()
    for number, (at, process) in enumerate(looks):
        history.take(number, worked(at, process))
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


def test_rates_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("slurm_share_tui.history.RATES_MOST", 3)
    history = taken(*((20.0 * at, a_process(1.0 + at)) for at in range(9)))
    assert len(history.percents("n1", a_process(9.0), 40)) == 3


def test_the_dashboards_history_has_it():
    history = FigureHistory()
    history.take(worked(0, a_process(2.0)))
    assert history.work.percents("n1", a_process(2.0), 40) == (100.0,)

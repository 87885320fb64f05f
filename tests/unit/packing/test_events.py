from __future__ import annotations

import errno
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from packing_values import is_replayable

from slurm_share.core.append_file import AppendFile
from slurm_share.packing import events
from slurm_share.packing.decision_records import Decision, Start
from slurm_share.packing.events import EventLog, EventReader, Progress, ProgressReader, RankWait, SizeReader
from slurm_share.packing.records import EndFacts, GpuFacts, PackSettings, PackView, TaskAsk, TaskKey
from slurm_share.packing.rules import explain
from slurm_share.packing.rules.board import Board
from slurm_share.packing.rules.estimate.estimator import Estimator
from slurm_share.packing.rules.speed_account import GroupResult

GPUS = [
    GpuFacts(
        uuid=f"GPU-{n}", index=n, model="A100" if n < 2 else "H100", total_mib=40960 if n < 2 else 81920, is_mps=True
    )
    for n in range(3)
]


def live(seed: int, folder: Path, tasks: int = 40) -> list[tuple[PackView, Decision]]:
    """Run a node through random events with a journal; return every view and decision."""
    rng = random.Random(seed)
    policy = rng.choice(["gain", "gain", "booked", "booked", "magm", "lug", "exclusive", "rr"])
    order = rng.choice(["fifo", "long"])
    board = Board(GPUS, 8, PackSettings(policy=policy, order=order, patience_s=30.0), Estimator())
    made = EventLog(folder, "job", 1000.0)
    found, now, running = [], 0.0, {}
    for task in range(tasks):
        key = TaskKey(exact=f"e{rng.randrange(6)}", family=f"f{rng.randrange(3)}", numbers=(("--n", rng.random()),))
        ask = TaskAsk(
            task=task,
            gpus=rng.choice([1, 1, 1, 1, 2]),
            gpu_mem_mib=rng.choice([None, None, 4000, 20000, 50000]),
            key=rng.choice([key, None]),
        )
        board.add(ask, now)
        for _ in range(rng.randrange(4)):
            now += rng.random() * 20
            view, decision = board.decide(now)
            made.decide(view, decision)
            found.append((view, decision))
            running.update({one.task: one for one in decision.actions if isinstance(one, Start)})
            for number, start in running.items():
                memory = {uuid: rng.randrange(30000) for uuid in start.gpus}
                board.sample_task(number, memory, rng.randrange(1, 4), now)
            for gpu in GPUS:
                board.sample_gpu(
                    gpu.uuid, now, used_mib=rng.choice([None, rng.randrange(40000)]), sm_ratio=rng.random()
                )
            if running and rng.random() < 0.6:
                number = rng.choice(sorted(running))
                del running[number]
                tail = rng.choice([b"", b"CUDA out of memory. Tried to allocate 2.00 GiB", b"an illegal memory access"])
                board.ended(EndFacts(task=number, now_s=now, code=rng.choice([0, 0, 1]), log_tail=tail))
    made.close()
    return found


@given(seed=st.integers(0, 10**9))
def test_every_view_is_rebuilt_and_every_decision_comes_out_the_same(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("node")
    acted = [(view, decision) for view, decision in live(seed, folder) if decision.actions]
    entries = list(events.read_decisions((folder / events.EVENTS).read_bytes()))
    assert [(one.view, one.actions) for one in entries if one.actions] == [(v, d.actions) for v, d in acted]
    assert is_replayable(entries)
    assert is_replayable([replace(one, actions=()) for one in entries]) == (not acted)


@settings(max_examples=20)
@given(seed=st.integers(0, 10**9), cut=st.floats(0, 1))
def test_a_journal_cut_off_anywhere_is_read_up_to_there_and_the_next_job_is_read_whole(
    seed: int, cut: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("node")
    live(seed, folder)
    file = folder / events.EVENTS
    whole = file.read_bytes()
    before = list(events.read_decisions(whole))
    torn = whole[: int(cut * len(whole))]
    assert list(events.read_decisions(torn)) == before[: torn.count(b"\n")] or not torn.endswith(b"\n")
    file.write_bytes(torn)
    live(seed + 1, folder)
    after = list(events.read_decisions(file.read_bytes()))
    assert after[: torn.count(b"\n")] == before[: torn.count(b"\n")]
    assert is_replayable(after)


def test_a_repeat_is_read_as_the_start_of_the_task_whose_place_was_taken(tmp_path: Path) -> None:
    board = Board(GPUS[:1], 2, PackSettings(), Estimator())
    made = EventLog(tmp_path, "7", 500.0)
    for task in range(3):
        board.add(TaskAsk(task=task, gpu_mem_mib=1000), 0.0)
    view, decision = board.decide(1.0)
    made.decide(view, decision)
    made.repeat(2.5, 0, 2)
    made.close()
    first, second = events.read_decisions((tmp_path / events.EVENTS).read_bytes())
    assert {one.task for one in first.actions} == {0, 1}
    (start,) = second.actions
    assert isinstance(start, Start)
    assert (start.task, start.reserve_mib, second.repeats, second.unix_s) == (2, 1000, 0, 502.5)
    said = list(explain.explain_task([first, second], 2))
    assert any("starts on" in line for _, lines in said for line in lines)


def test_waiting_tasks_are_noted_less_and_less_often_and_never_without_end(tmp_path: Path) -> None:
    board = Board(GPUS[:1], 4, PackSettings(), Estimator())
    made = EventLog(tmp_path, "7", 0.0)
    board.add(TaskAsk(task=0, gpu_mem_mib=38000), 0.0)
    board.add(TaskAsk(task=1, gpu_mem_mib=38000), 0.0)
    for second in range(3600):
        board.sample_gpu("GPU-0", float(second), used_mib=second)
        made.decide(*board.decide(float(second)))
    made.close()
    lines = (tmp_path / events.EVENTS).read_bytes().splitlines()
    assert 1 < len(lines) < 100


def test_a_full_journal_says_so_once_and_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_BYTES", 3000)
    board = Board(GPUS[:1], 100, PackSettings(), Estimator())
    made = EventLog(tmp_path, "7", 0.0)
    for task in range(30):
        board.add(TaskAsk(task=task, gpu_mem_mib=400), float(task))
        made.decide(*board.decide(float(task)))
    made.close()
    assert "it has reached" in made.problem
    data = (tmp_path / events.EVENTS).read_bytes()
    assert len(data) <= 3000
    assert list(events.read_decisions(data))


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xfe\n",
        b"{}\n",
        b'{"t":1,"again":[1,2]}\n',
        b"[[[[\n",
        b'{"t":1,"begin":{"version":9,"job":"","unix_s":0}}\n',
    ],
)
def test_what_is_no_journal_gives_nothing(data: bytes) -> None:
    assert list(events.read_decisions(data)) == []


def test_a_size_that_nobody_can_have_is_not_explained(tmp_path: Path) -> None:
    """JSON has whole numbers that are larger than any float; what is damaged says nothing, and ends nothing."""
    board = Board(GPUS[:1], 2, PackSettings(), Estimator())
    made = EventLog(tmp_path, "7", 500.0)
    board.add(TaskAsk(task=0, gpu_mem_mib=1000), 0.0)
    made.decide(*board.decide(1.0))
    whole = (tmp_path / events.EVENTS).read_bytes()
    damaged = whole.replace(b'"gpu_mem_mib":1000', b'"gpu_mem_mib":1' + b"0" * 400)
    assert damaged != whole
    assert len(list(explain.explain_task(events.read_decisions(whole), 0))) == 1
    assert list(explain.explain_task(events.read_decisions(damaged), 0)) == []


# ---- Lines of other kinds ----

KEY = TaskKey("exact", "family", (("--batch", 32.0),), "series", "script")
GROUP = GroupResult(
    gpu=1, tasks=(0, 1), from_s=60.0, seconds=720.0, windows=6, stp=1.3, error=0.02, delta=None,
    slowdowns=(2.0, 1.25),
)  # fmt: skip


def shown(at: float, **more: Any) -> Progress:
    fields = {"node": "n1", "job": "7", "processes": 4, "running": 4, "done": 0, "failed": 0, "left": 9, "began": 100.0}
    return Progress(at=at, **(fields | more))


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    folders = [tmp_path / "p0-p3_n1", tmp_path / "p4-p7_n2"]
    for folder in folders:
        folder.mkdir()
    return folders


def tell(folder: Path, *peaks: int, key: TaskKey = KEY, age_s: float = 61.0) -> None:
    log = EventLog(folder, "7")
    for peak in peaks:
        log.size(key, "A100", peak, age_s)
    log.close()


def test_every_reader_takes_its_lines_from_one_file(nodes: list[Path]) -> None:
    log = EventLog(nodes[0], "7")
    board = Board(GPUS[:1], 2, PackSettings(), Estimator())
    board.add(TaskAsk(task=0, gpu_mem_mib=1000), 0.0)
    log.progress(shown(100.0))
    log.decide(*board.decide(1.0))
    log.groups([GROUP])
    log.repeat(2.0, 0, 1)
    log.size(KEY, "A100", 5000, 61.0)
    log.progress(shown(102.0, waits=(RankWait(1, "in barrier", 101.0),)))
    log.close()
    data = (nodes[0] / events.EVENTS).read_bytes()
    assert [line["event"] for line in map(json.loads, data.splitlines())] == [
        *("progress", "decision", "group", "repeat", "size", "progress")
    ]
    assert [one.repeats for one in events.read_decisions(data)] == [None, 0]
    assert list(events.read_groups(data)) == [GROUP]
    assert [one.peak_mib for one in SizeReader(nodes[1]).read(0.0)] == [5000]
    (last,) = ProgressReader(nodes[0].parent).read()
    assert last.waits[0].what == "in barrier"


def test_decisions_after_lines_that_were_lost_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a full disk did not take is missing; the next decision is stored whole."""
    log = EventLog(tmp_path, "7")
    board = Board(GPUS[:1], 100, PackSettings(), Estimator())
    made = []
    for task in range(6):
        board.add(TaskAsk(task=task, gpu_mem_mib=400), float(task))
        made.append(board.decide(float(task)))
        with monkeypatch.context() as patch:
            if task in (2, 3):
                patch.setattr(AppendFile, "append", no_room)
            log.decide(*made[-1])
    log.close()
    assert log.problem == "No space left on device"
    entries = list(events.read_decisions((tmp_path / events.EVENTS).read_bytes()))
    assert [(one.view, one.actions) for one in entries] == [(v, d.actions) for v, d in (*made[:2], *made[4:])]


def no_room(file: AppendFile, data: bytes) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_progress_of_a_long_run_is_written_less_often_but_failures_and_the_end_at_once(nodes: list[Path]) -> None:
    log = EventLog(nodes[0], "7")
    reader = EventReader(nodes[0].parent, Progress)

    def written(*parts: Progress) -> list[float]:
        for one in parts:
            log.progress(one)
        return [one.at for _, one in reader.read()]

    assert written(*(shown(100.0 + second) for second in range(5))) == [100, 101, 102, 103, 104]
    day = 86400.0
    assert written(*(shown(day + second) for second in range(60))) == [day, day + 15, day + 30, day + 45]
    assert written(shown(day + 61, failed=1), shown(day + 62, failed=1)) == [day + 61]
    assert written(shown(day + 63, failed=1, ended=True)) == [day + 63]
    assert written(shown(50.0, ended=False)) == [50]  # the clock was set back


def test_the_latest_progress_is_found_behind_many_other_lines(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "END_BYTES", 256)
    log = EventLog(nodes[0], "7")
    for second in range(20):
        log.progress(shown(100.0 + second))
    for peak in range(1, 50):
        log.size(KEY, "A100", peak, 1.0)
    reader = ProgressReader(nodes[0].parent)
    assert [one.at for one in reader.read()] == [119]
    log.progress(shown(130.0))
    assert [one.at for one in reader.read()] == [130]
    log.close()
    EventLog(nodes[1], "7").progress(shown(90.0, node="n2"))
    assert [(one.node, one.at) for one in reader.read()] == [("n1", 130), ("n2", 90)]


def test_a_node_reads_the_sizes_of_another_once_and_every_half_minute(nodes: list[Path]) -> None:
    tell(nodes[0], 5000, 5000, 4900, 6000)
    reader = SizeReader(nodes[1])
    first, second = reader.read(5.0)
    assert (first.key.exact, first.gpu_model, first.peak_mib, second.peak_mib) == ("exact", "A100", 5000, 6000)
    tell(nodes[0], 7000)
    assert reader.read(5.0 + events.SIZES_EVERY_S - 1) == []
    assert [one.peak_mib for one in reader.read(5.0 + events.SIZES_EVERY_S)] == [7000]


def test_a_node_reads_its_own_sizes_at_first_only_and_those_of_tasks_that_grew_apart(nodes: list[Path]) -> None:
    log = EventLog(nodes[0], "7")
    for peak, task in ((5000, None), (9000, 3), (8000, 3), (9500, 3)):
        log.size(KEY, "A100", peak, 61.0, task)
    reader = SizeReader(nodes[0])
    assert [one.peak_mib for one in reader.read(0.0)] == [5000]
    assert reader.seen_mib == {3: 9500}
    log.size(KEY, "A100", 7000, 61.0)
    assert reader.read(events.SIZES_EVERY_S) == []


def test_a_size_told_by_another_node_is_used_here(nodes: list[Path]) -> None:
    """The names of the numbers are hashes on the way, and count as the same."""
    for batch, peak in ((32.0, 4000), (64.0, 5000)):
        tell(nodes[0], peak, key=TaskKey(f"exact {batch}", "family", (("--batch", batch),), "series"), age_s=900.0)
    estimator = Estimator()
    for size in SizeReader(nodes[1]).read(0.0):
        estimator.sibling(size.key, size.gpu_model, size.peak_mib, size.age_s)
    ask = TaskAsk(task=1, key=TaskKey("new", "family", (("--batch", 128.0),), "series"))
    found = estimator.estimate(ask, "A100", 40_960)
    assert (found.source, found.point_mib) == ("line", round(7000 * 1.05))
    assert b"--batch" not in (nodes[0] / events.EVENTS).read_bytes()


def test_half_a_line_is_read_when_it_is_whole(nodes: list[Path]) -> None:
    tell(nodes[0], 5000)
    file = nodes[0] / events.EVENTS
    line = file.read_bytes()
    file.write_bytes(line[:20])
    reader = SizeReader(nodes[1])
    assert reader.read(0.0) == []
    file.write_bytes(line)
    assert len(reader.read(60.0)) == 1


@pytest.mark.parametrize("bad", [b"nonsense", b'{"event":"size","peak_mib":-1}', b"\xff", b"[" * 9999, bytes(3 << 20)])
def test_a_line_that_is_none_is_passed_over(nodes: list[Path], bad: bytes) -> None:
    (nodes[0] / events.EVENTS).write_bytes(bad + b"\n")
    tell(nodes[0], 5000)
    assert [one.peak_mib for one in SizeReader(nodes[1]).read(0.0)] == [5000]


def test_a_link_is_not_followed(nodes: list[Path], tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    (nodes[0] / events.EVENTS).symlink_to(tmp_path / "x")
    assert SizeReader(nodes[1]).read(0.0) == []
    log = EventLog(nodes[0], "7")
    log.size(KEY, "A100", 5000, 61.0)
    assert log.problem == "Too many levels of symbolic links"
    assert (tmp_path / "x").stat().st_size == 0

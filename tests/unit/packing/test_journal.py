from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from packing_values import is_replayable

from slurm_share.packing import journal
from slurm_share.packing.decision_records import Decision, Start
from slurm_share.packing.records import EndFacts, GpuFacts, PackSettings, PackView, TaskAsk, TaskKey
from slurm_share.packing.rules.board import Board
from slurm_share.packing.rules.estimate.estimator import Estimator

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
    made = journal.Journal(folder, "job", 1000.0)
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
            made.note(view, decision)
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


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_every_view_is_rebuilt_and_every_decision_comes_out_the_same(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("node")
    acted = [(view, decision) for view, decision in live(seed, folder) if decision.actions]
    entries = list(journal.read_journal((folder / journal.DECISIONS).read_bytes()))
    assert [(one.view, one.actions) for one in entries if one.actions] == [(v, d.actions) for v, d in acted]
    assert is_replayable(entries)
    assert is_replayable([replace(one, actions=()) for one in entries]) == (not acted)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**9), cut=st.floats(0, 1))
def test_a_journal_cut_off_anywhere_is_read_up_to_there_and_the_next_job_is_read_whole(
    seed: int, cut: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("node")
    live(seed, folder)
    file = folder / journal.DECISIONS
    whole = file.read_bytes()
    before = list(journal.read_journal(whole))
    torn = whole[: int(cut * len(whole))]
    assert list(journal.read_journal(torn)) == before[: torn.count(b"\n")] or not torn.endswith(b"\n")
    file.write_bytes(torn)
    live(seed + 1, folder)
    after = list(journal.read_journal(file.read_bytes()))
    assert after[: torn.count(b"\n")] == before[: torn.count(b"\n")]
    assert is_replayable(after)


def test_a_repeat_is_read_as_the_start_of_the_task_whose_place_was_taken(tmp_path: Path) -> None:
    board = Board(GPUS[:1], 2, PackSettings(), Estimator())
    made = journal.Journal(tmp_path, "7", 500.0)
    for task in range(3):
        board.add(TaskAsk(task=task, gpu_mem_mib=1000), 0.0)
    view, decision = board.decide(1.0)
    made.note(view, decision)
    made.repeat(2.5, 0, 2)
    made.close()
    first, second = journal.read_journal((tmp_path / journal.DECISIONS).read_bytes())
    assert {one.task for one in first.actions} == {0, 1}
    (start,) = second.actions
    assert isinstance(start, Start)
    assert (start.task, start.reserve_mib, second.repeats, second.unix_s) == (2, 1000, 0, 502.5)
    said = list(journal.explain_task([first, second], 2))
    assert any("starts on" in line for _, lines in said for line in lines)


def test_waiting_tasks_are_noted_less_and_less_often_and_never_without_end(tmp_path: Path) -> None:
    board = Board(GPUS[:1], 4, PackSettings(), Estimator())
    made = journal.Journal(tmp_path, "7", 0.0)
    board.add(TaskAsk(task=0, gpu_mem_mib=38000), 0.0)
    board.add(TaskAsk(task=1, gpu_mem_mib=38000), 0.0)
    for second in range(3600):
        board.sample_gpu("GPU-0", float(second), used_mib=second)
        made.note(*board.decide(float(second)))
    made.close()
    lines = (tmp_path / journal.DECISIONS).read_bytes().splitlines()
    assert 1 < len(lines) < 100


def test_a_full_journal_says_so_once_and_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MOST_BYTES", 3000)
    board = Board(GPUS[:1], 100, PackSettings(), Estimator())
    made = journal.Journal(tmp_path, "7", 0.0)
    for task in range(30):
        board.add(TaskAsk(task=task, gpu_mem_mib=400), float(task))
        made.note(*board.decide(float(task)))
    made.close()
    assert "it has reached" in made.problem
    data = (tmp_path / journal.DECISIONS).read_bytes()
    assert len(data) <= 3000
    assert list(journal.read_journal(data))


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
    assert list(journal.read_journal(data)) == []


def test_the_number_of_free_workers_keeps_its_name_in_the_file(tmp_path: Path) -> None:
    """Journals of earlier versions are read, and theirs read ours."""
    (view, _), *_ = live(1, tmp_path)
    text = (tmp_path / journal.DECISIONS).read_bytes()
    assert b'"seats":8' in text.splitlines()[0]
    assert next(journal.read_journal(text)).view.free_workers == view.free_workers == 8


def test_a_size_that_nobody_can_have_is_not_explained(tmp_path: Path) -> None:
    """JSON has whole numbers that are larger than any float; what is damaged says nothing, and ends nothing."""
    board = Board(GPUS[:1], 2, PackSettings(), Estimator())
    made = journal.Journal(tmp_path, "7", 500.0)
    board.add(TaskAsk(task=0, gpu_mem_mib=1000), 0.0)
    made.note(*board.decide(1.0))
    whole = (tmp_path / journal.DECISIONS).read_bytes()
    damaged = whole.replace(b'"gpu_mem_mib":1000', b'"gpu_mem_mib":1' + b"0" * 400)
    assert damaged != whole
    assert len(list(journal.explain_task(journal.read_journal(whole), 0))) == 1
    assert list(journal.explain_task(journal.read_journal(damaged), 0)) == []

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest

from slurm_share.cli import main
from slurm_share.lab import recorded, requests, trace_files
from slurm_share.lab.log_text import TraceError
from slurm_share.packing import events
from slurm_share.packing.records import GpuFacts, PackSettings, TaskAsk, TaskKey
from slurm_share.packing.rules.board import Board
from slurm_share.packing.rules.estimate.estimator import Estimator

BEGIN = 1e9


def ended(task, started, seconds, outcome="done", attempt=1, peak=3000):
    line = {"task": task, "rank": 0, "attempt": attempt, "outcome": outcome, "node": "n1", "job": "7",
            "started": BEGIN + started, "seconds": seconds, "gpu_uuid": "GPU-a", "peak_gpu_mib": peak}  # fmt: skip
    return json.dumps(line) + "\n"


@pytest.fixture
def run(tmp_path):
    """Write a run of two tasks on one GPU of 24 GiB: the first was alone for a while, the second ran twice."""
    folder = tmp_path / "LLSUB.1" / "p0-p1_n1"
    folder.mkdir(parents=True)
    facts = (GpuFacts(uuid="GPU-a", index=0, model="L4", total_mib=24576, is_mps=True),)
    board = Board(facts, 8, PackSettings(), Estimator())
    notes = events.EventLog(folder, "7", BEGIN)

    def decide(now):
        notes.decide(*board.decide(now))

    key = TaskKey("exact", "family", (("--batch", 8.0),))
    board.add(TaskAsk(task=0, key=key, gpu_mem_mib=4000), 0.0)
    decide(0.0)
    for now in (5.0, 70.0, 140.0):
        board.sample_task(0, {"GPU-a": 3000}, 1, now)
        board.sample_gpu("GPU-a", now, used_mib=3000, sm_ratio=0.6)
    board.add(TaskAsk(task=1, gpu_mem_mib=6000), 150.0)
    decide(150.0)
    board.sample_task(1, {"GPU-a": 5000}, 1, 160.0)
    board.add(TaskAsk(task=2, gpu_mem_mib=1000), 170.0)
    decide(170.0)
    notes.close()
    (folder / "results.jsonl").write_text(
        ended(0, 0.0, 200.0) + ended(1, 150.0, 60.0, "gpu memory") + ended(1, 220.0, 100.0, attempt=2, peak=5500)
    )
    return folder.parent


def test_bars_have_the_memory_that_decisions_saw_and_the_peak(run):
    bars = recorded.bars(recorded.read(run))
    assert [(bar.task, bar.attempt, bar.start_s, bar.end_s, bar.outcome) for bar in bars] == [
        (0, 1, 0.0, 200.0, "done"),
        (1, 1, 150.0, 210.0, "gpu memory"),
        (1, 2, 220.0, 320.0, "done"),
    ]
    assert bars[0].memory[:2] == ((0.0, 3000), (170.0, 3000))  # the first decision that saw it counts from its start
    assert bars[0].reserved_mib == 4000
    assert bars[1].memory == ((150.0, 5000),)
    assert bars[2].memory == ((220.0, 5500),)


def test_a_run_is_a_trace_with_what_was_measured(run):
    trace = trace_files.read(run)
    assert (trace.gpus, trace.gpu_mib, trace.gpu_model) == (1, 24576, "L4")
    first, second = trace.tasks
    assert (first.work_s, first.memory_mib, first.sm_ratio, first.gpu_mem_mib) == (200.0, 3000, 0.6, 4000)
    assert (first.command, first.family, first.numbers) == ("exact", "family", (("--batch", 8.0),))
    assert (second.work_s, second.memory_mib, second.sm_ratio) == (100.0, 5500, 0.5)
    assert any("SM activity 0.5 is assumed for 1 tasks" in note for note in trace.notes)


def test_the_command_draws_a_run_and_does_not_say_simulated(run, tmp_path, capsys):
    file = tmp_path / "run.svg"
    assert main.main(["lab", "simulate", str(run), "--recorded", "--picture", str(file)]) == 0
    assert capsys.readouterr().out == ""
    text = " ".join(ElementTree.fromstring(file.read_text()).itertext())
    assert "LLSUB.1: 2 tasks, 1 lost attempt" in text
    assert "task 1, attempt 1: gpu memory" in text
    assert "simulated" not in text


def test_a_picture_of_a_run_on_simulated_gpus_says_so(run):
    file = next(run.glob("p*/events.jsonl"))
    file.write_text(file.read_text().replace('"is_mps":true', '"is_mps":true,"is_simulated":true'))
    assert "LLSUB.1 on simulated GPUs: 2 tasks, 1 lost attempt" in requests.draw_run(run)


def test_the_command_simulates_a_run_under_another_policy(run, capsys):
    assert main.main(["lab", "simulate", str(run), "--policy", "exclusive", "--alpha", "1", "--settle", "30"]) == 0
    assert "LLSUB.1: 2 tasks on 1 GPU of 24576 MiB" in capsys.readouterr().out


def test_a_file_that_is_too_large_or_no_file_is_refused(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(b"0123")
    assert recorded.read_bytes(file, 4) == b"0123"
    with pytest.raises(TraceError, match="it is larger than 0 MiB"):
        recorded.read_bytes(file, 3)
    with pytest.raises(TraceError, match="it is not a file"):
        recorded.read_bytes(tmp_path, 4)


@pytest.mark.parametrize(
    ("given", "why"), [(["--recorded"], "add --picture FILE.svg"), (["--recorded", "--picture", "x"], "not the folder")]
)
def test_a_picture_of_nothing_is_refused(tmp_path, given, why, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main.main(["lab", "simulate", str(tmp_path), *given]) == 2
    assert why in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []

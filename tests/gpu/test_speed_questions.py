"""The questions about speed: their parts that need no GPU; with one, all of them. See speed_questions.py."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import mps_questions
import speed_matrix
import speed_programs
import speed_questions

from slurm_share.packing.speed_records import Load

HERE = Path(__file__).resolve().parent
NAMES = [f"p{number}" for number in range(12)]


@pytest.mark.gpu
def test_every_question_about_speed_gets_an_answer() -> None:
    lab = mps_questions.open_lab()
    if isinstance(lab, str):
        pytest.skip(f"NOT TESTED: {lab}")
    speed_questions._minutes = 10.0
    file = mps_questions.ask_all(lab, speed_questions.QUESTIONS, "speed_questions")
    rows = json.loads(file.read_text())["rows"]
    assert [row["question"] for row in rows if "failed" in row] == []


@pytest.mark.parametrize(
    ("minutes", "repeats", "left_out"), [(1000, 3, 0), (60, 3, 0), (30, 3, 0), (21, 2, 0), (13, 1, 0), (8, 1, 43)]
)
def test_a_plan_takes_the_time_that_there_is_and_no_more(minutes, repeats, left_out):
    """First the measurements get shorter, then there are fewer repeats, then fewer pairs."""
    plan = speed_matrix.plan(NAMES, minutes)
    assert (plan.repeats, plan.left_out) == (repeats, left_out)
    assert speed_matrix.SECONDS_LEAST <= plan.seconds <= speed_matrix.SECONDS_MOST
    assert len(set(plan.pairs)) == len(plan.pairs) == 78 - left_out
    runs = (len(plan.pairs) + len(NAMES)) * plan.repeats * 2
    starts_s = 2 * (len(NAMES) + 2) * speed_matrix.START_S
    assert runs * (plan.seconds + speed_matrix.BETWEEN_S) + starts_s <= minutes * 60 + 1


ALONE = {"a": [100.0, 90.0, 110.0], "b": [10.0, 10.0, 10.0]}
FULL, HALF = Load(sm_ratio=1.0, busy_ratio=1.0), Load(sm_ratio=0.3, busy_ratio=1.0)
BELIEFS = {"a": FULL, "b": HALF}


def test_rows_compare_medians_with_alone_and_with_the_model():
    together = {("a", "b"): [(50.0, 5.0), (52.0, 9.0), (48.0, 4.0)], ("a", "a"): []}
    (row,) = speed_matrix.rows(ALONE, together, BELIEFS, "time-slicing")
    assert (row["speed_a"], row["speed_b"], row["stp"]) == (0.5, 0.5, 1.0)
    assert (row["predicted_a"], row["predicted_b"]) == (0.5, 0.5)
    assert row["spread"] == 1.0
    found = speed_matrix.errors([row])
    assert (found["speed_mae"], found["stp_mae"], found["holds"], found["right_on_stp_1.05"]) == (0.0, 0.0, True, 1.0)


def test_figures_that_the_driver_did_not_give_are_not_believed():
    found = speed_questions.load_of({"sm_ratio": 0.25, "dram_ratio": None, "busy_ratio": 0.5, "from": "GPM"})
    assert (found.sm_ratio, found.dram_ratio, found.busy_ratio) == (0.25, 0.0, 0.5)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [([(0.9, 5), (1.0, 5), (1.5, 5), (2.0, 5), (2.1, 5)], (10.0, 10)), ([(1.5, 5)], (5.0, 5)), ([], (0.0, 0))],
)
def test_a_rate_is_of_the_units_that_were_done_between_two_times(ends, expected):
    assert speed_programs.rate(ends, 1.0, 2.0) == expected


@pytest.mark.parametrize("name", speed_programs.PROGRAMS)
def test_every_program_works_and_answers(name):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("NOT TESTED: this interpreter has no torch")
    words = [sys.executable, str(HERE / "speed_programs.py"), name, "--device", "cpu"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert json.loads(child.stdout.readline())["ready"] == child.pid
        now = time.monotonic()
        child.stdin.write(f"{now} {now + 0.5}\n")
        child.stdin.flush()
        assert json.loads(child.stdout.readline())["rate"] >= 0.0
        child.stdin.write("end\n")
        child.stdin.close()
        assert child.wait(20) == 0


class NoCounters:
    """A substitute for the driver's counters."""

    def begin(self):
        """Do not count anything."""

    def end(self):
        """Return what a GPU at half of its activity gives."""
        return {"sm_ratio": 0.5, "dram_ratio": 0.1, "busy_ratio": 1.0, "from": "a test"}


def test_programs_are_measured_alone_and_in_pairs_and_one_that_ends_spoils_no_other_pair(tmp_path, monkeypatch):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("NOT TESTED: this interpreter has no torch")
    monkeypatch.setattr(speed_questions, "DEVICE", ("--device", "cpu"))
    monkeypatch.setattr(speed_questions, "as_user", lambda owner: {})
    lab = mps_questions.Lab("", "1.2", "GPU-x", "none", tmp_path)
    names = ("launches", "gemm-512", "none")
    plan = speed_matrix.Plan(0.5, 2, (("launches", "launches"), ("launches", "gemm-512"), ("launches", "none")), 0)
    figures = {}
    try:
        with speed_questions.programs(lab, None, names) as (workers, failed):
            assert list(workers) == ["launches", "gemm-512"]
            assert failed == {"none": {"error": "KeyError: 'none'"}}
            found = speed_questions._measure(lab, None, workers, plan, NoCounters(), figures)
            workers["gemm-512"].child.kill()
            workers["gemm-512"].child.wait()
            again = {}
            problems = []
            for _ in range(2):
                speed_questions._pair(workers["launches"], workers["gemm-512"], 0.2, again, problems)
            began = time.monotonic()
            speed_questions.measured([workers["launches"]], 0.3)
            assert time.monotonic() - began >= 0.3, "an answer of an earlier measurement was taken"
    finally:
        lab.close()
    assert {name: len(rates) for name, rates in found["alone"].items()} == {"launches": 2, "gemm-512": 2}
    assert {pair: len(rates) for pair, rates in found["together"].items()} == {
        ("launches", "gemm-512"): 2, ("launches", "launches"): 2,
    }  # fmt: skip
    assert all(rate > 0 for rates in found["together"].values() for both in rates for rate in both)
    assert found["problems"] == []
    assert (again, len(problems)) == ({}, 2)
    loads = {name: speed_questions.load_of(one) for name, one in figures.items()}
    assert speed_matrix.errors(speed_matrix.rows(found["alone"], found["together"], loads, "mps"))["pairs"] == 2
    assert all(child.poll() is not None for child in lab.children)


def test_a_program_that_cannot_work_says_why_and_ends():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("NOT TESTED: this interpreter has no torch")
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("NOT TESTED: there is a GPU")
    words = [sys.executable, str(HERE / "speed_programs.py"), "gemm-512"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == 1
    assert "error" in json.loads(done.stdout)


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["--minutes", "0.1"], 2, "0.1 minutes are too few"),
        (["matrx"], 2, "no question matrx; there are errors_at_the_cap"),
        ([], 1, "speed_questions: NOT ASKED: no NVIDIA driver"),
    ],
)
def test_without_a_gpu_or_with_a_wrong_word_the_command_says_so(monkeypatch, capsys, words, code, why):
    monkeypatch.setattr(mps_questions, "open_lab", lambda: "no NVIDIA driver")
    monkeypatch.setattr(sys, "argv", ["speed_questions.py", *words])
    if code == 2:
        with pytest.raises(SystemExit) as ended:
            speed_questions.main()
        assert ended.value.code == 2
    else:
        assert speed_questions.main() == code
    assert why in capsys.readouterr().err

"""Runs mps_questions.py on a real GPU and keeps the answers; puts the same questions to simulated GPUs everywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import mps_questions
import newest_mps_questions

HERE = Path(__file__).resolve().parent
LONG = ("faults_with_static_partitions", "products_at_every_size", "neighbours_by_method", "clients_by_connections")
QUICK = [one.__name__ for one in newest_mps_questions.QUESTIONS if one.__name__ not in LONG]
WITHOUT_OPTION = {"words_of_protocol_3", "starts_of_protocol_3", "caps_of_namespaces", "newer_than_protocol_3"}

without_driver = pytest.mark.skipif(
    Path("/proc/driver/nvidia/version").exists() or os.geteuid() != 0 or shutil.which("make") is None,
    reason="NOT TESTED: simulated GPUs need root, make and no real driver",
)


@pytest.mark.gpu
def test_every_question_gets_an_answer() -> None:
    lab = mps_questions.open_lab()
    if isinstance(lab, str):
        pytest.skip(f"NOT TESTED: {lab}")
    file = mps_questions.ask_all(lab, (*mps_questions.QUESTIONS, *newest_mps_questions.QUESTIONS))
    rows = json.loads(file.read_text())["rows"]
    assert [row["question"] for row in rows if "failed" in row] == []


def ask(release: str, out: Path, *questions: str) -> dict[str, Any]:
    """Put questions to simulated GPUs by the command that people use; return what it wrote."""
    command = [sys.executable, HERE / "mps_questions.py", "--simulated", release, "--out", out, *questions]
    environ = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    written = json.loads((out / f"mps_questions-{release}.0-simulated.json").read_text())
    assert isinstance(written, dict)
    return written


@without_driver
@pytest.mark.parametrize(
    "release", ["580", *(pytest.param(release, marks=pytest.mark.weekly) for release in ("595", "620"))]
)
def test_the_newest_questions_are_answered_by_simulated_gpus_as_simulated(release: str, tmp_path: Path) -> None:
    written = ask(release, tmp_path, *QUICK)
    assert "simulated" in written["simulated"]
    rows = {row["question"]: row for row in written["rows"]}
    assert {name: row["failed"] for name, row in rows.items() if "failed" in row} == {}
    refused = {name for name, row in rows.items() if "not asked" in row["answer"]}
    assert refused == {"580": set(QUICK) - {"versions_and_options"}, "595": WITHOUT_OPTION, "620": set()}[release]
    if release == "620":
        routed = rows["newer_than_protocol_3"]["answer"]
        assert routed["the daemon's socket"]["multiprocessors"] == 52
        assert [one["code"] for one in rows["words_of_protocol_3"]["answer"]["failures"] if not one["code"]] == []


@without_driver
@pytest.mark.weekly
@pytest.mark.parametrize("release", ["550", "610"])
def test_every_question_is_answered_by_simulated_gpus(release: str, tmp_path: Path) -> None:
    rows = ask(release, tmp_path)["rows"]
    assert {row["question"]: row["failed"] for row in rows if "failed" in row} == {}
    asked = (*mps_questions.QUESTIONS, *newest_mps_questions.QUESTIONS)
    assert [row["question"] for row in rows] == [one.__name__ for one in asked]


def test_a_question_that_is_not_there_is_named(tmp_path: Path) -> None:
    command = [sys.executable, HERE / "mps_questions.py", "--out", tmp_path, "how_are_you"]
    environ = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no such question: how_are_you" in done.stderr

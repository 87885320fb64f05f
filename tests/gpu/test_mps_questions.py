"""Runs mps_questions.py on a real GPU and keeps the answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import mps_questions

pytestmark = pytest.mark.gpu


def test_every_question_gets_an_answer() -> None:
    lab = mps_questions.open_lab()
    if isinstance(lab, str):
        pytest.skip(f"NOT TESTED: {lab}")
    file = mps_questions.ask_all(lab)
    rows = json.loads(file.read_text())["rows"]
    assert [row["question"] for row in rows if "failed" in row] == []

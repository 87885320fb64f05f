"""Asks a real GPU what no simulation can answer, and keeps the answers. See mps_questions.py."""

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

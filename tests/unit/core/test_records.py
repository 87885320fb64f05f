"""Records that all packages use."""

from __future__ import annotations

import pytest

from slurm_share.core.records import JobStart


@pytest.mark.parametrize(
    ("text", "start"), [("46", JobStart(46)), ("46.1", JobStart(46, 1)), ("4294967295.12", JobStart(4294967295, 12))]
)
def test_a_start_of_a_job_is_read_as_it_is_written(text: str, start: JobStart) -> None:
    assert JobStart.parse(text) == start
    assert str(start) == text


@pytest.mark.parametrize(
    "text", ["", ".", "46.", ".1", "46.x", "46.1.2", "46_1", "local-1-2a", "\u0664\u0666", "9" * 40]
)
def test_another_form_is_no_job_of_slurm(text: str) -> None:
    assert JobStart.parse(text) == JobStart(None)

"""The hooks' log: a file that cannot be written never fails a job."""

from __future__ import annotations

import os

import pytest

from slurm_share.core import log


def test_a_line_is_a_line(tmp_path):
    file = tmp_path / "log"
    log.line(str(file), "prolog", "first\nsecond \x1b[31m")
    log.line(str(file), "epilog", "x" * 10_000)
    lines = file.read_text().splitlines()
    assert len(lines) == 2
    assert lines[0].endswith(r"prolog: first\nsecond \x1b[31m")
    assert len(lines[1]) < 2100


def test_no_link_is_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "log").symlink_to(victim)
    log.line(str(tmp_path / "log"), "prolog", "text")
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("name", ["folder", "fifo", "none/there", "nul\0byte"])
def test_a_log_that_cannot_be_written_is_said_and_keeps_nobody_waiting(tmp_path, capfd, name):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    log.line(f"{tmp_path}/{name}", "prolog", "text")
    assert "cannot write" in capfd.readouterr().err


def test_a_stderr_that_nobody_reads_is_no_error(tmp_path):
    saved = os.dup(2)
    try:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
        log.line(str(tmp_path / "log"), "prolog", "text")
    finally:
        os.dup2(saved, 2)
    assert (tmp_path / "log").read_text().endswith("prolog: text\n")

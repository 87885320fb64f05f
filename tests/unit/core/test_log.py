"""The hooks' log: a file that cannot be written never fails a job."""

from __future__ import annotations

import os
import socket

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


# ---- systemd's journal ----


@pytest.fixture
def journal(tmp_path, monkeypatch):
    """A datagram socket in the place of journald's, and the log's choice of it."""
    monkeypatch.setattr(log, "JOURNAL", str(tmp_path / "socket"))
    monkeypatch.setattr(log, "_to_journal", True)
    for name in (*log._OF_JOB, "JOURNAL_STREAM"):
        monkeypatch.delenv(name, raising=False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.bind(log.JOURNAL)
        link.setblocking(False)
        yield link


def fields(journal) -> dict[str, str]:
    """Read a line as journald does: each field is a line."""
    lines = journal.recv(65536).decode().splitlines()
    found = dict(line.partition("=")[::2] for line in lines)
    assert len(found) == len(lines)
    return found


def test_a_line_in_the_journal_has_its_program_and_its_job_as_fields(journal, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_JOB_UID", "2001")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7\nPRIORITY=0")  # not a number: not a field
    log.line(str(tmp_path / "log"), "prolog", "first\nMESSAGE=second é")
    assert fields(journal) == {
        "MESSAGE": r"prolog: first\nMESSAGE=second é",
        "PRIORITY": "6",
        "SYSLOG_IDENTIFIER": "slurm-share",
        "SLURM_SHARE_PROGRAM": "prolog",
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_UID": "2001",
    }
    assert not (tmp_path / "log").exists()


def test_the_file_has_the_line_where_no_journal_takes_it(journal, tmp_path, monkeypatch, capfd):
    """None is there, its socket is full, or what is there is no socket; nothing waits."""
    file = tmp_path / "log"
    full = 0
    while log._send("prolog", "x" * 2000):
        full += 1
    assert full > 0
    log.line(str(file), "prolog", "full")
    journal.close()
    log.line(str(file), "prolog", "closed")
    (tmp_path / "socket").unlink()
    log.line(str(file), "prolog", "none")
    (tmp_path / "socket").touch()
    log.line(str(file), "prolog", "file")
    monkeypatch.setattr(log, "JOURNAL", "x" * 200)
    log.line(str(file), "prolog", "too long")
    said = [line.rpartition(": ")[2] for line in file.read_text().splitlines()]
    assert said == ["full", "closed", "none", "file", "too long"]
    assert capfd.readouterr().err.count("slurm-share prolog: ") == 5


def test_the_journal_is_a_choice(journal, tmp_path):
    log.use_journal(False)
    log.line(str(tmp_path / "log"), "prolog", "text")
    assert (tmp_path / "log").exists()
    log.use_journal(True)
    log.line(str(tmp_path / "log"), "prolog", "again")
    assert fields(journal)["MESSAGE"] == "prolog: again"
    assert "again" not in (tmp_path / "log").read_text()


def test_a_service_whose_stderr_is_the_journal_has_a_line_once(journal, monkeypatch, capfd):
    found = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
    log.line("", "agent", "text")
    assert (capfd.readouterr().err, fields(journal)["MESSAGE"]) == ("", "agent: text")
    journal.close()
    log.line("", "agent", "text")
    assert capfd.readouterr().err == "slurm-share agent: text\n"


def test_what_drains_the_node_is_an_error(journal):
    log.line("", "epilog", f"job 7: left; {log.UNWELL}: the driver does not answer")
    assert fields(journal)["PRIORITY"] == "3"


def test_the_longest_line_fits(journal, tmp_path):
    log.line("", "prolog", "\N{MATHEMATICAL BOLD CAPITAL A}" * 9000)
    assert len(fields(journal)["MESSAGE"]) == len("prolog: ") + log.LINE_LIMIT

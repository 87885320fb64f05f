from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import time

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_share.packing import history_files, task_history
from slurm_share.packing.history_records import SiteFamily, TaskRun
from slurm_share.packing.task_history import FILES, Writer, read_history, read_site

NOW = time.mktime((2026, 11, 20, 12, 0, 0, 0, 0, 0))
DAY = 86400.0


def run(peak=5000, *, when=NOW, **other):
    fields = {"exact": "e", "family": "f", "gpu_model": "A100", "kind": "done", "seconds": 60.0, **other}
    return TaskRun(when=when, peak_mib=peak, **fields)


@pytest.fixture
def folder(tmp_path):
    """Where the history is to be; not yet there."""
    return tmp_path / "state" / "slurm-share" / "tasks"


def written(folder, *runs):
    assert Writer(folder).append(*runs) is None
    (file,) = folder.iterdir()
    return file


def peaks(folder):
    return [one.peak_mib for one in read_history(folder, now=NOW).runs]


def test_what_is_written_is_read_again(folder):
    one = run(numbers=(("--batch", 32.0),), series="s", script="p", peak_at_mib=((60, 4000),), clients=3, energy_j=1.5)
    assert b"batch" not in written(folder, one).read_bytes()
    history = read_history(folder, now=NOW)
    (found,) = history.runs
    assert msgspec.structs.replace(found, numbers=()) == msgspec.structs.replace(one, numbers=())
    assert found.numbers[0][1] == 32.0
    assert (history.passed_over, history.notes) == (0, ())


def test_folder_and_file_are_the_users_alone(folder):
    before = os.umask(0)
    try:
        file = written(folder, run())
    finally:
        os.umask(before)
    assert file.name == "2026-11.jsonl"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700


def test_no_folder_is_an_empty_history(folder):
    assert read_history(folder, now=NOW) == task_history.History()
    assert not folder.exists()


def test_the_folder_is_that_of_xdg_state_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert history_files.find_folder("/x") == task_history.Path("/x/slurm-share/tasks")
    assert history_files.find_folder("x") == tmp_path / ".local/state/slurm-share/tasks"
    assert history_files.find_folder("") == tmp_path / ".local/state/slurm-share/tasks"


def test_the_newest_runs_are_read_oldest_first(folder):
    writer = Writer(folder)
    for when, peak in ((NOW - 60 * DAY, 1), (NOW, 3), (NOW - DAY, 2)):
        writer.append(run(peak, when=when))
    assert len(list(folder.iterdir())) == 2
    assert peaks(folder) == [1, 2, 3]


def test_runs_of_more_than_180_days_ago_are_not_read(folder):
    writer = Writer(folder)
    for days in (400, 181, 179):
        writer.append(run(days, when=NOW - days * DAY))
    history = read_history(folder, now=NOW)
    assert [one.peak_mib for one in history.runs] == [179]
    assert history.passed_over == 0


def test_at_most_5000_runs_are_read(folder):
    writer = Writer(folder)
    writer.append(*(run(n, when=NOW - 40 * DAY + n) for n in range(3000)))
    writer.append(*(run(3000 + n, when=NOW - DAY + n) for n in range(3000)))
    found = peaks(folder)
    assert (len(found), found[0], found[-1]) == (5000, 1000, 5999)


BAD = {
    "torn": b'{"when":1,"exact":"e","ki',
    "foreign version": json.dumps({"version": 2, "when": NOW, "kind": "done", "seconds": 1.0}).encode(),
    "unknown kind": json.dumps({"when": NOW, "kind": "eaten", "seconds": 1.0}).encode(),
    "no object": b"[]",
    "no text": b"\xff\xfe\0\0",
    "too long": b" " * 20_000 + b"{}",
    "deeply nested": b'{"when":' + b"[" * 10_000,
    "control characters": json.dumps({"when": NOW, "kind": "done", "seconds": 1.0, "gpu_model": "\x1b[2J"}).encode(),
    "before 1970": json.dumps({"when": -1.0, "kind": "done", "seconds": 1.0}).encode(),
    "alone for longer than any task": b'{"when":1,"kind":"done","seconds":1,"alone_seconds":1e300}',
    "a huge number": b'{"when":1e999,"kind":"done","seconds":1}',
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_line_that_cannot_be_read_is_passed_over_and_counted(folder, bad):
    file = written(folder, run(1))
    with open(file, "ab") as opened:
        opened.write(bad + b"\n")
    assert Writer(folder).append(run(2)) is None
    history = read_history(folder, now=NOW)
    assert [one.peak_mib for one in history.runs] == [1, 2]
    assert history.passed_over == 1


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=400), st.integers(0, 10_000))
def test_any_bytes_anywhere_in_the_file_cost_no_more_than_lines(tmp_path_factory, noise, at):
    """Reading never fails, and a run that is written afterwards is found."""
    folder = tmp_path_factory.mktemp("h") / "slurm-share" / "tasks"
    file = written(folder, *(run(n) for n in range(20)))
    data = file.read_bytes()
    at %= len(data)
    file.write_bytes(data[:at] + noise + data[at + len(noise) :])
    assert Writer(folder).append(run(4711)) is None
    history = read_history(folder, now=NOW)
    assert history.runs[-1].peak_mib == 4711
    assert len(history.runs) <= 21 + noise.count(b"\n")


def test_of_a_huge_file_the_end_is_read(folder):
    file = written(folder, run(1))
    with open(file, "r+b") as opened:
        opened.truncate(1 << 30)
        opened.seek(0, os.SEEK_END)
        opened.write(b"\n" + task_history.render(run(2)))
    assert peaks(folder) == [2]


def test_a_huge_file_takes_no_further_lines(folder):
    file = written(folder, run(1))
    os.truncate(file, 1 << 30)
    writer = Writer(folder)
    sentence = writer.append(run(2))
    assert sentence is not None
    assert "too large" in sentence
    assert writer.append(run(3)) is None
    assert writer.failed == 2
    assert file.stat().st_size == 1 << 30


# ---- Links, and what others own ----


@pytest.mark.parametrize("which", ["file", "tasks", "slurm-share"])
def test_a_link_is_not_followed(folder, tmp_path, which):
    elsewhere = tmp_path / "elsewhere" / "slurm-share" / "tasks"
    file = written(elsewhere, run(1))
    before = file.read_bytes()
    folder.parent.parent.mkdir(parents=True)
    if which == "slurm-share":
        folder.parent.symlink_to(elsewhere.parent)
    else:
        folder.parent.mkdir(mode=0o700)
        if which == "tasks":
            folder.symlink_to(elsewhere)
        else:
            folder.mkdir(mode=0o700)
            (folder / file.name).symlink_to(file)
    history = read_history(folder, now=NOW)
    assert history.runs == ()
    assert len(history.notes) == 1
    assert Writer(folder).append(run(2)) is not None
    assert file.read_bytes() == before


@pytest.mark.parametrize("change", ["file of others", "folder of others", "writable file", "writable folder", "a pipe"])
def test_what_is_not_the_users_alone_is_not_used(folder, change):
    file = written(folder, run(1))
    where = folder if "folder" in change else file
    if "of others" in change:
        if os.geteuid() != 0:
            pytest.skip("NOT TESTED: only root can give a file to another user")
        os.chown(where, 4711, 4711)
    elif "writable" in change:
        where.chmod(where.stat().st_mode | 0o020)
    else:
        file.unlink()
        os.mkfifo(file)
    history = read_history(folder, now=NOW)
    assert history.runs == ()
    assert len(history.notes) == 1
    assert Writer(folder).append(run(2)) is not None


# ---- Where nothing can be written ----


def test_a_full_disk_stops_learning_with_one_sentence_and_leaves_no_half_line(folder, monkeypatch):
    file = written(folder, run(1))
    before = file.read_bytes()
    real = os.write

    room = [1, 2]

    def half(fd, data):
        if room:
            room.pop()
            return real(fd, data[:10])
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "write", half)
    writer = Writer(folder)
    sentence = writer.append(run(2))
    monkeypatch.setattr(os, "write", real)
    assert sentence is not None
    assert "not kept" in sentence
    assert os.strerror(errno.EDQUOT) in sentence
    assert file.read_bytes() == before
    assert writer.append(run(3)) is None
    assert file.read_bytes() == before


def test_a_lock_that_another_process_keeps_stops_learning(folder, monkeypatch):
    import fcntl

    file = written(folder, run(1))
    monkeypatch.setattr(history_files, "LOCK_S", 0.05)
    with open(file) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        sentence = Writer(folder).append(run(2))
    assert sentence is not None
    assert "another process" in sentence


# ---- Several writers ----

WRITE = """
import sys
from pathlib import Path
from slurm_share.packing.history_records import TaskRun
from slurm_share.packing import history_files
from slurm_share.packing.task_history import Writer
history_files.LOCK_S = 600.0
writer = Writer(Path(sys.argv[1]))
sys.stdin.readline()
for n in range(200):
    run = TaskRun(when=float(sys.argv[3]), exact="e" * 100, kind="done", seconds=1.0, peak_mib=int(sys.argv[2]) + n)
    assert writer.append(run) is None
"""


def test_two_writers_at_once_lose_nothing_also_while_a_third_forgets(folder):
    """600 lines of two processes, whole; the third replaces the file under them."""
    written(folder, run(1, exact="away"))
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITE, str(folder), str(base), str(NOW)], stdin=subprocess.PIPE)
        for base in (1000, 2000, 3000)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"\n")
        writer.stdin.flush()
    forgotten = 0
    while any(writer.poll() is None for writer in writers):
        Writer(folder).append(run(2, exact="away"))
        forgotten += FILES.forget(lambda one: one.exact == "away", folder)
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    history = read_history(folder, now=NOW)
    assert history.passed_over == 0
    assert sorted(one.peak_mib for one in history.runs) == [base + n for base in (1000, 2000, 3000) for n in range(200)]
    assert forgotten >= 2


# ---- Forgetting ----


def test_what_is_forgotten_is_gone_and_the_rest_stays(folder):
    file = written(folder, run(1, family="a"), run(2, family="b"))
    with open(file, "ab") as opened:
        opened.write(b"nonsense\n")
    assert FILES.forget(lambda one: one.family == "a", folder) == 1
    assert peaks(folder) == [2]
    assert file.read_bytes().endswith(b"nonsense\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.name for one in folder.iterdir()] == [file.name]


def test_a_file_of_which_nothing_is_left_is_removed(folder):
    file = written(folder, run(1))
    assert FILES.forget(lambda one: True, folder) == 1
    assert not file.exists()


def test_everything_can_be_forgotten(folder):
    file = written(folder, run(1))
    file.write_bytes(b"nonsense\n")
    assert FILES.forget(None, folder) == 1
    assert list(folder.iterdir()) == []
    assert FILES.forget(None, folder.parent / "gone") == 0


# ---- The site's folder ----


def test_the_sites_families_are_read_and_bad_lines_counted(tmp_path):
    one = {"family": "f", "gpu_model": "A100", "runs": 40, "p90_mib": 7000, "ratio": 1.1}
    lines = [{**one, "p90_mib": 6000}, one, {**one, "version": 9}, {**one, "ratio": 0}, {**one, "p90_mib": "x"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + "torn")
    (tmp_path / "a.txt").write_text("nonsense")
    families, notes = read_site(str(tmp_path))
    assert families == (SiteFamily(**one),)
    assert len(notes) == 1
    assert "4 lines cannot be read" in notes[0]


@pytest.mark.parametrize("folder", ["", "/gone"])
def test_no_folder_of_the_site_is_no_error(folder):
    families, notes = read_site(folder)
    assert families == ()
    assert bool(notes) is bool(folder)

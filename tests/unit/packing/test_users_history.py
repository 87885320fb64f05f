from __future__ import annotations

import errno
import json
import os
import re
import stat
import subprocess
import sys
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.packing import history, history_queries
from slurm_share.packing.history import History, HistoryWriter, read_history, read_site
from slurm_share.packing.history_records import SiteFamily, TaskRun, families
from slurm_share.packing.rules.fingerprint import name_family
from slurm_share.packing.speed_records import LevelRun, PairRun, SearchRun

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
    assert HistoryWriter(folder).append(*runs) is None
    (file,) = folder.iterdir()
    return file


def peaks(folder):
    return [one.peak_mib for one in read_history(folder, now=NOW).runs]


def test_what_is_written_is_read_again(folder):
    one = run(numbers=(("--batch", 32.0),), series="s", script="p", peak_at_mib=((60, 4000),), clients=3, energy_j=1.5)
    assert b"batch" not in written(folder, one).read_bytes()
    found = read_history(folder, now=NOW)
    (again,) = found.runs
    assert msgspec.structs.replace(again, numbers=()) == msgspec.structs.replace(one, numbers=())
    assert again.numbers[0][1] == 32.0
    assert (found.passed_over, found.notes) == (0, ())


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
    assert read_history(folder, now=NOW) == History()
    assert not folder.exists()


def test_the_folder_is_that_of_xdg_state_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert history.find_folder("/x") == history.Path("/x/slurm-share/tasks")
    assert history.find_folder("x") == tmp_path / ".local/state/slurm-share/tasks"
    assert history.find_folder("") == tmp_path / ".local/state/slurm-share/tasks"


def test_the_newest_runs_are_read_oldest_first(folder):
    writer = HistoryWriter(folder)
    for when, peak in ((NOW - 60 * DAY, 1), (NOW, 3), (NOW - DAY, 2)):
        writer.append(run(peak, when=when))
    assert len(list(folder.iterdir())) == 2
    assert peaks(folder) == [1, 2, 3]


def test_runs_of_more_than_180_days_ago_are_not_read(folder):
    writer = HistoryWriter(folder)
    for days in (400, 181, 179):
        writer.append(run(days, when=NOW - days * DAY))
    found = read_history(folder, now=NOW)
    assert [one.peak_mib for one in found.runs] == [179]
    assert found.passed_over == 0


def test_at_most_5000_runs_are_read(folder):
    writer = HistoryWriter(folder)
    writer.append(*(run(n, when=NOW - 40 * DAY + n) for n in range(3000)))
    writer.append(*(run(3000 + n, when=NOW - DAY + n) for n in range(3000)))
    found = peaks(folder)
    assert (len(found), found[0], found[-1]) == (5000, 1000, 5999)


TAG = {"record": "task"}
BAD = {
    "no record": json.dumps({"when": NOW, "kind": "done", "seconds": 1.0}).encode(),
    "unknown record": json.dumps({"record": "tale", "when": NOW, "kind": "done", "seconds": 1.0}).encode(),
    "torn": b'{"record":"task","when":1,"exact":"e","ki',
    "foreign version": json.dumps({**TAG, "version": 2, "when": NOW, "kind": "done", "seconds": 1.0}).encode(),
    "unknown kind": json.dumps({**TAG, "when": NOW, "kind": "eaten", "seconds": 1.0}).encode(),
    "no object": b"[]",
    "no text": b"\xff\xfe\0\0",
    "too long": b" " * 20_000 + b"{}",
    "deeply nested": b'{"record":"task","when":' + b"[" * 10_000,
    "control characters": json.dumps(
        {**TAG, "when": NOW, "kind": "done", "seconds": 1.0, "gpu_model": "\x1b[2J"}
    ).encode(),
    "before 1970": json.dumps({**TAG, "when": -1.0, "kind": "done", "seconds": 1.0}).encode(),
    "alone for longer than any task": b'{"record":"task","when":1,"kind":"done","seconds":1,"alone_seconds":1e300}',
    "a huge number": b'{"record":"task","when":1e999,"kind":"done","seconds":1}',
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_line_that_cannot_be_read_is_passed_over_and_counted(folder, bad):
    file = written(folder, run(1))
    with open(file, "ab") as opened:
        opened.write(bad + b"\n")
    assert HistoryWriter(folder).append(run(2)) is None
    found = read_history(folder, now=NOW)
    assert [one.peak_mib for one in found.runs] == [1, 2]
    assert found.passed_over == 1


@given(st.binary(max_size=400), st.integers(0, 10_000))
def test_any_bytes_anywhere_in_the_file_cost_no_more_than_lines(tmp_path_factory, noise, at):
    """Reading never fails, and a run that is written afterwards is found."""
    folder = tmp_path_factory.mktemp("h") / "slurm-share" / "tasks"
    file = written(folder, *(run(n) for n in range(20)))
    data = file.read_bytes()
    at %= len(data)
    file.write_bytes(data[:at] + noise + data[at + len(noise) :])
    assert HistoryWriter(folder).append(run(4711)) is None
    found = read_history(folder, now=NOW)
    assert 4711 in [one.peak_mib for one in found.runs]  # not the last if the noise is a digit of another's `when`
    assert len(found.runs) <= 21 + noise.count(b"\n")


def test_of_a_huge_file_the_end_is_read(folder):
    file = written(folder, run(1))
    with open(file, "r+b") as opened:
        opened.truncate(1 << 30)
        opened.seek(0, os.SEEK_END)
        opened.write(b"\n" + history.render(run(2)))
    assert peaks(folder) == [2]


def test_a_huge_file_takes_no_further_lines(folder):
    file = written(folder, run(1))
    os.truncate(file, 1 << 30)
    writer = HistoryWriter(folder)
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
    found = read_history(folder, now=NOW)
    assert found.runs == ()
    assert len(found.notes) == 1
    assert HistoryWriter(folder).append(run(2)) is not None
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
    found = read_history(folder, now=NOW)
    assert found.runs == ()
    assert len(found.notes) == 1
    assert HistoryWriter(folder).append(run(2)) is not None


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
    writer = HistoryWriter(folder)
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
    monkeypatch.setattr(history, "LOCK_S", 0.05)
    with open(file) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        sentence = HistoryWriter(folder).append(run(2))
    assert sentence is not None
    assert "another process" in sentence


# ---- Several writers ----

WRITE = """
import sys
from pathlib import Path
from slurm_share.packing.history_records import TaskRun
from slurm_share.packing import history
history.LOCK_S = 600.0
writer = history.HistoryWriter(Path(sys.argv[1]))
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
        HistoryWriter(folder).append(run(2, exact="away"))
        forgotten += history.forget(lambda one: one.exact == "away", folder)
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    found = read_history(folder, now=NOW)
    assert found.passed_over == 0
    assert sorted(one.peak_mib for one in found.runs) == [base + n for base in (1000, 2000, 3000) for n in range(200)]
    assert forgotten >= 2


# ---- Forgetting ----


def test_what_is_forgotten_is_gone_and_the_rest_stays(folder):
    file = written(folder, run(1, family="a"), run(2, family="b"))
    with open(file, "ab") as opened:
        opened.write(b"nonsense\n")
    assert history.forget(lambda one: one.family == "a", folder) == 1
    assert peaks(folder) == [2]
    assert file.read_bytes().endswith(b"nonsense\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.name for one in folder.iterdir()] == [file.name]


def test_a_file_of_which_nothing_is_left_is_removed(folder):
    file = written(folder, run(1))
    assert history.forget(lambda one: True, folder) == 1
    assert not file.exists()


def test_everything_can_be_forgotten(folder):
    file = written(folder, run(1))
    file.write_bytes(b"nonsense\n")
    assert history.forget(None, folder) == 1
    assert list(folder.iterdir()) == []
    assert history.forget(None, folder.parent / "gone") == 0


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


# ---- Speeds and trials ----

MONTH = time.strftime("%Y-%m.jsonl", time.gmtime(NOW))


def pair(when=NOW, **other):
    fields = {
        "a": "e1", "b": "e2", "family_a": "f1", "family_b": "f2", "gpu_model": "A100", "sharing": "mps",
        "slowdown_a": 1.2, "slowdown_b": 1.3, "stp": 1.6, "stp_error": 0.02,
        "windows": 4, **other,
    }  # fmt: skip
    return PairRun(when=when, **fields)


TUNED = SearchRun(
    kind="tasks",
    when=NOW, exact="e", family="f1", gpu_model="A100", gpus=4, rate_source="progress",
    levels=(LevelRun(4, "mps", 1.5, 0.1, 6),), best=4, end="cost", next=8,
)  # fmt: skip
SHARE = SearchRun(
    kind="part",
    when=NOW, family="f2", gpu_model="A100", gpus=1, neighbours=("f1",), rate_source="stp",
    levels=(LevelRun(2, "mps", 1.06, 0.0, 3, "60", 1.0),), best=2, end="stopped",
)  # fmt: skip


WHOLE = msgspec.to_builtins(pair())
IMPOSSIBLE = (
    {"version": 2}, {"when": -1.0}, {"when": NOW + 9 * DAY}, {"slowdown_a": 0.0}, {"stp": -1.0}, {"stp_error": 1e300},
    {"family_a": "\x1b[2J"}, {"gpu_model": "x" * 999}, {"sharing": "magic"}, {"windows": -1},
)  # fmt: skip
BAD_PAIRS = [
    b'{"when":1,"a":"e', b"torn", b"[]", b"\xff\xfe", b" " * 20_000 + b"{}", b'{"when":1,"slowdown_a":1e999}',
    *(json.dumps({**WHOLE, **change}).encode() for change in IMPOSSIBLE),
]  # fmt: skip


@pytest.mark.parametrize("line", BAD_PAIRS)
def test_a_line_that_cannot_be_read_or_be_true_is_passed_over(folder, line):
    HistoryWriter(folder).append(pair(windows=1))
    with open(folder / MONTH, "ab") as opened:
        opened.write(line)
    HistoryWriter(folder).append(pair(windows=2))
    assert [one.windows for one in read_history(folder, now=NOW).pairs] == [1, 2]


def test_the_newest_lines_of_the_last_180_days_count(folder, monkeypatch):
    monkeypatch.setitem(history.NEWEST, PairRun, 3)
    HistoryWriter(folder).append(*(pair(NOW - day * DAY, windows=day) for day in (181, 9, 7, 8, 2)))
    assert [one.windows for one in read_history(folder, now=NOW).pairs] == [8, 7, 2]


def test_a_line_of_many_megabytes_hides_no_record_before_it(folder):
    HistoryWriter(folder).append(pair(), TUNED)
    with (folder / MONTH).open("ab") as out:
        out.write(bytes(10 << 20) + b"\n")
    HistoryWriter(folder).append(SHARE)
    assert read_history(folder, now=NOW) == History(pairs=(pair(),), searches=(TUNED, SHARE), passed_over=1)


def test_a_file_that_is_removed_during_the_reading_is_no_problem(folder, monkeypatch):
    HistoryWriter(folder).append(pair(), TUNED)
    real = history._read_end
    monkeypatch.setattr(history, "_read_end", lambda *at: (folder / at[1]).unlink() or real(*at))
    assert read_history(folder, now=NOW) == History()


def test_a_search_of_which_the_end_is_not_recorded_is_not_used(folder):
    HistoryWriter(folder).append(TUNED, TUNED)
    lines = (folder / MONTH).read_text().splitlines()
    (folder / MONTH).write_text(lines[0].replace(',"end":"cost","next":8', "") + "\n" + lines[1] + "\n")
    assert read_history(folder, now=NOW) == History(searches=(TUNED,), passed_over=1)


IMPOSSIBLE_SEARCHES = (
    {"best": 5}, {"best": 0}, {"best": 10**400}, {"next": 10**6}, {"next": -1}, {"gpus": -1}, {"end": "magic"},
    {"levels": []}, {"levels": [[4, "mps", 1.5, 0.1, 6]] * 1000}, {"levels": [{"level": 4}]}, {"rate_source": "\n" * 9},
    {"levels": [{"level": 4, "sharing": "mps", "per_s": float("inf"), "spread_per_s": 0.1, "windows": 6}]},
)  # fmt: skip


@pytest.mark.parametrize("change", IMPOSSIBLE_SEARCHES, ids=lambda one: next(iter(one)))
def test_a_search_that_cannot_be_true_is_passed_over(folder, change):
    HistoryWriter(folder).append(TUNED)
    with open(folder / MONTH, "ab") as opened:
        opened.write(json.dumps({**msgspec.to_builtins(TUNED), "when": NOW + 1, **change}).encode())
    assert read_history(folder, now=NOW).searches == (TUNED,)


def test_a_family_that_is_forgotten_is_gone_from_all_files(folder):
    HistoryWriter(folder).append(pair(), pair(family_a="f3", family_b="f4"), TUNED, SHARE)
    with open(folder / MONTH, "ab") as opened:
        opened.write(b"nonsense\n")
    assert len(list(history.read_all(folder))) == 4
    assert history.forget(lambda record: "f1" in families(record), folder) == 3
    found = read_history(folder, now=NOW)
    assert [one.family_a for one in found.pairs] == ["f3"]
    assert found.searches == ()
    assert b"nonsense" in (folder / MONTH).read_bytes()


def test_forgetting_a_name_forgets_its_sizes_and_its_speeds(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    family, other = name_family("mine"), name_family("other")
    HistoryWriter().append(TaskRun(when=NOW, exact="e", family=family, kind="done", seconds=1.0, peak_mib=1))
    HistoryWriter().append(pair(family_a=family), pair(family_a=other), TUNED)
    assert history_queries.forget("mine", tmp_path) == 2
    assert history_queries.forget("other", tmp_path) == 1
    found = read_history(now=NOW)
    assert (found.pairs, found.searches) == ((), (TUNED,))
    assert history_queries.forget_all() == 1


HUGE = 10**400


@pytest.mark.parametrize(
    ("name", "good", "figure"),
    [
        (MONTH, pair(windows=3), "windows"),
        (MONTH, TUNED, "windows"),
        (MONTH, TUNED, "gpus"),
        (MONTH, SHARE, "windows"),
    ],
)
def test_a_count_that_is_larger_than_any_float_is_no_count(folder, name, good, figure):
    """JSON can hold it, and the first sum with it would end the launcher."""
    HistoryWriter(folder).append(good)
    line = re.sub(rf'"{figure}":\d+', f'"{figure}":{HUGE}', (folder / name).read_text())
    assert str(HUGE) in line
    (folder / name).write_text(line)
    found = read_history(folder, now=NOW)
    assert (found.pairs, found.searches) == ((), ())


def test_all_records_of_a_month_are_in_one_file_of_tagged_lines(folder):
    assert HistoryWriter(folder).append(SHARE, pair(), run(), TUNED) is None
    (file,) = folder.iterdir()
    assert [json.loads(line)["record"] for line in file.read_text().splitlines()] == [
        "search",
        "pair",
        "task",
        "search",
    ]
    found = read_history(folder, now=NOW)
    assert (found.pairs, found.searches, found.runs) == ((pair(),), (SHARE, TUNED), (run(),))


def test_a_search_that_many_tasks_follow_is_still_read(folder):
    writer = HistoryWriter(folder)
    writer.append(TUNED)
    writer.append(*(run(n, exact=f"{n:064}", family=f"{n:064}", software="s" * 64) for n in range(12_000)))
    found = read_history(folder, now=NOW)
    assert (len(found.runs), found.searches) == (5000, (TUNED,))


def test_of_many_tasks_of_a_family_only_those_that_tell_more_are_written(folder, monkeypatch):
    monkeypatch.setattr(history, "FAMILY_RUNS", 3)
    writer = HistoryWriter(folder)
    writer.append(*(run(n) for n in (5, 1, 2, 3, 5, 6, 4)))
    writer.append(run(2, is_censored=True), run(1, family="other"), run(1, gpu_model="H100"))
    assert peaks(folder) == [5, 1, 2, 6, 2, 1, 1]


def test_no_more_than_a_limit_is_read_of_all_files_together(folder, monkeypatch):
    writer = HistoryWriter(folder)
    for month in range(3):
        writer.append(*(run(month, when=NOW - month * 31 * DAY) for _ in range(10)))
    size = min(file.stat().st_size for file in folder.iterdir())
    monkeypatch.setattr(history, "READ_BYTES", size + size // 2)
    assert [peaks(folder).count(month) for month in range(3)] == [10, 4, 0]

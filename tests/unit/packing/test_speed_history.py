from __future__ import annotations

import json
import re
import stat

import msgspec
import pytest

from slurm_share.packing import history_files, history_queries, speed_history
from slurm_share.packing.history_records import TaskRun
from slurm_share.packing.rules.fingerprint import name_family
from slurm_share.packing.speed_history import SpeedWriter, read_speed_history
from slurm_share.packing.speed_records import LevelRun, PairRun, ShareRun, TunedRun
from slurm_share.packing.task_history import Writer

NOW = 1_795_000_000.0
DAY = 86400.0


def pair(when=NOW, **other):
    fields = {
        "a": "e1", "b": "e2", "family_a": "f1", "family_b": "f2", "gpu_model": "A100", "sharing": "mps",
        "slowdown_a": 1.2, "slowdown_b": 1.3, "predicted_a": 1.1, "predicted_b": 1.1, "stp": 1.6, "stp_error": 0.02,
        "windows": 4, **other,
    }  # fmt: skip
    return PairRun(when=when, **fields)


TUNED = TunedRun(
    when=NOW, exact="e", family="f1", gpu_model="A100", gpus=4, rate_source="progress",
    levels=(LevelRun(4, "mps", 1.5, 0.1, 6),), best=4, end="cost", next=8,
)  # fmt: skip
SHARE = ShareRun(
    when=NOW, family="f2", gpu_model="A100", arm="60", stp=1.7, antt=1.2, predicted_stp=1.6, predicted_antt=1.2,
    windows=3, neighbours=("f1",),
)  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """Where the history is to be; not yet there."""
    return tmp_path / "state" / "slurm-share" / "tasks"


def test_what_is_written_is_read_again_and_the_files_are_the_users_alone(folder):
    assert SpeedWriter(folder).append(SHARE, pair(), TUNED) is None
    found = read_speed_history(folder, now=NOW)
    assert (found.pairs, found.tuned, found.shares, found.notes) == ((pair(),), (TUNED,), (SHARE,), ())
    assert sorted(file.name for file in folder.iterdir()) == ["pairs.jsonl", "shares.jsonl", "tuned.jsonl"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}


def test_no_folder_is_an_empty_history_and_writing_nothing_makes_none(folder):
    assert SpeedWriter(folder).append() is None
    assert read_speed_history(folder, now=NOW) == speed_history.SpeedHistory()
    assert not folder.exists()


WHOLE = msgspec.to_builtins(pair())
IMPOSSIBLE = (
    {"version": 2}, {"when": -1.0}, {"when": NOW + 9 * DAY}, {"slowdown_a": 0.0}, {"stp": -1.0}, {"stp_error": 1e300},
    {"family_a": "\x1b[2J"}, {"gpu_model": "x" * 999}, {"sharing": "magic"}, {"windows": -1},
)  # fmt: skip
BAD = [
    b'{"when":1,"a":"e', b"torn", b"[]", b"\xff\xfe", b" " * 20_000 + b"{}", b'{"when":1,"slowdown_a":1e999}',
    *(json.dumps({**WHOLE, **change}).encode() for change in IMPOSSIBLE),
]  # fmt: skip


@pytest.mark.parametrize("line", BAD)
def test_a_line_that_cannot_be_read_or_be_true_is_passed_over(folder, line):
    SpeedWriter(folder).append(pair(windows=1))
    with open(folder / "pairs.jsonl", "ab") as opened:
        opened.write(line)
    SpeedWriter(folder).append(pair(windows=2))
    assert [one.windows for one in read_speed_history(folder, now=NOW).pairs] == [1, 2]


def test_the_newest_lines_of_the_last_180_days_count(folder, monkeypatch):
    monkeypatch.setitem(speed_history.NEWEST, "pairs.jsonl", 3)
    SpeedWriter(folder).append(*(pair(NOW - day * DAY, windows=day) for day in (181, 9, 7, 8, 2)))
    assert [one.windows for one in read_speed_history(folder, now=NOW).pairs] == [8, 7, 2]


def test_a_file_that_is_removed_during_the_reading_is_no_problem(folder, monkeypatch):
    SpeedWriter(folder).append(pair(), TUNED)
    real = history_files.last_lines
    monkeypatch.setattr(history_files, "last_lines", lambda *at: (folder / at[1]).unlink() or real(*at))
    assert read_speed_history(folder, now=NOW) == speed_history.SpeedHistory()


def test_a_search_of_which_the_end_is_not_recorded_is_not_used(folder):
    SpeedWriter(folder).append(TUNED, TUNED)
    lines = (folder / "tuned.jsonl").read_text().splitlines()
    (folder / "tuned.jsonl").write_text(lines[0].replace(',"end":"cost","next":8', "") + "\n" + lines[1] + "\n")
    assert read_speed_history(folder, now=NOW) == speed_history.SpeedHistory(tuned=(TUNED,))


IMPOSSIBLE_SEARCHES = (
    {"best": 5}, {"best": 0}, {"best": 10**400}, {"next": 10**6}, {"next": -1}, {"gpus": -1}, {"end": "magic"},
    {"levels": []}, {"levels": [[4, "mps", 1.5, 0.1, 6]] * 1000}, {"levels": [{"level": 4}]}, {"rate_source": "\n" * 9},
    {"levels": [{"level": 4, "sharing": "mps", "per_s": float("inf"), "spread_per_s": 0.1, "windows": 6}]},
)  # fmt: skip


@pytest.mark.parametrize("change", IMPOSSIBLE_SEARCHES, ids=lambda one: next(iter(one)))
def test_a_search_that_cannot_be_true_is_passed_over(folder, change):
    SpeedWriter(folder).append(TUNED)
    with open(folder / "tuned.jsonl", "ab") as opened:
        opened.write(json.dumps({**msgspec.to_builtins(TUNED), "when": NOW + 1, **change}).encode())
    assert read_speed_history(folder, now=NOW).tuned == (TUNED,)


def test_a_family_that_is_forgotten_is_gone_from_all_files(folder):
    SpeedWriter(folder).append(pair(), pair(family_a="f3", family_b="f4"), TUNED, SHARE)
    with open(folder / "pairs.jsonl", "ab") as opened:
        opened.write(b"nonsense\n")
    assert len(list(speed_history.FILES.records(folder))) == 4
    assert speed_history.FILES.forget(lambda record: "f1" in speed_history.families(record), folder) == 3
    found = read_speed_history(folder, now=NOW)
    assert [one.family_a for one in found.pairs] == ["f3"]
    assert (found.tuned, found.shares) == ((), ())
    assert b"nonsense" in (folder / "pairs.jsonl").read_bytes()


def test_forgetting_a_name_forgets_its_sizes_and_its_speeds(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    family, other = name_family("mine"), name_family("other")
    Writer().append(TaskRun(when=NOW, exact="e", family=family, kind="done", seconds=1.0, peak_mib=1))
    SpeedWriter().append(pair(family_a=family), pair(family_a=other), TUNED)
    assert history_queries.forget("mine", tmp_path) == 2
    assert history_queries.forget("other", tmp_path) == 1
    found = read_speed_history(now=NOW)
    assert (found.pairs, found.tuned) == ((), (TUNED,))
    assert history_queries.forget_all() == 1


HUGE = 10**400


@pytest.mark.parametrize(
    ("name", "good", "figure"),
    [
        ("pairs.jsonl", pair(windows=3), "windows"),
        ("tuned.jsonl", TUNED, "windows"),
        ("tuned.jsonl", TUNED, "gpus"),
        ("shares.jsonl", SHARE, "windows"),
    ],
)
def test_a_count_that_is_larger_than_any_float_is_no_count(folder, name, good, figure):
    """JSON can hold it, and the first sum with it would end the launcher."""
    SpeedWriter(folder).append(good)
    line = re.sub(rf'"{figure}":\d+', f'"{figure}":{HUGE}', (folder / name).read_text())
    assert str(HUGE) in line
    (folder / name).write_text(line)
    found = read_speed_history(folder, now=NOW)
    assert (found.pairs, found.tuned, found.shares) == ((), (), ())

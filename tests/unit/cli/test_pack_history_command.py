"""slurm-share pack history, as it is typed."""

from __future__ import annotations

import json
import os
import time

import pytest

from slurm_share.cli import main
from slurm_share.core import terminal
from slurm_share.packing import fingerprint, history
from slurm_share.packing.history_records import TaskRun

NOW = time.time()
GPU = "NVIDIA A100"


@pytest.fixture
def project(monkeypatch, tmp_path):
    """Go to a folder with a script for whose user some history is recorded."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(terminal, "width", lambda: 120)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(folder)
    writer = history.HistoryWriter()
    for batch, peak in ((32, 4096), (64, 5120), (64, 5130)):
        key = fingerprint.key_of(["python", "train.py", "--batch-size", str(batch)], folder)
        assert writer.append(run(key, peak)) is None
    named = fingerprint.key_of(["python", "/gone/else.py"], folder, "resnet")
    assert writer.append(run(named, 9216, seconds=7200.0)) is None
    return folder


def run(key, peak, **other):
    fields = {"when": NOW, "kind": "done", "seconds": 60.0, "gpu_model": GPU, "gpu_total_mib": 40_960, **other}
    return TaskRun(
        exact=key.exact, family=key.family, series=key.series, script=key.script, numbers=key.numbers, peak_mib=peak,
        **fields,
    )  # fmt: skip


def test_scripts_of_the_folder_are_shown_by_their_names(project, capsys):
    assert main.main(["pack", "history"]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split() == ["SCRIPT", "HASH", "RUNS", "COMMANDS", "GPU", "MEM", "OOM", "TIME", "LAST", "GPU"]
    day = time.strftime("%Y-%m-%d", time.localtime(NOW))
    assert any(row.startswith("train.py ") and "4.0-5.0 GiB" in row and f"60 s  {day}" in row for row in rows)
    assert any(row.startswith("- ") and "9.0 GiB" in row for row in rows)
    assert len(rows) == 2


def test_elsewhere_no_script_has_a_name(project, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert main.main(["pack", "history"]) == 0
    assert "train.py" not in capsys.readouterr().out


def test_a_command_is_found_by_itself(project, capsys):
    assert main.main(["pack", "history", "--", "python", "train.py", "--batch-size", "64"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "2 runs of this command, 3 runs of its script"
    assert second.endswith("on NVIDIA A100: largest of 2 runs of this command, +10 %")
    assert main.main(["pack", "history", "--", "python", "train.py", "--batch-size", "128"]) == 0
    assert "line through --batch-size" in capsys.readouterr().out


def test_a_command_that_never_ran_is_said_to_be_unknown(project, capsys):
    assert main.main(["pack", "history", "--", "python", "other.py"]) == 0
    assert "the history has no runs of this command" in capsys.readouterr().out


def test_a_name_finds_what_was_given_it(project, capsys):
    assert main.main(["pack", "history", "--name", "resnet"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main.main(["pack", "history", "--name", "vgg"]) == 0
    assert "no finished tasks" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["resnet", "train.py", "hash"])
def test_what_is_forgotten_is_gone_and_the_rest_stays(project, capsys, what):
    family = history.read_history().runs[-1].family
    assert main.main(["pack", "history", "--forget", family[:8] if what == "hash" else what]) == 0
    gone = 3 if what == "train.py" else 1
    assert capsys.readouterr().out == f"deleted {gone} record{'s' if gone > 1 else ''} of runs and speeds\n"
    assert len(history.read_history().runs) == 4 - gone


def test_everything_can_be_forgotten(project, capsys):
    assert main.main(["pack", "history", "--forget", "--all"]) == 0
    assert capsys.readouterr().out == "deleted the whole history (1 file)\n"
    assert history.read_history().runs == ()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--forget", "vgg"], "the history has no such name, script or hash"),
        (["--forget", "gone.py"], "the history has no such name, script or hash"),
        (["--forget"], "--forget needs"),
        (["--forget", "resnet", "--all"], "--forget needs"),
        (["--all"], "--all needs --forget"),
        (["--forget", "\x1b[2J"], "the history has no such name, script or hash"),
    ],
)
def test_what_cannot_be_forgotten_is_refused(project, capsys, arguments, said):
    assert main.main(["pack", "history", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "\x1b" not in error
    assert len(history.read_history().runs) == 4


def test_json_has_hashes_numbers_and_the_names_of_this_folder(project, capsys):
    assert main.main(["pack", "history", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["runs"], found["passed_over"], found["notes"]) == (1, 4, 0, [])
    assert {one["most_mib"] for one in found["families"]} == {5130, 9216}
    assert set(found["names"].values()) == {"train.py"}
    assert main.main(["pack", "history", "--json", "--", "python", "train.py", "--batch-size", "64"]) == 0
    command = json.loads(capsys.readouterr().out)
    assert (command["runs"], command["estimates"][GPU]["point_mib"]) == (2, 5130)


def test_published_lines_can_be_read_as_a_sites(project, capsys, tmp_path):
    assert main.main(["pack", "history", "--publish"]) == 0
    out = capsys.readouterr().out
    assert "train" not in out
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "all.jsonl").write_text(out)
    (one,), notes = history.read_site(str(tmp_path / "site"))
    assert (one.runs, one.p90_mib, notes) == (3, 5130, ())


def test_a_history_that_cannot_be_used_is_named(project, capsys):
    folder = history.find_folder()
    folder.chmod(0o777)
    assert main.main(["pack", "history"]) == 0
    assert "is not yours alone" in capsys.readouterr().err
    assert main.main(["pack", "history", "--forget", "--all"]) == 1


def test_lines_that_cannot_be_read_are_counted(project, capsys):
    (file,) = history.find_folder().iterdir()
    with open(file, "ab") as opened:
        opened.write(b"torn\ntorn\n")
    assert main.main(["pack", "history"]) == 0
    assert "2 lines of the history cannot be read and are ignored" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong",
    [
        {"when": 1e300},
        {"when": NOW + 1e8},
        {"seconds": 1e308},
        {"peak_mib": 10**18},
        {"peak_mib": -5},
        {"gpu_total_mib": -1},
    ],
)
def test_figures_that_cannot_be_count_for_nothing(project, capsys, wrong):
    """A run dated by a clock far ahead does not count either: it would be the newest of its command for ever."""
    before = known(capsys)
    file = next(history.find_folder().glob("*.jsonl"))
    lines = file.read_text()
    file.write_text(lines + json.dumps(json.loads(lines.splitlines()[0]) | wrong) + "\n")
    assert known(capsys) == before
    assert main.main(["pack", "history"]) == 0
    assert "1 line of the history cannot be read and is ignored" in capsys.readouterr().out


def known(capsys):
    """Return what is known of all families, and of one command."""
    assert main.main(["pack", "history", "--json"]) == 0
    families = json.loads(capsys.readouterr().out)["families"]
    assert main.main(["pack", "history", "--", "python", "train.py", "--batch-size", "64"]) == 0
    return families, capsys.readouterr().out


@pytest.mark.parametrize("days", [200, 0])
def test_what_no_longer_counts_can_be_forgotten(project, capsys, monkeypatch, days):
    """A run that is too old, or one behind thousands of newer ones: no hash of it stays on the disk."""
    monkeypatch.setitem(history.NEWEST, TaskRun, 3)
    key = fingerprint.key_of(["python", "old.py"], project)
    folder = history.find_folder()
    newer = [file.read_text() for file in folder.glob("*.jsonl")]
    when = time.time() - days * 86400
    for file in folder.glob("*.jsonl"):
        file.unlink()
    assert history.HistoryWriter().append(run(key, 1000, when=when)) is None
    file = folder / time.strftime("%Y-%m.jsonl", time.gmtime())
    file.touch(mode=0o600)
    with file.open("a") as opened:
        opened.write("".join(newer))
    assert main.main(["pack", "history", "--forget", "old.py"]) == 0
    assert capsys.readouterr().out == "deleted 1 record of runs and speeds\n"
    assert not any(key.family in file.read_text() for file in folder.glob("*.jsonl"))
    assert main.main(["pack", "history", "--forget", "train.py"]) == 0


def test_json_names_no_file_that_is_not_known(project, capsys):
    (project / "diary.txt").write_text("x")
    assert main.main(["pack", "history", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["names"].values()) == ["train.py"]


def test_a_file_that_cannot_be_forgotten_is_named_with_its_folder(project, capsys):
    file = history.find_folder() / "2026-01.jsonl"
    file.mkdir()
    assert main.main(["pack", "history", "--forget", "--all"]) == 1
    assert capsys.readouterr().err == f"slurm-share: {file}: Is a directory\n"
    file.rmdir()
    file = history.find_folder() / time.strftime("%Y-%m.jsonl", time.gmtime())
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    assert main.main(["pack", "history"]) == 0
    assert f"{file}: is not a regular file that only you can write" in capsys.readouterr().err

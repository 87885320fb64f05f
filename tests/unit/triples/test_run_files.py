"""The folder of a run: its number, and files that appear complete or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_share.core.errors import StateError, UsageError
from slurm_share.triples import run_files, run_folder
from slurm_share.triples.records import Run, Triple

RUN = Run(name="a", command=("/a",), cwd="/", triple=Triple(1, 2), processes=2, tasks=2)


def test_folders_are_numbered_from_one_above_the_highest(tmp_path: Path) -> None:
    assert run_files.make_folder(tmp_path).name == "LLSUB.1"
    (tmp_path / "LLSUB.7").mkdir()
    (tmp_path / "LLSUB.9.old").mkdir()
    (tmp_path / "MAPRED.30").mkdir()
    assert run_files.make_folder(tmp_path).name == "LLSUB.8"
    assert run_files.make_folder(tmp_path, "MAPRED").name == "MAPRED.31"


def test_many_at_the_same_moment_get_a_number_each(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda _: run_files.make_folder(tmp_path), range(64)))
    assert len(set(made)) == 64


def test_a_folder_that_cannot_be_made_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="submit from a folder to which you may write"):
        run_files.make_folder(tmp_path / "gone")


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    run = Run(name="a", command=(), cwd="/", triple=None, processes=2, tasks=2, task_kind="command")
    argv = ("sbatch", "a b", f"{tmp_path}/launch.sh")
    run_files.write(tmp_path, run, ["x y", "\udcff"], "#!/bin/sh\n", argv)
    assert run_folder.read_run(tmp_path) == replace(run, scheduler=argv)
    assert run_folder.read_tasks(tmp_path) == ["x y", "\udcff"]
    assert run_folder.scheduler_command(tmp_path, replace(run, scheduler=argv)) == argv
    assert stat.S_IMODE((tmp_path / "launch.sh").stat().st_mode) & 0o700 == 0o700
    assert sorted(path.name for path in tmp_path.iterdir()) == ["launch.sh", "run.json", "tasks"]


def test_a_file_system_that_is_full_leaves_nothing_behind(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: both fail in write(2)."""
    folder = run_files.make_folder(tmp_path)
    program = f"""
import resource, signal, sys
from pathlib import Path
from slurm_share.triples import run_files
from slurm_share.core.errors import UsageError
from slurm_share.triples.records import Run
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10000, 10000))
run = Run(name="a", command=(), cwd="/", triple=None, processes=2, tasks=2, task_kind="command")
try:
    run_files.write(Path({str(folder)!r}), run, ["x" * 100] * 1000, "")
except UsageError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "nothing was submitted" in said
    assert str(folder / "tasks") in said
    assert not folder.exists()


def test_jobs_are_noted_one_after_the_other(tmp_path: Path) -> None:
    assert run_folder.read_jobs(tmp_path) == []
    run_files.note_job(tmp_path, 12)
    run_files.note_job(tmp_path, 7)
    with (tmp_path / "jobs").open("a") as file:
        file.write("\ntorn x\n")
    assert run_folder.read_jobs(tmp_path) == [12, 7]


def test_one_at_a_time_resumes_a_run(tmp_path: Path) -> None:
    with run_files.claimed(tmp_path):
        for _ in range(2):  # a refusal takes nobody's claim away
            with pytest.raises(UsageError, match=f"pid {os.getpid()} on "), run_files.claimed(tmp_path):
                pytest.fail("two at once")
    assert list(tmp_path.iterdir()) == []


HOLDS = """
import sys, time
from pathlib import Path
from slurm_share.triples import run_files
with run_files.claimed(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_claim_of_a_killed_resumption_is_taken_over(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDS, tmp_path], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        whose = rf"by pid {holder.pid} on {os.uname().nodename}\)"
        with pytest.raises(UsageError, match=whose), run_files.claimed(tmp_path):
            pytest.fail("two at once")
        holder.kill()
    words = [sys.executable, "-c", HOLDS, tmp_path]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    try:
        said = sorted(one.stdout.readline() for one in both if one.stdout is not None)
    finally:
        for one in both:
            one.kill()
            one.communicate()
    assert said == ["", "", "held\n"]
    with run_files.claimed(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "taken"),
    [
        (("start ", "start 1"), True),
        ((" on ", " on other"), False),
        ((" in pid", " in other"), False),
        (("\n", ""), False),
        (("pid", ""), False),
    ],
    ids=["another process has its number", "another host's", "another container's", "cut off", "of an older release"],
)
def test_only_a_claim_that_is_surely_of_a_process_that_is_gone_is_taken_over(
    tmp_path: Path, change: tuple[str, str], taken: bool
) -> None:
    with run_files.claimed(tmp_path):
        text = (tmp_path / "resuming").read_text()
    (tmp_path / "resuming").write_text(text.replace(*change, 1))
    if taken:
        with run_files.claimed(tmp_path):
            assert (tmp_path / "resuming").read_text() == text
    else:
        with pytest.raises(UsageError, match="is being resumed"), run_files.claimed(tmp_path):
            pytest.fail("taken over")
        assert (tmp_path / "resuming").exists()


def test_a_failure_gives_the_claim_back(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="x"), run_files.claimed(tmp_path):
        raise ValueError("x")
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_rewritten_whole(tmp_path: Path) -> None:
    run_files.write(tmp_path, RUN, (), "")
    run_files.rewrite_run(tmp_path, replace(RUN, retries=3))
    assert run_folder.read_run(tmp_path).retries == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["launch.sh", "run.json"]


def test_where_a_resumption_has_no_room_its_sentence_names_the_file(tmp_path: Path) -> None:
    run_files.write(tmp_path, RUN, (), "")
    program = f"""
import resource, signal
from pathlib import Path
from slurm_share.triples import run_files
from slurm_share.core.errors import UsageError
from slurm_share.triples import run_folder
folder = Path({str(tmp_path)!r})
run = run_folder.read_run(folder)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
def claim():
    with run_files.claimed(folder):
        raise AssertionError("no room, and claimed")
for act in (claim, lambda: run_files.rewrite_run(folder, run)):
    try:
        act()
    except UsageError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(error, flush=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
"""
    said = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    first, second = said.splitlines()
    assert first.startswith(f"cannot write {tmp_path / 'resuming'} (File too large)")
    assert second.startswith(f"cannot write {tmp_path / 'run.json'} (File too large)")
    assert run_folder.read_run(tmp_path) == RUN
    assert sorted(path.name for path in tmp_path.iterdir()) == ["launch.sh", "run.json"]


def test_only_sbatch_is_a_scheduler_command(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no scheduler command"):
        run_folder.scheduler_command(tmp_path, RUN)
    for words in (("/bin/sh", "-c", "x"), ("sbatch",), ("/tmp/sbatch",)):
        with pytest.raises(StateError, match="not an sbatch command"):
            run_folder.scheduler_command(tmp_path, replace(RUN, scheduler=words))


@pytest.mark.parametrize("name", [".", "run.json", "jobs", "tasks", "launch.sh"])
def test_whose_a_run_is_every_file_in_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    run_files.write(tmp_path, replace(RUN, task_kind="command"), ["x"], "", ["sbatch", "x"])
    run_files.note_job(tmp_path, 1)
    assert run_folder.read_foreign_owner(tmp_path, os.geteuid()) is None
    lstat, stat_ = Path.lstat, Path.stat

    def bobs(path: Path, look: Callable[[Path], os.stat_result]) -> os.stat_result:
        found = list(look(path))
        return os.stat_result([*found[:4], 2002, *found[5:]] if path == tmp_path / name else found)

    monkeypatch.setattr(Path, "lstat", lambda path: bobs(path, lstat))
    monkeypatch.setattr(Path, "stat", lambda path, **_: bobs(path, stat_))
    assert run_folder.read_foreign_owner(tmp_path, os.geteuid()) == 2002


@pytest.mark.parametrize(
    ("words", "expected"),
    [(("--mem=0",), False), (("--mem=0", "--mem=500"), True), (("--mem", "500"), True), ((), True)],
)
def test_a_job_that_has_all_memory_cannot_ask_for_more(words: tuple[str, ...], expected: bool) -> None:
    assert not run_folder.asks_for_memory(RUN)  # without Slurm
    assert run_folder.asks_for_memory(replace(RUN, scheduler=("sbatch", *words, "launch.sh"))) is expected

"""Tasks that are added to a run: the order of entries and seals, two clients at once, clients that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_share.core.errors import StateError
from slurm_share.packing import TaskSpec
from slurm_share.triples import added_tasks, run_folder
from slurm_share.triples.added_tasks import Head, append, read_entries, read_last, seal
from slurm_share.triples.records import Run, Triple

RUN = Run(
    name="a",
    command=(),
    cwd="/",
    triple=Triple(1, 2),
    processes=2,
    tasks=3,
    task_kind="command",
    distribution="dynamic",
)
ADD = """
import sys
from pathlib import Path
from slurm_share.triples.added_tasks import Head, append
folder, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for number in range(count):
    entry = append(folder, Head(first=0, tasks=1, has_lines=True), [f"{name}{number}"], tasks=3, most=10**6)
    print(entry.head.first, flush=True)
"""


def add(folder: Path, *lines: str, most: int = 100) -> added_tasks.Entry | None:
    return append(folder, Head(first=0, tasks=len(lines), has_lines=True), lines, tasks=3, most=most)


def adder(folder: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ADD, str(folder), name, str(count)], stdout=subprocess.PIPE, text=True
    )


def added_lines(folder: Path) -> list[str]:
    return [line for entry in read_entries(folder) for line in entry.lines]


def test_numbers_go_on_from_the_last_task(tmp_path: Path) -> None:
    first, second = add(tmp_path, "x", "\udcff"), add(tmp_path, "z")
    assert first is not None
    assert second is not None
    assert (first.head.first, second.head.first) == (3, 5)
    (tmp_path / "run.json").write_bytes(run_folder.render_run(RUN))
    (tmp_path / "tasks").write_text("a\nb\nc\n")
    run = run_folder.read_run(tmp_path)
    assert (run.tasks, run.added, run.first_tasks) == (6, 3, 3)
    assert run_folder.read_lines(tmp_path, run) == ["a", "b", "c", "x", "\udcff", "z"]
    assert run_folder.parse_run(run_folder.render_run(run), "run.json") == RUN, "run.json never has added tasks"
    assert [found.first if (found := added_tasks.find_head(tmp_path, task)) else None for task in (2, 3, 4, 5, 6)] == [
        None, 3, 3, 5, None,
    ]  # fmt: skip


def test_options_of_added_tasks_stand_beside_those_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(run_folder.render_run(RUN))
    add(tmp_path, "x")
    spec = TaskSpec(timeout_s=9.0)
    head = Head(first=0, tasks=1, has_lines=True, has_specs=True)
    append(tmp_path, head, ["y"], run_folder.render_specs([spec]).splitlines(), tasks=3, most=100)
    add(tmp_path, "z")
    none = TaskSpec()
    assert run_folder.read_specs(tmp_path, run_folder.read_run(tmp_path)) == (*[none] * 4, spec, none)


def test_a_limit_in_percent_counts_the_added_tasks(tmp_path: Path) -> None:
    run = replace(RUN, max_failures=2, max_failures_written="50%")
    (tmp_path / "run.json").write_bytes(run_folder.render_run(run))
    add(tmp_path, *"defghij")
    assert run_folder.read_run(tmp_path).max_failures == 5


def test_more_tasks_than_a_run_has_are_not_added(tmp_path: Path) -> None:
    assert add(tmp_path, *"abc", most=6) is not None
    assert add(tmp_path, "d", most=6) is None
    assert added_lines(tmp_path) == list("abc")


def test_a_seal_takes_the_next_number_only_if_all_entries_were_seen(tmp_path: Path) -> None:
    add(tmp_path, "x")
    assert not seal(tmp_path, "4711", 0, 3), "an entry was not seen"
    assert seal(tmp_path, "4711", 1, 3)
    entry = add(tmp_path, "y")
    assert entry is not None
    assert entry.head.sealed == "4711"
    assert entry.head.first == 4
    assert seal(tmp_path, "4711", 3, 3), "the same job has sealed: nothing after that is its own"
    assert read_last(tmp_path)[0] == 3
    assert (found := added_tasks.read_seal(tmp_path, "4711")) is not None
    assert found.end == 4
    assert added_tasks.read_seal(tmp_path, "4712") is None


def test_two_clients_at_once_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    clients = [adder(tmp_path, name, 40) for name in "ab"]
    said = [int(line) for one in clients for line in one.communicate(timeout=240)[0].split()]
    assert sorted(said) == list(range(3, 83))
    assert sorted(added_lines(tmp_path)) == sorted(f"{name}{number}" for name in "ab" for number in range(40))


def test_a_client_that_is_killed_leaves_whole_entries_only(tmp_path: Path) -> None:
    client = adder(tmp_path, "a", 100_000)
    assert client.stdout is not None
    for _ in range(20):
        told = int(client.stdout.readline())
    os.kill(client.pid, signal.SIGKILL)
    client.wait()
    client.stdout.close()
    entries = list(read_entries(tmp_path))
    assert [entry.head.first for entry in entries] == list(range(3, 3 + len(entries)))
    assert entries[-1].head.first >= told, "what the client was told is there"
    left = next((tmp_path / "added").glob(".new-*"), tmp_path / "added" / ".new-1")
    left.touch()
    os.utime(left, (0, 0))
    assert add(tmp_path, "b") is not None
    assert not left.exists()


@pytest.mark.parametrize("data", [b"", b"{}\n", b'{"first":3,"tasks":2,"has_lines":true}\nx\n', b'{"first":-1}\n'])
def test_a_damaged_entry_is_a_sentence(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "added").mkdir()
    (tmp_path / "added" / "1").write_bytes(data)
    with pytest.raises(StateError, match="added/1"):
        list(read_entries(tmp_path))


def test_another_users_entry_makes_the_run_anothers(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: another user's file needs root")
    add(tmp_path, "x")
    assert run_folder.read_foreign_owner(tmp_path, 0) is None
    os.chown(tmp_path / "added" / "1", 65534, 65534)
    assert run_folder.read_foreign_owner(tmp_path, 0) == 65534


@pytest.mark.parametrize("what", ["link", "fifo"])
def test_an_entry_that_is_no_file_of_the_run_neither_counts_nor_blocks(tmp_path: Path, what: str) -> None:
    add(tmp_path, "x")
    entry, lease = tmp_path / "added" / "1", tmp_path / "added" / f"{added_tasks.LEASE}1"
    entry.rename(tmp_path / "other")
    for file in (entry, lease):
        os.mkfifo(file) if what == "fifo" else file.symlink_to(tmp_path / "other")
    with pytest.raises(StateError):
        list(read_entries(tmp_path))
    with pytest.raises(StateError):
        read_last(tmp_path)
    assert added_tasks.read_leases(tmp_path) == ({} if what == "link" else {lease: b""})

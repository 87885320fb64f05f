"""Results of a run: written through crashes and full disks, read as a stream, and each again by its place."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from slurm_share.core.errors import StateError
from slurm_share.triples import result_files, run_folder
from slurm_share.triples.records import Ended, Run, Triple
from slurm_share.triples.result_files import ResultFiles, Results, read_before, read_done

RUN = Run(name="x", command=("/x",), cwd="/", triple=Triple(2, 2), processes=4, tasks=6)


def ended(task: int, outcome: str = "done", job: str = "1", why: str = "") -> Ended:
    return Ended(task=task, rank=0, attempt=1, outcome=outcome, node="n", job=job, started=1.0, seconds=1.0, why=why)


def write(folder: Path, node: str, data: bytes) -> None:
    (folder / node).mkdir()
    (folder / node / run_folder.RESULTS).write_bytes(data)


def test_every_result_is_found_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_files, "BLOCK_BYTES", 100)
    monkeypatch.setattr(result_files, "WINDOW_BYTES", 64)
    monkeypatch.setattr(result_files, "WINDOWS_MOST", 1)
    lines = [run_folder.render_ended(ended(task, why="x" * 50 * task)) for task in range(6)]
    write(tmp_path, "p0-p1_a", lines[0] + b'{"task":\n\n' + lines[1] + lines[2] + b"\xff\n" + lines[3][:40])
    write(tmp_path, "p2-p3_b", lines[4] + run_folder.render_ended(ended(6)) + lines[5].rstrip(b"\n"))
    files = ResultFiles(tmp_path, RUN)
    found = [one for number in range(len(files)) for one in files.of_file(number)]
    assert [one.task for _, one in found] == [0, 1, 2, 4, 5]
    for order in (found, found[::-1], found[::2] + found[1::2]):
        assert list(files.lines(place for place, _ in order)) == [lines[one.task].rstrip(b"\n") for _, one in order]
    assert [files.ended(place) for place, _ in found] == [one for _, one in found]


def test_what_is_done_before_a_start(tmp_path: Path) -> None:
    data = [ended(0, job="1"), ended(1, job="2"), ended(2, job="2.1"), ended(3, "failed", job="1"), ended(1, job="1")]
    write(tmp_path, "p0-p1_a", b"".join(map(run_folder.render_ended, data)))
    done = read_done(tmp_path, RUN)
    assert ([task for task in range(6) if task in done], len(done)) == ([0, 1, 2], 3)
    assert [task for task in range(6) if task in read_done(tmp_path, RUN, before_start="2.1")] == [0, 1]


def test_what_ran_out_of_memory_before(tmp_path: Path) -> None:
    lines = [ended(0, "gpu memory"), ended(0), ended(1, "gpu memory"), ended(1, "unfinished"), ended(2, "failed")]
    lines += [ended(2, "gpu memory", why="first"), ended(2, "gpu memory", why="last"), ended(3)]
    lines += [ended(2, "given up")]  # it had no attempt
    write(tmp_path, "p0-p1_a", b"".join(map(run_folder.render_ended, lines)))
    done, out_of_memory = read_before(tmp_path, RUN)
    assert [task for task in range(6) if task in done] == [0, 3]
    assert {task: one.why for task, one in out_of_memory.items()} == {1: "", 2: "last"}


def test_a_file_that_cannot_be_read_is_no_empty_one(tmp_path: Path) -> None:
    (tmp_path / "p0-p1_a" / run_folder.RESULTS).mkdir(parents=True)
    with pytest.raises(StateError, match="Is a directory"):
        read_done(tmp_path, RUN)


# ---- Writing ----


def read(folder: Path) -> list[int]:
    return [one.task for one in run_folder.parse_results((folder / run_folder.RESULTS).read_bytes())]


def test_results_are_there_at_once(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.write(ended(1))
    results.write(ended(2), ended(3))
    assert read(tmp_path) == [1, 2, 3]


def test_half_a_line_of_an_earlier_crash_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / run_folder.RESULTS).write_bytes(run_folder.render_ended(ended(1)) + b'{"task": 2, "ra')
    results = Results(tmp_path)
    results.write(ended(3))
    results.close()
    assert read(tmp_path) == [1, 3]


def test_a_full_disk_is_tried_again_and_what_found_no_room_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Results(tmp_path)
    write, room = os.write, [30, 0, 0, 0]

    def narrow(fd: int, data: bytes) -> int:
        if not room:
            return write(fd, data)
        now = room.pop(0)
        if now == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[:now])

    monkeypatch.setattr(os, "write", narrow)
    results.write(ended(1))
    results.write(ended(2))
    results.settle()
    assert results.write_error is not None
    assert results.lost
    results.settle()
    assert results.lost == b""
    assert read(tmp_path) == [1, 2]
    results.close()

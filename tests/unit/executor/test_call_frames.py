"""Frames of calls and results in files, and claims of them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from slurm_share.executor import frames, run_folder
from slurm_share.executor.frames import Call, Result


def contents(reader: frames.Reader) -> list[bytes]:
    return [content for _, content, _ in reader.read()]


def test_calls_come_back_as_they_were_packed() -> None:
    calls = [Call(number, b"f", b"a" * number, b"{}" if number else b"", number % 2, 7, 3) for number in range(4)]
    assert frames.unpack_calls(frames.pack_calls(calls), 7) == calls
    assert frames.call_indexes(frames.pack_calls(calls)) == [0, 1, 2, 3]


def test_results_come_back_as_they_were_packed() -> None:
    results = [Result(1, number, frames.VALUE, 0.5, b"v" * number, 0, 2) for number in range(3)]
    assert frames.unpack_results(b"".join(map(frames.pack_result, results))) == results


def test_a_reader_waits_for_the_rest_of_a_frame(tmp_path: Path) -> None:
    data = frames.frame(frames.CALLS, b"one") + frames.frame(frames.CALLS, b"two")
    file, reader = tmp_path / "file", frames.Reader(str(tmp_path / "file"))
    found = []
    for size in range(len(data) + 1):
        file.write_bytes(data[:size])
        found += contents(reader)
    assert found == [b"one", b"two"]


def test_a_reader_takes_what_replaces_a_frame_that_found_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk takes part of a large frame; its writer then puts a short one there."""
    writer, reader = frames.Appender(str(tmp_path / "file")), frames.Reader(str(tmp_path / "file"))
    seen: list[bytes] = []
    write = os.pwrite

    def part_of_it(fd: int, data: bytes, at: int) -> int:
        if at:
            seen.extend(contents(reader))
            raise OSError(errno.ENOSPC, "full")
        return write(fd, bytes(data)[:50], at)

    with monkeypatch.context() as full:
        full.setattr(frames.os, "pwrite", part_of_it)
        with pytest.raises(OSError, match="full"):
            writer.append(frames.frame(frames.RESULTS, b"x" * 1000))
    writer.append(frames.frame(frames.RESULTS, b"short"))
    writer.close()
    assert seen + contents(reader) == [b"short"]


def test_each_frame_has_one_claimant(tmp_path: Path) -> None:
    nodes = [run_folder.Claims(str(tmp_path), "1.0", name) for name in ("n1", "n2")]
    assert [[claims.take(0, number) for claims in nodes] for number in range(3)] == [[True, False]] * 3
    again = run_folder.Claims(str(tmp_path), "1.0", "n1")
    assert sorted(again.own()) == [(0, 0), (0, 1), (0, 2)]
    assert not again.take(0, 1)


def test_a_repeated_request_for_a_claim_counts_as_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS may repeat link(2) after a lost answer; the second answer is EEXIST."""
    claims = run_folder.Claims(str(tmp_path), "1.0", "n1")
    link = os.link

    def twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(run_folder.os, "link", twice)
    assert claims.take(0, 0)


def test_claims_work_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EOPNOTSUPP, "no links")

    monkeypatch.setattr(run_folder.os, "link", refuse)
    nodes = [run_folder.Claims(str(tmp_path), "1.0", name) for name in ("n1", "n2")]
    assert [claims.take(0, 0) for claims in nodes] == [True, False]

"""Shared memory segments and their reuse."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from slurm_share.spmd import memory
from slurm_share.spmd.errors import NoRoom, TransportError
from slurm_share.spmd.names import SEGMENT_IDLE, SEGMENT_MIN
from slurm_share.spmd.segments import MOST_SEGMENTS, MappedSegment, Pool, class_of


@pytest.mark.parametrize(
    ("size", "held"),
    [
        (0, SEGMENT_MIN),
        (1, SEGMENT_MIN),
        (SEGMENT_MIN, SEGMENT_MIN),
        (SEGMENT_MIN + 1, 2 * SEGMENT_MIN),
        (3 << 20, 4 << 20),
    ],
)
def test_segments_have_sizes_of_powers_of_two(size: int, held: int) -> None:
    assert class_of(size) == held


def test_a_segment_is_there_for_the_second_message_and_used_again() -> None:
    pool = Pool()
    assert pool.take(100_000) is None
    pool.grow(100_000)
    segment = pool.take(100_000)
    assert segment is not None
    assert pool.take(100_000) is None
    pool.freed(segment.number)
    assert pool.take(131_072) is segment
    assert pool.take(1_000_000) is None
    pool.close()


def test_what_was_not_lent_cannot_be_given_back() -> None:
    pool = Pool()
    pool.grow(1)
    number = pool.take(1).number  # type: ignore[union-attr]
    pool.freed(number)
    for wrong in (number, 77):
        with pytest.raises(TransportError):
            pool.freed(wrong)
    pool.close()


def test_a_peer_reads_what_was_written_and_the_size_cannot_change() -> None:
    pool = Pool()
    segment = pool.window(70_000)
    segment.write([memoryview(b"abc"), memoryview(np.full(69_997, 7, np.uint8))])
    mapped = MappedSegment(os.dup(segment.fd), 70_000)
    assert bytes(mapped.memory[:5]) == b"abc\x07\x07"
    mapped.memory[0] = 5
    assert segment.memory[0] == 5
    for size in (0, 1 << 20):
        with pytest.raises(OSError):
            os.ftruncate(segment.fd, size)
    pool.close()


def test_a_descriptor_that_is_no_sealed_segment_is_refused_and_closed() -> None:
    fd = os.memfd_create("other", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 1 << 20)
    with pytest.raises(TransportError):
        MappedSegment(fd, 1 << 20)
    with pytest.raises(OSError):
        os.fstat(fd)
    with Path("/dev/null").open() as stream, pytest.raises(TransportError):
        MappedSegment(os.dup(stream.fileno()), 1)
    pool = Pool()
    with pytest.raises(TransportError):
        MappedSegment(os.dup(pool.window(1).fd), SEGMENT_MIN + 1)
    pool.close()


def test_segments_are_limited_in_bytes_and_number() -> None:
    pool = Pool()
    for _ in range(MOST_SEGMENTS + 10):
        pool.grow(1)
    assert pool.total_bytes == MOST_SEGMENTS * SEGMENT_MIN
    pool.close()
    pool.grow(SEGMENT_IDLE // 2)
    pool.grow(SEGMENT_IDLE // 2)
    pool.grow(SEGMENT_IDLE // 2)
    assert pool.total_bytes == SEGMENT_IDLE
    pool.close()


def test_free_segments_of_other_sizes_make_room_and_peers_are_told() -> None:
    pool = Pool()
    for _ in range(2):
        pool.grow(SEGMENT_IDLE // 2)
    both = [pool.take(SEGMENT_IDLE // 2), pool.take(SEGMENT_IDLE // 2)]
    pool.grow(SEGMENT_MIN)
    assert pool.take(SEGMENT_MIN) is None, "both are busy"
    for segment in both:
        assert segment is not None
        segment.passed.add(3)
        pool.freed(segment.number)
    pool.grow(SEGMENT_MIN)
    assert pool.take(SEGMENT_MIN) is not None
    assert pool.dropped == [both[0]]
    assert pool.total_bytes == SEGMENT_IDLE // 2 + SEGMENT_MIN
    pool.close()


def test_a_segment_of_a_rank_that_does_not_answer_is_given_up() -> None:
    pool = Pool()
    for _ in range(2):
        pool.grow(1)
        pool.grow(1)
    for rank in (1, 2):
        pool.take(1).lent_to = rank  # type: ignore[union-attr]
    total = pool.total_bytes
    pool.abandon(1)
    assert pool.busy == 1
    assert pool.total_bytes == total - SEGMENT_MIN
    pool.close()


def test_no_segment_is_made_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool()
    monkeypatch.setattr(memory, "available_bytes", lambda: 3 << 20)
    pool.grow(1 << 20)
    assert pool.take(1 << 20) is None
    with pytest.raises(NoRoom, match="only 3145728 are available"):
        pool.window(4 << 20)
    pool.close()


def test_a_window_has_no_limit_and_is_reused_when_released() -> None:
    pool = Pool()
    window = pool.window(1 << 20)
    assert window.memory.nbytes == 1 << 20
    pool.give_back(window)
    assert pool.window(1 << 20) is window
    pool.close()


def test_memory_that_is_not_there_is_no_room() -> None:
    with pytest.raises(NoRoom):
        Pool().window(1 << 60)


def test_closing_leaves_no_descriptor() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    pool = Pool()
    for size in (1, 1 << 20, 1 << 22):
        pool.grow(size)
        pool.window(size)
    assert len(list(Path("/proc/self/fd").iterdir())) > before
    pool.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before

"""Windows are shared in a node, kept for later calls, and not written while a rank may still read them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from in_threads import ThreadTransport, run_ranks

from slurm_share.spmd import buffers, bulk, calls, reductions
from slurm_share.spmd.comm import MAX, SUM, Comm
from slurm_share.spmd.errors import NoRoom

COUNT = 12_500
"""Numbers of 8 bytes: more than goes inline, and a window of the smallest size holds them."""
SLOW_S = 0.01


def run(size: int, program: Callable[[Comm], Any], **where: Any) -> tuple[list[int], list[int]]:
    """Return the numbers of windows that each rank made and released."""
    transports: list[Any] = [None] * size

    def work(transport: ThreadTransport) -> None:
        transports[transport.rank] = transport
        program(Comm(transport))

    run_ranks(size, work, **where)
    made = [len(transport.windows) for transport in transports]
    return made, [sum(window.released for window in transport.windows) for transport in transports]


def no_memory(_transport: Any, size: int) -> Any:
    raise NoRoom(f"no memory for {size} bytes")


@pytest.fixture
def slow_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delay each read of a window after the rank may read it."""
    borrow = calls.Windows.borrow

    def slow(self: Any, call: Any, *args: Any) -> Any:
        lease = borrow(self, call, *args)
        time.sleep(SLOW_S * (call.number % 3))
        return lease

    monkeypatch.setattr(calls.Windows, "borrow", slow)


@pytest.fixture(autouse=True)
def _windows_for_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reductions, "SHARED_IN_ALL_BYTES", 0)
    monkeypatch.setattr(buffers, "SHARED_BYTES", 64 << 10)


@pytest.mark.usefixtures("slow_readers")
@pytest.mark.parametrize("size", [2, 3, 20])
def test_a_root_that_broadcasts_again_and_again_does_not_overtake_its_readers(size: int) -> None:
    def program(comm: Comm) -> None:
        for number in range(12):
            array = np.full(COUNT, number if comm.rank == 0 else -1)
            comm.Bcast(array)
            assert (array == number).all()
            got = comm.bcast(np.full(COUNT, -number) if comm.rank == 0 else None)
            assert (got == -number).all()

    made, released = run(size, program)
    assert made == [2] + [0] * (size - 1)
    assert not any(released)


@pytest.mark.usefixtures("slow_readers")
def test_sums_and_exchanges_again_and_again() -> None:
    def program(comm: Comm) -> None:
        for number in range(8):
            total = np.empty(COUNT)
            comm.Allreduce(np.full(COUNT, comm.rank + number * 1.0), total)
            assert (total == 3 + 3 * number).all()
            room = np.empty((3, COUNT))
            comm.Allgather(np.full(COUNT, comm.rank - number * 1.0), room)
            assert (room == np.arange(3)[:, None] - number).all()
            comm.Reduce(np.full(COUNT, 2.0 + number), total if comm.rank == 1 else None, root=1)
            assert comm.rank != 1 or (total == 6 + 3 * number).all()

    run(3, program)


def test_one_window_is_enough_where_all_meet_in_between() -> None:
    def program(comm: Comm) -> None:
        for _ in range(5):
            comm.Bcast(np.zeros(COUNT), 2)
            comm.barrier()

    assert run(4, program)[0] == [0, 0, 1, 0]


def test_small_bodies_need_no_window() -> None:
    def program(comm: Comm) -> None:
        comm.Bcast(np.zeros(2048))
        comm.bcast(bytes(16_000))
        comm.Allreduce(np.zeros(1024), np.zeros(1024))
        comm.Allgather(np.zeros(256), np.zeros(1024))

    assert run(4, program)[0] == [0] * 4


def test_a_rank_alone_on_its_node_needs_no_window() -> None:
    def program(comm: Comm) -> None:
        comm.Bcast(np.zeros(COUNT))
        comm.Allreduce(np.zeros(COUNT), np.zeros(COUNT))

    assert run(3, program, per_node=1)[0] == [0] * 3


def test_windows_that_are_not_used_are_given_back_where_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "SEGMENT_IDLE", 1 << 20)

    def program(comm: Comm) -> None:
        for size in (10_000, 20_000, 40_000, 70_000, 10_000, 70_000, 40_000):
            array = np.arange(size) if comm.rank == 0 else np.zeros(size, int)
            comm.Bcast(array)
            assert np.array_equal(array, np.arange(size))
            comm.barrier()
        held = sum(memory.nbytes for memory in comm.group.windows._others.values())
        assert held <= 1 << 20

    made, released = run(3, program)
    assert made[0] == 7
    assert released[0] == 6


@pytest.mark.parametrize("memory", [True, False], ids=["memory", "no memory"])
@pytest.mark.parametrize(("size", "per_node"), [(3, None), (20, None), (7, 3)])
def test_arrays_among_other_objects_are_combined(
    size: int, per_node: int | None, memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window can be used only after all ranks have offered equal arrays."""
    if not memory:
        monkeypatch.setattr(ThreadTransport, "window", no_memory)

    def program(comm: Comm) -> None:
        array = np.arange(COUNT)
        for others in (set(), {0}, {1}, {size - 1}, {1, 2}, set(range(size))):
            mine = 1 if comm.rank in others else array
            expected = array * (size - len(others)) + len(others)
            got = comm.allreduce(mine)
            assert np.array_equal(got, expected if len(others) < size else size)
            got = comm.reduce(mine, SUM, size - 1)
            assert (got is None) == (comm.rank != size - 1)
            assert got is None or np.array_equal(got, expected if len(others) < size else size)
        column = comm.allreduce(array.reshape(-1, 1) if comm.rank == 1 else array.reshape(1, -1)[:, :3].copy())
        assert column.shape == (COUNT, 3)
        assert np.array_equal(comm.allreduce(array.reshape(50, -1).T, MAX), array.reshape(50, -1).T)
        assert not np.shares_memory(comm.allreduce(array), array)

    made, _ = run(size, program, per_node=per_node)
    assert bool(made[0]) == memory


def test_where_there_is_no_memory_for_a_window_all_goes_as_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadTransport, "window", no_memory)

    def program(comm: Comm) -> None:
        for root in (0, 3):
            array = np.arange(COUNT) if comm.rank == root else np.zeros(COUNT, int)
            comm.Bcast(array, root)
            assert np.array_equal(comm.bcast(array, root), np.arange(COUNT))
            total = np.empty(COUNT, int)
            comm.Allreduce(array, total)
            assert np.array_equal(total, array * 20)
            room = np.empty((20, COUNT), int)
            comm.Allgather(array, room)
            assert (room == array).all()

    run(20, program)


@pytest.mark.parametrize("size", [6, 20])
def test_sums_have_the_same_bits_with_and_without_memory_for_a_window(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()

    def program(comm: Comm) -> None:
        values = np.random.default_rng(comm.rank).normal(size=COUNT) * 10.0 ** (comm.rank % 7)
        total = np.empty_like(values)
        comm.Allreduce(values, total)
        seen.add(total.tobytes())
        seen.add(comm.allreduce(values).tobytes())

    run(size, program)
    monkeypatch.setattr(ThreadTransport, "window", no_memory)
    run(size, program)
    assert len(seen) == 1


@pytest.mark.parametrize(("size", "per_node"), [(3, None), (18, None), (7, 3), (5, 1), (19, 17)])
def test_bodies_of_many_parts(size: int, per_node: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """More parts than a window has sections, and more pieces than nodes."""
    monkeypatch.setattr(bulk, "CHAIN_BYTES", 1 << 10)
    monkeypatch.setattr(bulk, "SPREAD_SLAB", 2 << 10)
    monkeypatch.setattr(reductions, "_SLAB", 8 << 10)
    monkeypatch.setattr(buffers, "_SLAB", 4 << 10)

    count = 3_000

    def program(comm: Comm) -> None:
        for root in (0, size - 1):
            array = np.arange(count) * (root + 1) if comm.rank == root else np.zeros(count, int)
            comm.Bcast(array, root)
            assert np.array_equal(array, np.arange(count) * (root + 1))
            assert np.array_equal(comm.bcast(array if comm.rank == root else None, root), array)
            total = np.empty(count, int)
            comm.Allreduce(array + comm.rank, total)
            assert np.array_equal(total, array * size + size * (size - 1) // 2)
            room = np.empty((size, count), int)
            comm.Allgather(array + comm.rank, room)
            assert np.array_equal(room, array + np.arange(size)[:, None])

    run(size, program, per_node=per_node)

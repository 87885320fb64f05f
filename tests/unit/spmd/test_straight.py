"""The straight path of small messages agrees with the general one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from at_each_step import Interrupted
from hypothesis import given
from hypothesis import strategies as st
from transports import ranks

from slurm_share.spmd import rings
from slurm_share.spmd.comm import Comm
from slurm_share.spmd.envelope import NOTHING
from slurm_share.spmd.errors import MessageMismatch, UsageError
from slurm_share.spmd.rings import RING_MESSAGES
from slurm_share.spmd.straight import Straight

pytestmark = pytest.mark.skipif(not rings.IS_ORDERED, reason="rings need the order of stores of x86-64")


class Two:
    """Two communicators with rings in both directions, which have seen the tags 0 and "a"."""

    def __init__(self, first: Any, second: Any) -> None:
        self.first, self.second = Comm(first), Comm(second)
        self.all_seen()

    def all_seen(self) -> None:
        for _ in range(RING_MESSAGES + 2):
            for here, dest, there in ((self.first, 1, self.second), (self.second, 0, self.first)):
                for tag in (0, "a"):
                    here.send((1, "x"), dest, tag)
                    assert there.recv(None, 1 - dest, tag) == (1, "x")


@pytest.fixture(scope="module")
def two() -> Iterator[Two]:
    with ranks(2) as ((first, _), (second, _)):
        yield Two(first, second)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=30)
    | st.binary(max_size=99),
    lambda inner: (
        st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.lists(st.tuples(VALUES, st.sampled_from([0, "a", 5, "5"])), min_size=1, max_size=5))
def test_objects_come_as_they_were_sent_in_order(two: Two, messages: list[tuple[Any, Any]]) -> None:
    for value, tag in messages:
        two.first.send(value, 1, tag)
    for value, tag in messages:
        got = (
            two.second.recv(None, 0, tag if tag in (5, "5") else -1) if len(messages) == 1 else two.second.recv(None, 0)
        )
        assert got == value
        assert type(got) is type(value)


@given(
    st.sampled_from(["f8", "i4", "u1", "?", "c16", ">f8", "S3", "M8[s]", [("a", "i4"), ("b", "f8")]]),
    st.sampled_from([(), (0,), (1,), (7,), (3, 4), (2, 3, 2), (5000,)]),
    st.sampled_from(["C", "F"]),
    st.booleans(),
)
def test_arrays_come_as_they_were_sent(
    two: Two, dtype: Any, shape: tuple[int, ...], order: Any, as_object: bool
) -> None:
    count = int(np.prod(shape))
    values = np.arange(count * np.dtype(dtype).itemsize, dtype=np.uint8).view(dtype) if count else np.empty(0, dtype)
    array = np.array(values.reshape(shape), order=order)
    for _ in range(3):
        if as_object:
            two.first.send(array, 1)
            got = two.second.recv(None, 0)
        else:
            got = np.zeros(shape, dtype, order=order)
            two.first.Send(array, 1)
            two.second.Recv(got, 0)
        assert got.dtype == array.dtype
        assert got.shape == array.shape
        assert got.tobytes() == array.tobytes()
        assert got.flags.writeable


def test_an_array_with_gaps_is_refused_and_a_longer_room_is_filled_at_its_start(two: Two) -> None:
    with pytest.raises(ValueError, match="contiguous"):
        two.first.Send(np.arange(10.0)[::2], 1)
    room = np.zeros(5)
    two.first.Send(np.ones(2), 1)
    two.second.Recv(room, 0)
    assert room.tolist() == [1, 1, 0, 0, 0]


def test_a_room_that_does_not_fit_leaves_the_message(two: Two) -> None:
    for _ in range(3):
        two.first.Send(np.ones(2), 1)
        with pytest.raises(MessageMismatch):
            two.second.Recv(np.zeros(2, np.int64), 0)
        with pytest.raises(UsageError, match="read-only"):
            two.second.Recv(np.broadcast_to(np.zeros(2), (2,)), 0)
        room = np.zeros(2)
        two.second.Recv(room, 0)
        assert room.tolist() == [1, 1]


@pytest.mark.parametrize("tag", [-1, True, 1.5, None, "x" * 300, 1 << 63])
def test_what_is_no_tag_is_refused_on_every_path(two: Two, tag: Any) -> None:
    for _ in range(2):
        with pytest.raises(UsageError):
            two.first.send(1, 1, tag)


@pytest.mark.parametrize("rank", [-1, True, 2, 1.0, "1"])
def test_what_is_no_rank_is_refused_on_every_path(two: Two, rank: Any) -> None:
    with pytest.raises(UsageError):
        two.first.send(1, rank)


def test_an_array_that_was_received_is_changed_by_no_later_message(two: Two) -> None:
    two.first.send(np.arange(4), 1)
    got = two.second.recv(None, 0)
    for _ in range(200):
        two.first.send(bytes(5000), 1)
        two.second.recv(None, 0)
    assert got.tolist() == [0, 1, 2, 3]


class _Interruption(Exception):
    pass


@pytest.mark.parametrize("kind", ["object", "array"])
def test_a_signal_at_any_step_of_the_straight_path_loses_no_message(two: Two, kind: str) -> None:
    def handler(*_arguments: object) -> None:
        raise _Interruption

    before = signal.signal(signal.SIGUSR1, handler)
    straight: Straight = two.second._straight
    room, step = np.zeros(3), 0
    try:
        while True:
            step += 1
            two.all_seen()
            two.first.Send(np.full(3, float(step)), 1)
            interrupted = Interrupted(step, lambda: signal.raise_signal(signal.SIGUSR1))
            taken = None
            try:
                with interrupted:
                    if kind == "array":
                        straight.recv_array(room, 0, -1)
                    else:
                        taken = straight.recv(0, -1)
                taken = (taken is not None and taken is not NOTHING) or room[0] == step
            except _Interruption:
                taken = False
            if not taken:
                got = np.zeros(3)
                two.second.Recv(got, 0)
                assert got.tolist() == [step] * 3
            assert two.second.iprobe() is False, interrupted.where
            if not interrupted.where:
                break
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert step > 5


def test_an_interrupt_while_an_object_is_decoded_puts_its_message_back(two: Two) -> None:
    def handler(*_arguments: object) -> None:
        raise _Interruption

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        for step in range(1, 60):
            two.all_seen()
            two.first.send({"step": step}, 1)
            two.first.send("after", 1)
            interrupted = Interrupted(step, lambda: signal.raise_signal(signal.SIGUSR1), "straight.py")
            try:
                with interrupted:
                    got = two.second._straight.recv(0, 0)
            except _Interruption:
                got = two.second.recv(None, 0, 0)
            got = two.second.recv(None, 0, 0) if got is NOTHING else got
            assert got == {"step": step}, interrupted.where
            assert two.second.recv(None, 0, 0) == "after"
            if not interrupted.where:
                break
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not interrupted.where


@pytest.mark.parametrize("length", [3, 3_000, 20_000, 70_000])
def test_objects_of_every_length_come_as_they_were_sent(two: Two, length: int) -> None:
    for value in ("x" * length, [number % 7 for number in range(length)], (1, np.arange(length)), bytes(length)):
        for _ in range(3):
            two.first.send(value, 1)
            got = two.second.recv(None, 0)
            assert np.array_equal(got[-1], value[-1])
            assert len(got) == len(value)

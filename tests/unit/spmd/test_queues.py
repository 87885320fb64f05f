"""Queues of received messages."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.spmd.bodies import Received
from slurm_share.spmd.envelope import Envelope, Tag
from slurm_share.spmd.errors import HAS_FAILED, CollectiveMismatch
from slurm_share.spmd.transport import USER, Queues

CALL = 1 << 32


def message(source: int, tag: Tag, context: int = USER) -> Received:
    return Received(Envelope(source, context, tag, 0, 0), [])


MESSAGES = st.tuples(st.integers(0, 2), st.sampled_from([0, 1, "1", "x"]))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), MESSAGES),
        st.tuples(
            st.sampled_from(["take", "find", "back"]),
            st.tuples(st.none() | st.integers(0, 2), st.none() | st.sampled_from([0, 1, "1", "x"])),
        ),
    ),
    max_size=120,
)


@given(STEPS)
def test_a_call_gets_what_came_first_of_what_fits(steps: list) -> None:
    """Compared with a linear search of a list. A message that is put back keeps its place."""
    queues, plain = Queues(0), []
    for what, (source, tag) in steps:
        if what == "put":
            one = message(source, tag)
            queues.put(one)
            plain.append(one)
            continue
        fitting = [
            one
            for one in plain
            if source in (None, one.envelope.source)
            and (tag is None or (tag == one.envelope.tag and type(tag) is type(one.envelope.tag)))
        ]
        expected = fitting[0] if fitting else None
        if what == "find":
            found = queues.find(source, USER, tag)
            assert found is (expected.envelope if expected else None)
            continue
        assert queues.take(source, USER, tag) is expected
        if expected is not None:
            if what == "back":
                queues.put_back(expected)
            else:
                plain.remove(expected)
        assert list(queues.waiting()) == [one.envelope for one in plain]


@pytest.mark.parametrize("count", [2, 20])
def test_a_probed_message_does_not_overtake_earlier_ones_of_its_source(count: int) -> None:
    """`Comm.probe` takes a message and puts it back, here the last one."""
    queues = Queues(0)
    for number in range(count):
        queues.put(message(1, number))
    for tag in (count - 1, 1, 0, 1):
        queues.put_back(queues.take(1, USER, tag))
    queues.put(message(1, count))
    assert [queues.take(1, USER, None).envelope.tag for _ in range(count + 1)] == list(range(count + 1))


def test_ten_thousand_messages_are_taken_by_tag_from_the_last_to_the_first() -> None:
    queues = Queues(0)
    count = 10_000
    began = time.process_time()
    for number in range(count):
        queues.put(message(number % 7, number))
    for number in reversed(range(count)):
        assert queues.take(None, USER, number) is not None
    assert queues.take(None, USER, None) is None
    assert time.process_time() - began < 5, "each take looks through all messages"


def test_another_tag_in_a_collective_call_is_a_mismatch_and_so_is_a_late_message() -> None:
    queues = Queues(3)
    queues.put(message(1, "bcast", CALL | 1))
    assert queues.take(1, CALL | 1, "bcast") is not None
    for number in range(20):
        queues.put(message(number, "bcast" if number != 15 else "gather", CALL | 2))
    with pytest.raises(CollectiveMismatch, match="rank 3 is in bcast, rank 15 in gather"):
        queues.take(1, CALL | 2, "bcast")
    queues = Queues(3)
    queues.finish(CALL | 4)
    queues.put(message(2, "barrier", CALL | 4))
    with pytest.raises(CollectiveMismatch, match="rank 2 in barrier"):
        queues.take(None, USER, None)


def test_a_collective_call_that_ends_with_messages_left_is_a_mismatch() -> None:
    queues = Queues(0)
    queues.put(message(5, "bcast", CALL | 1))
    with pytest.raises(CollectiveMismatch, match="rank 5 in bcast"):
        queues.finish(CALL | 1)


def test_at_the_end_a_message_of_a_call_that_was_never_made_is_late() -> None:
    queues = Queues(0)
    queues.put(message(5, "bcast", CALL | 1))
    queues.put(message(5, "bcast", CALL | 2))
    assert "collective call 1" in str(queues.late)
    assert queues.take(5, CALL | 1, "bcast") is not None
    assert "collective call 2: rank 0 is in no call, because it has returned from main, rank 5 in bcast" in str(
        queues.late
    )
    queues.call_failed(CALL | 1)
    assert queues.late is None


def test_a_failure_of_a_finished_call_is_told_once_and_in_a_collective_call_at_its_end() -> None:
    queues = Queues(0)
    queues.finish(CALL | 1)
    queues.put(message(5, f"bcast{HAS_FAILED}ValueError: no", CALL | 1))
    queues.put(message(5, "barrier", CALL | 2))
    assert queues.take(5, CALL | 2, "barrier") is not None
    with pytest.raises(CollectiveMismatch, match="collective call 1: bcast has failed on rank 5: ValueError: no"):
        queues.finish(CALL | 2)
    queues.finish(CALL | 3)
    queues.put(message(5, f"bcast{HAS_FAILED}ValueError: no", CALL | 3))
    with pytest.raises(CollectiveMismatch, match="collective call 3: bcast has failed on rank 5: ValueError: no"):
        queues.take(5, USER, None)
    assert queues.take(5, USER, None) is None

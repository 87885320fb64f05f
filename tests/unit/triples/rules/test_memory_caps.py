"""The cap of the next attempt after out of memory, attempts that fit together, and the advice for the next run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.triples.records import Ended
from slurm_share.triples.rules.memory_caps import (
    Allowance,
    Budget,
    Memory,
    advice,
    after_failure,
    allowance,
    fits,
    from_before,
    had_most,
    is_too_small,
    seen,
)

GPU = Budget(3323, 79769, 24, is_whole=True)
"""24 slots of 80 GiB: [1,48] on two of them."""


@pytest.mark.parametrize(
    ("budget", "memory", "expected"),
    [
        (GPU, Memory(), Allowance(3323, 3323)),
        (GPU, Memory(1, 3323), Allowance(6646, 6646)),
        (GPU, Memory(1, 3323, 6000), Allowance(6646, 6646)),
        (GPU, Memory(1, 3323, 9000), Allowance(9900, 9900)),
        (GPU, Memory(1), Allowance(6646, 6646)),
        (GPU, Memory(2, 6646), Allowance(None, 79769, is_alone=True)),
        (GPU, Memory(1, 3323, 75_000), Allowance(None, 79769, is_alone=True)),
        (Budget(39884, 79769, 2, is_whole=True), Memory(1, 39884), Allowance(None, 79769, is_alone=True)),
        # Two of a GPU's four slots: what these have together is all that can be had.
        (Budget(19942, 39884, 2, is_whole=False), Memory(1, 19942), Allowance(39884, 39884, is_alone=True)),
        (Budget(19942, 39884, 2, is_whole=False), Memory(2, 39884), Allowance(39884, 39884, is_alone=True)),
    ],
)
def test_first_a_larger_cap_then_the_gpu_alone(budget, memory, expected):
    assert allowance(budget, memory) == expected


def test_nothing_starts_for_which_the_sum_of_the_caps_has_no_room():
    larger = allowance(GPU, Memory(1, 3323))
    assert fits(GPU, [6646] * 11, larger)
    assert not fits(GPU, [6646] * 12, larger)
    assert not fits(GPU, [6646] * 12, allowance(GPU, Memory()))
    assert fits(GPU, [3323] * 22, larger)
    assert not fits(GPU, [3323] * 23, larger)


def test_alone_is_alone_and_an_empty_gpu_takes_anything():
    alone = allowance(GPU, Memory(2, 6646))
    assert fits(GPU, [], alone)
    assert not fits(GPU, [1], alone)
    assert not fits(GPU, [alone.booked_mib], allowance(GPU, Memory()))
    assert fits(Budget(50_000, 40_000, 2, is_whole=True), [], Allowance(50_000, 50_000))


@given(
    cap=st.integers(1, 100_000),
    slots=st.integers(1, 60),
    need=st.none() | st.integers(1, 300_000),
    is_whole=st.booleans(),
)
def test_each_attempt_has_more_than_the_one_before_until_there_is_no_more(cap, slots, need, is_whole):
    budget = Budget(cap, cap * slots, slots, is_whole)
    memory = Memory()
    before = 0
    for failures in range(4):
        given_now = allowance(budget, memory)
        size = budget.total_mib if given_now.cap_mib is None else given_now.cap_mib
        assert size > before or given_now.is_alone
        assert cap <= given_now.booked_mib <= budget.total_mib or failures == 0
        assert not (failures >= 2 and not given_now.is_alone)
        before = size
        memory = after_failure(memory, given_now.cap_mib, need, None)


def test_a_task_that_was_alone_once_has_been_alone():
    known = after_failure(Memory(), 71_680, None, None)
    assert not known.was_alone
    known = after_failure(known, None, None, None, is_alone=True)
    assert known == Memory(2, 71_680, None, was_alone=True)
    assert after_failure(known, 79_769, None, None).was_alone


def test_what_is_known_of_a_task_grows():
    one = after_failure(Memory(), 3323, 3000, 2700)
    assert one == Memory(1, 3323, 5700)
    assert after_failure(one, 6646, 100, None) == Memory(2, 6646, 5700)
    assert after_failure(one, None, None, None) == Memory(2, 3323, 5700)
    assert after_failure(Memory(), 3323, None, None) == Memory(1, 3323, None)


def test_an_earlier_job_tells_what_it_died_under():
    last = {
        task: Ended(task=task, rank=0, attempt=1, outcome=outcome, node="n1", job="7", started=1.0, seconds=1.0, **more)
        for task, outcome, more in [
            (0, "done", {}),
            (1, "gpu memory", {"gpu_cap_mib": 3323, "peak_gpu_mib": 3000}),
            (2, "failed", {}),
            (3, "gpu memory", {}),
        ]
    }
    assert from_before(last) == {1: Memory(1, 3323, 3000), 3: Memory(1)}


@pytest.mark.parametrize(
    ("failures", "done", "expected"), [(2, 0, False), (3, 0, True), (3, 3, False), (40, 8, True), (5, 1000, False)]
)
def test_a_cap_is_too_small_when_more_died_of_it_than_were_done(failures, done, expected):
    assert is_too_small(failures, done) is expected


def test_the_reason_names_the_cap_and_the_need():
    assert seen(3323, 3000, 2700, is_alone=False) == (
        "its memory cap was 3323 MiB, it used up to 3000 MiB, it asked for 2700 MiB more"
    )
    assert seen(3323, None, 6000, is_alone=False) == "its memory cap was 3323 MiB, it asked for 6000 MiB"
    assert seen(None, None, None, is_alone=True) == "it was alone on its GPU, without a cap"
    assert seen(None, 10, None, is_alone=False) == "it had no memory cap, it used up to 10 MiB"


RETRIES = "--retries 2, which runs them with a larger cap and then alone on a GPU"
ALONE = "alone on a GPU, where tasks can have 79769 MiB; make tasks smaller (for example the batch size)"


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        (
            [Memory(1, 3323, 6000)] * 48,
            "48 tasks ran out of GPU memory under a cap of 3323 MiB and need at least 6000 MiB; write "
            f"--share-gpu=mem=6G and at most 24 processes on a node, or {RETRIES}",
        ),
        (
            [Memory(1, 3323)],
            "1 task ran out of GPU memory under a cap of 3323 MiB; write fewer processes on a node, "
            f"--share-gpu=mem=SIZE with more than 3323M, or {RETRIES}",
        ),
        (
            [Memory(1, 3323, 90_000)],
            "1 task ran out of GPU memory under a cap of 3323 MiB and needs at least 90000 MiB, more than the 79769 "
            "MiB that a GPU of this node has for tasks",
        ),
        (
            [Memory(3, 6646, was_alone=True)],
            f"1 task ran out of GPU memory under a cap of 6646 MiB, and {ALONE}",
        ),
        # Tasks that began alone, since those before them had shown that the caps are too small
        ([Memory(1, None, 90_000, was_alone=True)] * 2, f"2 tasks ran out of GPU memory {ALONE}"),
        (
            [Memory(1, 1_048_576), Memory(1, None, was_alone=True), Memory(2, 3323, was_alone=True)],
            "1 task ran out of GPU memory under a cap of 1048576 MiB; write fewer processes on a node or "
            f"{RETRIES}; 2 more ran out of GPU memory {ALONE}",
        ),
        # --share-gpu=mem=1T: there is no larger cap
        (
            [Memory(1, 1_048_576)],
            "1 task ran out of GPU memory under a cap of 1048576 MiB; write fewer processes on a node or " + RETRIES,
        ),
    ],
)
def test_the_way_out_is_a_line_to_write(lost, expected):
    assert advice(lost, [GPU, GPU], 0) == expected


def test_where_all_fit_with_the_right_cap_the_line_is_that_cap():
    budget = Budget(500, 79769, 8, is_whole=True)
    assert "; write --share-gpu=mem=900M, or --retries 2" in advice([Memory(1, 500, 900)], [budget], 0)


PART = Budget(19942, 19942, 1, is_whole=False)
"""One of the four slots of a GPU, which is all that the job holds."""


@pytest.mark.parametrize(
    ("budget", "memory", "options", "words"),
    [
        # --share-gpu=2 and one process on each GPU: fewer processes would change nothing.
        (Budget(39884, 79769, 1, is_whole=True), Memory(1, 39884), {"is_number_fixed": True},
         f"write a smaller number in --share-gpu=N, --share-gpu=mem=SIZE with more than 39884M, or {RETRIES}"),
        (Budget(39884, 79769, 1, is_whole=True), Memory(1, 39884, 60_000), {"is_number_fixed": True},
         f"write --share-gpu=mem=59G, or {RETRIES}"),
        # After two retries a task has had all; one that had not (--max-failures) needs no third.
        (GPU, Memory(1, 3323), {"retries": 2},
         "write fewer processes on a node or --share-gpu=mem=SIZE with more than 3323M"),
        (PART, Memory(1, 19942), {"is_number_fixed": True},
         "all that the job's part of a GPU gives; write a smaller number in --share-gpu=N, or make tasks smaller"),
        (PART, Memory(1, 19942), {},
         "all that the job's part of a GPU gives; write fewer processes on a node, or make tasks smaller"),
    ],
)  # fmt: skip
def test_no_advice_is_given_that_cannot_help(budget, memory, options, words):
    said = advice([memory], [budget], **{"retries": 0, **options})
    assert said.endswith(words), said


@pytest.mark.parametrize(
    ("budgets", "allowed", "expected"),
    [
        ([GPU], None, False),
        ([GPU], Allowance(6646, 6646), False),
        ([GPU], Allowance(None, 79769, is_alone=True), True),
        ([PART], None, True),
        ([PART, GPU], None, False),  # the other GPU has more
        ([Budget(1_048_576, 79769, 2, is_whole=True)], None, False),  # its neighbours may have had its memory
        ([Budget(1_048_576, 79769, 2, is_whole=True)], Allowance(None, 79769, is_alone=True), True),
    ],
)
def test_a_retry_cannot_help_after_an_attempt_that_had_all(budgets, allowed, expected):
    assert had_most(budgets, budgets[0], allowed) is expected

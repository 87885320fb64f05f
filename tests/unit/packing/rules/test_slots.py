"""The placement policy `slots`: caps, attempts that fit together, retries, and room on GPUs without caps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.node.records import MemoryUse
from slurm_share.packing.records import EndFacts, GpuFacts, Tries
from slurm_share.packing.rules.slots import (
    Allowance,
    Budget,
    RetryNeed,
    SlotPolicy,
    allowance,
    fits,
    has_room,
    need_from_before,
    need_mib,
)

GPU = Budget(3323, 79769, 24, is_whole=True)
"""24 slots of 80 GiB: [1,48] on two of them."""
HALF = Budget(39884, 79769, 2, is_whole=True)
PART = Budget(19942, 39884, 2, is_whole=False)
"""Two of a GPU's four slots: what these have together is all that can be had."""
ONE = Budget(19942, 19942, 1, is_whole=False)
OVER = Budget(1_048_576, 79769, 2, is_whole=True)


def gpus(count):
    return [GpuFacts(uuid=f"GPU-{place}", index=place, model="A100", total_mib=81920) for place in range(count)]


def policy(*budgets, retries=9):
    return SlotPolicy(dict(enumerate(budgets)), gpus(len(budgets)), retries, has_known=False)


def after_memory(made, need, gpu=0, peak=None, wanted=None, kind="gpu memory"):
    """Return the need after an attempt with `need` ran out of memory, and whether it is retried."""
    allowed = made.larger_allowance(gpu, need)
    coming = made.recover(kind, need, made.had(gpu, need, allowed, peak, wanted))
    made.learn(gpu, allowed, coming.floor_mib)
    return RetryNeed(coming.tries, coming.floor_mib, coming.wants_alone or allowed is not None), coming.is_retried


@pytest.mark.parametrize(
    ("budget", "wanted", "expected"),
    [
        (GPU, None, Allowance(6646, 6646)),
        (GPU, 6000, Allowance(6646, 6646)),
        (GPU, 9000, Allowance(9900, 9900)),
        (GPU, 75_000, Allowance(None, 79769, is_alone=True)),
        (HALF, None, Allowance(None, 79769, is_alone=True)),
        (PART, None, Allowance(39884, 39884, is_alone=True)),
    ],
)
def test_first_a_larger_cap_then_the_gpu_alone(budget, wanted, expected):
    made = policy(budget)
    assert allowance(budget, RetryNeed()) == Allowance(budget.cap_mib, budget.cap_mib)
    need, is_retried = after_memory(made, RetryNeed(), wanted=wanted)
    assert is_retried
    assert allowance(budget, need) == expected
    alone, _ = after_memory(made, need, wanted=wanted)
    assert allowance(budget, alone).is_alone


def test_every_failure_costs_a_retry():
    made = policy(GPU, retries=3)
    need = RetryNeed()
    for kind in ("device", "neighbour's fault", "failed"):
        need, is_retried = after_memory(made, need, kind=kind)
        assert is_retried
        assert (need.failures, need.floor_mib) == (0, 0)
    assert not after_memory(made, need)[1]


@pytest.mark.parametrize(
    ("budgets", "need", "expected"),
    [
        ([GPU], RetryNeed(), True),
        ([GPU], RetryNeed(Tries(own_memory=1), 6646), True),
        ([GPU], RetryNeed(Tries(own_memory=2), 6646, wants_alone=True), False),
        ([ONE], RetryNeed(), False),
        ([ONE, GPU], RetryNeed(), True),  # the other GPU has more
        ([OVER], RetryNeed(), True),  # its neighbours may have had its memory
        ([OVER], RetryNeed(Tries(own_memory=2), 1, wants_alone=True), False),
    ],
)
def test_a_retry_cannot_help_after_an_attempt_that_had_all(budgets, need, expected):
    made = policy(*budgets)
    made.has_larger_caps = bool(need.failures)
    assert after_memory(made, need)[1] is expected


def test_nothing_starts_for_which_the_sum_of_the_caps_has_no_room():
    larger = Allowance(6646, 6646)
    assert fits(GPU, [6646] * 11, larger)
    assert not fits(GPU, [6646] * 12, larger)
    assert not fits(GPU, [6646] * 12, allowance(GPU, RetryNeed()))
    assert fits(GPU, [3323] * 22, larger)
    assert not fits(GPU, [3323] * 23, larger)


def test_alone_is_alone_and_an_empty_gpu_takes_anything():
    alone = allowance(GPU, RetryNeed(Tries(own_memory=2), 6646, wants_alone=True))
    assert fits(GPU, [], alone)
    assert not fits(GPU, [1], alone)
    assert not fits(GPU, [alone.booked_mib], allowance(GPU, RetryNeed()))
    assert fits(Budget(50_000, 40_000, 2, is_whole=True), [], Allowance(50_000, 50_000))


@given(
    cap=st.integers(1, 100_000),
    slots=st.integers(1, 60),
    wanted=st.none() | st.integers(1, 300_000),
    is_whole=st.booleans(),
)
def test_each_attempt_has_more_than_the_one_before_until_there_is_no_more(cap, slots, wanted, is_whole):
    budget = Budget(cap, cap * slots, slots, is_whole)
    made, need, before = policy(budget), RetryNeed(), 0
    for failures in range(4):
        now = allowance(budget, need)
        size = budget.total_mib if now.cap_mib is None else now.cap_mib
        assert size > before or now.is_alone
        assert cap <= now.booked_mib <= budget.total_mib
        assert not (failures >= 2 and not now.is_alone)
        before = size
        need, is_retried = after_memory(made, need, wanted=wanted)
        if not is_retried:
            assert size == budget.total_mib
            break


def test_without_caps_the_second_attempt_waits_for_memory_and_the_third_has_the_gpu_alone():
    made = SlotPolicy({}, gpus(2), 9, has_known=False)
    need, is_retried = after_memory(made, RetryNeed(), peak=2400)
    assert (is_retried, need.wants_alone, need.known_mib) == (True, False, 2400)
    need, is_retried = after_memory(made, need, peak=2400)
    assert (is_retried, need.wants_alone) == (True, True)
    assert not made.may_try_without_cap(0, need, 0)
    made.reserve(need.failures, [0, None])
    assert made.reserved == 1
    assert made.may_try_without_cap(1, need, 0)
    assert not made.may_try_without_cap(1, need, 1)
    assert not made.may_try_without_cap(1, RetryNeed(), 0)
    assert not after_memory(made, need)[1]


def test_a_failed_gpu_is_not_kept_for_anybody():
    made = SlotPolicy({}, gpus(2), 9, has_known=False)
    made.reserve(2, [])
    assert made.reserved == 0
    made.fail(0, "GPU is lost")
    made.reserve(2, [])
    assert made.reserved == 1


def test_a_log_is_believed_as_long_as_another_gpu_is_left():
    made = SlotPolicy({}, gpus(3), 9, has_known=False)

    def ends(task, place, **more):
        text = b"CUDA error: uncorrectable ECC error encountered"
        return made.judge(EndFacts(task=task, now_s=0.0, code=1, log_tail=text, **more), place, None)[0]

    assert (ends(0, 0), made.unusable) == ("device", {0})
    assert (ends(0, 1), made.unusable) == ("failed", set())  # the same task says it of every GPU
    assert (ends(0, 0), ends(0, 1), made.unusable) == ("failed", "failed", set())
    assert (ends(1, 0), ends(2, 1), made.unusable) == ("device", "device", {0, 1})
    assert (ends(3, 2), made.unusable) == ("failed", {0, 1})
    assert (ends(4, 2, is_device_lost=True), made.unusable) == ("device", {0, 1, 2})
    assert ends(5, None) == "failed"


def test_a_need_that_nothing_has_shown_is_not_known():
    made = SlotPolicy({}, gpus(1), 9, has_known=False)
    need, _ = after_memory(made, RetryNeed())
    assert need.known_mib is None


def test_an_earlier_job_tells_what_a_task_ran_out_of():
    assert allowance(GPU, need_from_before(3323, 3000)) == Allowance(6646, 6646)
    assert allowance(GPU, need_from_before(None, None)) == Allowance(6646, 6646)
    assert allowance(GPU, need_from_before(5000, None)) == Allowance(10_000, 10_000)


@pytest.mark.parametrize(
    ("failures", "done", "expected"), [(2, 0, False), (3, 0, True), (3, 3, False), (40, 8, True), (5, 1000, False)]
)
def test_a_cap_is_too_small_when_more_died_of_it_than_were_done(failures, done, expected):
    made = policy(GPU)
    made.done_under_cap = done
    told = [made.learn(0, None, 6646) for _ in range(failures)]
    assert made.is_too_small is expected
    assert any(told) is (failures >= 3 and done < failures)
    assert made.larger_allowance(0, RetryNeed()) == (Allowance(6646, 6646) if expected else None)


def test_the_need_is_the_largest_that_was_seen():
    assert need_mib(100, [200, 2400]) == 2400
    assert need_mib(None, [0, 0]) is None
    assert need_mib(None, []) is None


@pytest.mark.parametrize(
    ("need", "room", "running", "expected"),
    [
        # An empty GPU has room for anything.
        (None, None, 0, True),
        (99_999, MemoryUse(32_768, 32_000), 0, True),
        (2400, MemoryUse(32_768, 29_000, ()), 0, True),
        # Without figures, one waits for an empty GPU.
        (None, MemoryUse(32_768, 0), 1, False),
        (2400, None, 1, False),
        # 32,768 less 2 % is 32,112; 13 x 2,400 = 31,200.
        (2400, MemoryUse(32_768, 12 * 2400, (2400,) * 12), 12, True),
        (2400, MemoryUse(32_768, 13 * 2400, (2400,) * 13), 13, False),
        # A task that has just begun counts with what it will want.
        (2400, MemoryUse(32_768, 0, (0,) * 13), 13, False),
        (2400, MemoryUse(32_768, 0, ()), 13, False),
        # Others on the GPU count with what they have.
        (2400, MemoryUse(32_768, 29_000 + 1000, (1000,)), 1, False),
    ],
)
def test_room_on_a_gpu_of_32_gib(need, room, running, expected):
    assert has_room(need, room, running) is expected

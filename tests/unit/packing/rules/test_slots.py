"""The placement policy `slots`: caps, attempts that fit together, retries, and room on GPUs without caps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.node.records import MemoryUse
from slurm_share.packing.attempt import Attempt
from slurm_share.packing.records import EndFacts, GpuFacts, TaskAsk, Tries
from slurm_share.packing.rules.board import Board
from slurm_share.packing.rules.slots import (
    Budget,
    fits,
    floor_before,
    has_room,
    known_mib,
    need_mib,
    slot_settings,
    start_with_cap,
)

GPU = Budget(3323, 79769, 24, is_whole=True)
"""24 slots of 80 GiB: [1,48] on two of them."""
HALF = Budget(39884, 79769, 2, is_whole=True)
PART = Budget(19942, 39884, 2, is_whole=False)
"""Two of a GPU's four slots: what these have together is all that can be had."""
ONE = Budget(19942, 19942, 1, is_whole=False)
OVER = Budget(1_048_576, 79769, 2, is_whole=True)


OOM = b"CUDA out of memory"


def gpus(count):
    return [GpuFacts(uuid=f"GPU-{place}", index=place, model="A100", total_mib=81920) for place in range(count)]


def board(*budgets, count=None, retries=9):
    count = len(budgets) if count is None else count
    its = {f"GPU-{place}": budget for place, budget in enumerate(budgets)}
    return Board(gpus(count), 99, slot_settings(retries), None, budgets=its)


def attempt(failures=0, floor_mib=0, *, wants_alone=False):
    return Attempt(ask=TaskAsk(task=7), tries=Tries(own_memory=failures), floor_mib=floor_mib, wants_alone=wants_alone)


def begin(made, task=0, gpu=0):
    """Start a first attempt."""
    assert made.may_start_new((f"GPU-{gpu}",))
    return made.start_new(TaskAsk(task=task), (f"GPU-{gpu}",), 0.0)


def fail(made, run, peak=None, tail=OOM, **more):
    """End an attempt, by default out of memory, after it had a peak."""
    if peak is not None:
        run.see({run.gpus[0]: peak}, 1, 0.5)
    return made.ended(EndFacts(task=run.task, now_s=1.0, code=1, log_tail=tail, **more))


def start(made, gpu=0):
    """Start a waiting attempt; None: none may start."""
    made.slots.reserve()
    return made.start_waiting((f"GPU-{gpu}",), 2.0)


@pytest.mark.parametrize(
    ("budget", "peak", "expected"),
    [
        (GPU, None, (6646, 6646, False)),
        (GPU, 6000, (6646, 6646, False)),
        (GPU, 9000, (9900, 9900, False)),
        (GPU, 75_000, (None, 79769, True)),
        (HALF, None, (None, 79769, True)),
        (PART, None, (39884, 39884, True)),
    ],
)
def test_first_a_larger_cap_then_the_gpu_alone(budget, peak, expected):
    made = board(budget)
    run = begin(made)
    assert (run.cap_mib, run.reserved_mib, run.is_alone) == (budget.cap_mib, budget.cap_mib, False)
    assert fail(made, run, peak).is_retried
    run = start(made)
    assert (run.cap_mib, run.reserved_mib, run.is_alone) == expected
    assert run.attempt == 2
    if fail(made, run, peak).is_retried:
        assert start(made).is_alone


def test_every_failure_costs_a_retry():
    made = board(GPU, retries=3)
    run = begin(made)
    for ecc in ("CUDA error: uncorrectable ECC error encountered", "MPS client has been terminated", "KeyError: 1"):
        assert fail(made, run, tail=ecc.encode()).is_retried
        run = start(made)
        assert (run.tries.own_memory, run.floor_mib) == (0, 0)
    assert not fail(made, run).is_retried


@pytest.mark.parametrize(
    ("budgets", "failures", "expected"),
    [
        ([GPU], 0, True),
        ([GPU], 1, True),
        ([GPU], 2, False),
        ([ONE], 0, False),
        ([ONE, GPU], 0, True),  # the other GPU has more
        ([OVER], 0, True),  # its neighbours may have had its memory
        ([OVER], 1, False),
    ],
)
def test_a_retry_cannot_help_after_an_attempt_that_had_all(budgets, failures, expected):
    made = board(*budgets)
    run = begin(made)
    for _ in range(failures):
        assert fail(made, run).is_retried
        run = start(made)
    assert fail(made, run).is_retried is expected


def test_nothing_starts_for_which_the_sum_of_the_caps_has_no_room():
    first, larger = (start_with_cap(attempt(failures), "GPU-0", GPU) for failures in (0, 1))
    assert larger.reserve_mib == 6646
    assert fits(GPU, [6646] * 11, larger)
    assert not fits(GPU, [6646] * 12, larger)
    assert not fits(GPU, [6646] * 12, first)
    assert fits(GPU, [3323] * 22, larger)
    assert not fits(GPU, [3323] * 23, larger)


def test_alone_is_alone_and_an_empty_gpu_takes_anything():
    alone = start_with_cap(attempt(2, 6646, wants_alone=True), "GPU-0", GPU)
    assert fits(GPU, [], alone)
    assert not fits(GPU, [1], alone)
    assert not fits(GPU, [alone.reserve_mib], start_with_cap(attempt(), "GPU-0", GPU))


def test_retries_come_in_the_order_of_their_first_attempts():
    made = board(GPU)
    runs = [begin(made, task) for task in range(3)]
    for run in reversed(runs):
        fail(made, run, tail=b"KeyError: 1")
    assert [start(made).task for _ in runs] == [0, 1, 2]


def test_a_first_attempt_that_could_not_start_is_put_back_in_its_place():
    made = board(GPU)
    first, second = begin(made, 0), begin(made, 1)
    fail(made, second, tail=b"KeyError: 1")
    made.put_back(first.task, 1.0)
    assert [(run.task, run.attempt) for run in (start(made), start(made))] == [(0, 1), (1, 2)]
    assert start(made) is None


def test_a_neighbour_of_a_retry_waits_until_the_caps_fit():
    made = board(PART)
    fail(made, begin(made))
    alone = start(made)
    assert not made.may_start_new(("GPU-0",))
    made.done(alone, 3.0)
    assert made.may_start_new(("GPU-0",))


@given(
    cap=st.integers(1, 100_000),
    slots=st.integers(1, 60),
    wanted=st.none() | st.integers(1, 300_000),
    is_whole=st.booleans(),
)
def test_each_attempt_has_more_than_the_one_before_until_there_is_no_more(cap, slots, wanted, is_whole):
    budget = Budget(cap, cap * slots, slots, is_whole)
    made, before = board(budget), 0
    run = begin(made)
    for failures in range(4):
        size = budget.total_mib if run.cap_mib is None else run.cap_mib
        assert size > before or run.is_alone
        assert cap <= run.reserved_mib <= budget.total_mib
        assert not (failures >= 2 and not run.is_alone)
        before = size
        if not fail(made, run, wanted).is_retried:
            assert size == budget.total_mib
            break
        run = start(made)


def test_without_caps_the_second_attempt_waits_for_memory_and_the_third_has_the_gpu_alone():
    made = board(count=2)
    other = begin(made, 1, 0)
    assert fail(made, begin(made, 0, 0), 2400).is_retried
    assert start(made, 0) is None  # the use of the GPU is not known, and another task runs there
    run = start(made, 1)
    assert (run.is_alone, known_mib(run)) == (False, 2640)
    assert fail(made, run, 2400).is_retried
    assert start(made, 0) is None
    assert made.slots.reserved == "GPU-1"
    assert not made.may_start_new(("GPU-1",))
    run = start(made, 1)
    assert run.is_alone
    assert not fail(made, run, 2400).is_retried
    made.done(other, 3.0)


def test_a_failed_gpu_is_not_kept_for_anybody():
    made = board(count=2)
    made.add(TaskAsk(task=0), 0.0, tries=Tries(own_memory=2))
    made.slots.reserve()
    assert made.slots.reserved == "GPU-0"
    made.out_of_service("GPU-0", "GPU is lost", 0.0)
    made.slots.reserve()
    assert made.slots.reserved == "GPU-1"


def test_a_log_is_believed_as_long_as_another_gpu_is_left():
    made = board(count=3, retries=0)

    def ends(task, place, **more):
        gpus = () if place is None else (f"GPU-{place}",)
        run = made.start_new(TaskAsk(task=task), gpus, 0.0)
        return fail(made, run, tail=b"CUDA error: uncorrectable ECC error encountered", **more).kind

    def out():
        return {made.facts[uuid].index for uuid in made.unusable}

    assert (ends(0, 0), out()) == ("device", {0})
    assert (ends(0, 1), out()) == ("failed", set())  # the same task says it of every GPU
    assert (ends(0, 0), ends(0, 1), out()) == ("failed", "failed", set())
    assert (ends(1, 0), ends(2, 1), out()) == ("device", "device", {0, 1})
    assert (ends(3, 2), out()) == ("failed", {0, 1})
    assert (ends(4, 2, is_device_lost=True), out()) == ("device", {0, 1, 2})
    assert ends(5, None) == "failed"


def test_a_need_that_nothing_has_shown_is_not_known():
    made = board(count=1)
    fail(made, begin(made))
    assert known_mib(start(made)) is None


def test_an_earlier_job_tells_what_a_task_ran_out_of():
    for cap_mib, peak_mib, expected in ((3323, 3000, 6646), (None, None, 6646), (5000, None, 10_000)):
        floor_mib = floor_before(cap_mib, peak_mib)
        assert start_with_cap(attempt(1, floor_mib), "GPU-0", GPU).cap_mib == expected
    made = board(GPU)
    made.add_after_memory(TaskAsk(task=3), 0.0, 3323, 3000)
    run = start(made)
    assert (run.task, run.attempt, run.cap_mib) == (3, 1, 6646)


@pytest.mark.parametrize(
    ("failures", "done", "expected"), [(2, 0, False), (3, 0, True), (3, 3, False), (40, 8, True), (5, 1000, False)]
)
def test_a_cap_is_too_small_when_more_died_of_it_than_were_done(failures, done, expected):
    made = board(GPU, retries=0)
    made.slots.done_under_cap = done
    for task in range(failures):
        run = Attempt(ask=TaskAsk(task=task), gpus=("GPU-0",), cap_mib=3323, reserved_mib=3323)
        fail(made, made._enter(run))
    assert made.slots.is_too_small is expected
    first = made.slots.slot_start("GPU-0")
    assert (None if first is None else first.cap_mib) == (6646 if expected else None)


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

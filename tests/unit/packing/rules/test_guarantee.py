"""The guaranteed part of a task's memory: its booking, its cap, and what follows if the driver takes the rest back."""

import random

import pytest
from packing_values import board, facts, key

from slurm_share.packing.attempt import Attempt
from slurm_share.packing.history_records import TaskRun
from slurm_share.packing.records import EndFacts, Estimate, GpuFacts, PackSettings, TaskAsk, Tries
from slurm_share.packing.rules import guarantee, recover, reservation
from slurm_share.packing.rules.board import Board
from slurm_share.packing.rules.estimate.estimator import Estimator
from slurm_share.packing.rules.slots import Budget, slot_settings, start_with_cap

GIB = 1024
LEAST, MOST = 8 * GIB, 20 * GIB
TERMINATED = b"CUDA error: CUDA_ERROR_MPS_CLIENT_TERMINATED: MPS client has been terminated\n"
OUT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {}.00 MiB.\n"
UNKNOWN = Estimate(point_mib=None, safe_mib=None, source="unknown")


def ask(task=0, least=LEAST, most=MOST, **fields):
    return TaskAsk(task=task, gpu_mem_least_mib=least, gpu_mem_mib=most, **fields)


def limited(gpus=1, total=81920, **settings):
    """Return a board of GPUs whose driver limits the memory of each task."""
    on = [facts(index, total, reserve=0, is_mps=True, has_limits=True) for index in range(gpus)]
    return Board(on, 64, PackSettings(**settings), Estimator())


def begun(one, *asks, now=0.0):
    for what in asks:
        one.add(what, now)
    one.decide(now)
    return one


def see(one, task, mib, now=1.0):
    run = one.running[task]
    one.sample_task(task, {run.gpus[0]: mib}, 1, now)


def end(one, task, log, now=2.0, **fields):
    return one.ended(EndFacts(task=task, now_s=now, code=1, log_tail=log, **fields))


# ---- Booking and cap ----


def test_the_guaranteed_part_is_booked_and_the_most_is_the_cap():
    run = begun(limited(), ask()).running[0]
    assert (run.reserved_mib, run.cap_mib, run.least_mib) == (LEAST, MOST, LEAST)


@pytest.mark.parametrize("guard", ["soft", "hard"])
def test_without_limits_of_the_driver_nothing_is_held_and_booking_and_cap_stay(guard):
    on = [facts(0, 81920, reserve=0, is_mps=True)]
    run = begun(Board(on, 64, PackSettings(guard=guard), Estimator()), ask()).running[0]
    assert (run.reserved_mib, run.cap_mib, run.least_mib) == (LEAST, MOST, None)


def test_ten_tasks_share_a_gpu_that_has_room_for_four_of_their_mosts():
    one = begun(limited(), *(ask(task) for task in range(12)))
    assert sorted(one.running) == list(range(10))  # 10 x 8 GiB on 80 GiB


def test_a_task_whose_guaranteed_part_fits_no_gpu_is_given_up_and_one_with_a_large_most_is_not():
    one = begun(limited(), ask(0, least=90 * GIB, most=91 * GIB), ask(1, most=200 * GIB))
    assert sorted(one.running) == [1]
    assert 0 not in one.waiting


@pytest.mark.parametrize(
    ("known", "expected"), [(2 * GIB, LEAST), (12 * GIB, 12 * GIB), (30 * GIB, MOST)], ids=["less", "between", "more"]
)
def test_what_the_history_knows_counts_between_the_two_numbers(known, expected):
    found = guarantee.within(Estimate(point_mib=known, safe_mib=known, source="exact", text="one run"), ask())
    assert (found.safe_mib, found.source) == (expected, "exact")
    assert found.text == "one run, within --gpu-mem of 8 to 20 GiB"


@pytest.mark.parametrize(("seen", "expected"), [(0, LEAST), (4 * GIB, LEAST), (10 * GIB, 10508), (40 * GIB, MOST)])
def test_without_runs_that_were_done_it_is_what_ended_runs_had_or_the_first_number(seen, expected):
    found = guarantee.within(Estimate(point_mib=None, safe_mib=None, source="unknown", floor_mib=seen), ask())
    assert (found.point_mib, found.safe_mib, found.source) == (expected, expected, "user")


def test_the_estimator_learns_the_rest_from_runs_of_the_command():
    runs = [
        TaskRun(when=1.0, exact="e", family="f", gpu_model="A100", kind="done", seconds=60.0, peak_mib=12 * GIB)
        for _ in range(4)
    ]
    found = Estimator(runs).estimate(ask(key=key("e", "f")), "A100", 81920)
    assert found.source == "exact"
    assert 12 * GIB <= (found.safe_mib or 0) < MOST
    alone = Estimator(runs).estimate(ask(key=key("e", "f"), most=9 * GIB), "A100", 81920)
    assert alone.safe_mib == 9 * GIB


def test_a_booking_follows_the_memory_up_to_the_most_and_never_below_the_guaranteed_part():
    one = begun(limited(), ask())
    for mib, expected in ((2 * GIB, LEAST), (12 * GIB, 12 * GIB), (MOST, MOST)):
        see(one, 0, mib)
        one.decide(1.0)
        run = one.running[0]
        assert expected <= run.reserved_mib <= max(MOST, expected)
    assert run.least_mib == LEAST, "what the driver holds was fixed at the start"


def test_a_family_that_needs_little_shrinks_the_booking_to_the_guaranteed_part_only():
    run = Attempt(ask=ask(), reserved_mib=12 * GIB, peak_mib=GIB)
    assert guarantee.due(2 * GIB, run) == LEAST
    assert guarantee.due(30 * GIB, run) == MOST
    run.is_alone = True
    assert guarantee.due(30 * GIB, run) == 30 * GIB
    assert guarantee.due(GIB, Attempt(ask=TaskAsk(task=0))) == GIB


def test_two_processes_divide_the_most():
    known = Estimate(point_mib=LEAST, safe_mib=LEAST, source="user", processes=2)
    cap = reservation.cap_at_start(known, LEAST, 0, guard="soft", is_mps=True, is_alone=False, most_mib=MOST)
    assert cap == MOST // 2


# ---- The driver takes memory back ----


def test_who_is_above_is_told_so_and_runs_again_free_with_a_larger_guaranteed_part():
    one = begun(limited(retries=0, oom_retries=0), ask())
    see(one, 0, 12 * GIB)
    run = end(one, 0, TERMINATED)
    assert run.kind == "above guarantee"
    assert run.is_retried
    assert run.why == (
        "above its guaranteed 8.0 GiB when a neighbour needed its own (exit code 1); again with 12.3 GiB guaranteed"
    )
    _, decision = one.decide(3.0)
    (start,) = decision.actions
    again = one.running[0]
    assert (again.least_mib, again.cap_mib, again.tries) == (12608, MOST, Tries(reclaimed=1))
    assert "12.3 of 80.0 GiB free booked, more than before because" in start.why
    assert start.why.endswith("at most 20.0 GiB")


def test_an_end_within_the_guaranteed_part_is_a_neighbours_fault():
    one = begun(limited(), ask())
    see(one, 0, LEAST)
    assert end(one, 0, TERMINATED).kind == "neighbour's fault"


def test_a_task_of_one_size_is_never_ended_for_its_memory():
    one = begun(limited(), TaskAsk(task=0, gpu_mem_mib=LEAST))
    see(one, 0, LEAST - 1)
    assert end(one, 0, TERMINATED).kind == "neighbour's fault"


def test_without_limits_of_the_driver_a_terminated_client_is_a_neighbours_fault():
    one = begun(board(1, estimator=Estimator(), total=81920), ask())
    see(one, 0, 12 * GIB)
    assert end(one, 0, TERMINATED).kind == "neighbour's fault"


def test_a_full_gpu_below_the_most_is_no_failure_of_the_task_and_one_above_the_most_is():
    one = begun(limited(retries=0), ask(0), ask(1))
    see(one, 0, 10 * GIB)
    run = end(one, 0, OUT.format(4 * GIB).encode())
    assert (run.kind, run.is_retried, run.tries.own_memory) == ("above guarantee", True, 0)
    assert "and its GPU had no more free memory" in run.why
    see(one, 1, 18 * GIB)
    assert end(one, 1, OUT.format(4 * GIB).encode()).kind == "gpu memory"


def test_the_guaranteed_part_rises_to_the_most_in_few_attempts():
    for peak in (None, LEAST + 1, 12 * GIB, MOST):
        least, attempts = LEAST, 0
        while least < MOST:
            larger = guarantee.next_mib(peak or 0, least, MOST)
            assert least < larger <= MOST
            least, attempts = larger, attempts + 1
        assert attempts <= 5
    assert guarantee.above_mib(Attempt(ask=ask(), least_mib=MOST, peak_mib=MOST)) is None


# ---- Runs without --pack ----


def budget(**fields):
    default = {"cap_mib": MOST, "total_mib": 80 * GIB, "slots": 8, "is_whole": True, "least_mib": LEAST}
    return Budget(**default | fields)


def slots(retries=0, **fields):
    on = [GpuFacts(uuid="GPU-0", index=0, model="A100", total_mib=80 * GIB)]
    return Board(on, 64, slot_settings(retries), None, budgets={"GPU-0": budget(has_limits=True, **fields)})


def test_a_slot_books_the_guaranteed_part_and_has_the_most_as_cap():
    one = slots()
    run = one.start_new(TaskAsk(task=0), ("GPU-0",), 0.0)
    assert (run.reserved_mib, run.cap_mib, run.least_mib) == (LEAST, MOST, LEAST)
    assert budget().is_overcommitted
    assert slots(least_mib=None).start_new(TaskAsk(task=0), ("GPU-0",), 0.0).least_mib is None


def test_in_a_slot_the_same_judgement_and_a_free_retry_with_more_guaranteed():
    one = slots()
    for task in range(8):
        one.start_new(TaskAsk(task=task), ("GPU-0",), 0.0)
    see(one, 3, 12 * GIB)
    run = end(one, 3, TERMINATED)
    assert (run.kind, run.is_retried) == ("above guarantee", True)
    assert run.why.endswith("again with 12.3 GiB guaranteed")
    again = one.start_waiting(("GPU-0",), 3.0)
    assert again is not None
    assert (again.least_mib, again.cap_mib, again.is_alone) == (12608, MOST, False)


def test_in_a_slot_the_retry_waits_until_its_guaranteed_part_fits_and_nothing_overtakes_it():
    one = slots(slots=10)
    for task in range(10):
        one.start_new(TaskAsk(task=task), ("GPU-0",), 0.0)
    see(one, 0, 12 * GIB)
    end(one, 0, TERMINATED)
    one.slots.reserve()
    assert one.start_waiting(("GPU-0",), 3.0) is None  # 9 x 8 + 12.3 GiB
    assert not one.may_start_new(("GPU-0",))
    one.ended(EndFacts(task=1, now_s=4.0, code=0))
    again = one.start_waiting(("GPU-0",), 4.0)
    assert again is not None
    assert again.task == 0


def test_a_slot_that_ran_out_of_more_than_the_most_is_retried_as_ever():
    one = slots(retries=2)
    one.start_new(TaskAsk(task=0), ("GPU-0",), 0.0)
    see(one, 0, 19 * GIB + 900)
    run = end(one, 0, OUT.format(2 * GIB).encode())
    assert (run.kind, run.is_retried) == ("gpu memory", True)
    failed = Attempt(ask=TaskAsk(task=0), tries=Tries(own_memory=1), floor_mib=40 * GIB)
    assert start_with_cap(failed, "GPU-0", budget()).cap_mib == 40 * GIB


# ---- Many allocations ----


class Driver:
    """A driver with memory limits of cgroups, as the manual of release 615 has it, on one GPU of a board.

    An allocation within the task's guaranteed part takes memory back from tasks that are above theirs; one above it
    has what is free; none goes above the task's most.
    """

    def __init__(self, one: Board, total_mib: int, draw: random.Random) -> None:
        self.board, self.total_mib, self.draw = one, total_mib, draw
        self.memory: dict[int, int] = {}
        self.ended_within: list[int] = []
        self.reclaimed = self.refused = self.contended = 0

    def allocate(self, task: int, more: int, now: float) -> bool:
        """Return whether a task got more memory; if not, it has ended."""
        run, mine = self.board.running[task], self.memory.get(task, 0)
        least, most = run.least_mib, run.cap_mib
        if least is None or most is None:  # it has the GPU to itself
            least = most = self.total_mib
        if mine + more > most:
            return self.end(task, OUT.format(more).encode(), now)
        free = self.total_mib - sum(self.memory.values())
        self.contended += more > free
        if more > free and mine + more <= least:
            for other in self.draw.sample(sorted(self.memory), len(self.memory)):
                above = self.board.running[other].least_mib
                if more <= free or other == task or above is None or self.memory[other] <= above:
                    continue
                free += self.memory[other]
                self.reclaimed += 1
                self.end(other, TERMINATED, now)
        if more > free:
            self.refused += 1
            if mine + more <= least:
                self.ended_within.append(task)
            return self.end(task, OUT.format(more).encode(), now)
        self.memory[task] = mine + more
        see(self.board, task, self.memory[task], now)
        return True

    def end(self, task: int, log: bytes, now: float) -> bool:
        run, had = self.board.running[task], self.memory.pop(task, 0)
        if log is TERMINATED and run.least_mib is not None and had <= run.least_mib:
            self.ended_within.append(task)
        end(self.board, task, log, now)
        return False


def work(one: Board, driver: Driver, needs: dict[int, int], done: set[int], draw: random.Random, now: float) -> None:
    """Let each running task allocate, free or end. Tasks that need no more than their guaranteed part take it late."""
    for number in draw.sample(sorted(one.running), len(one.running)):
        if number not in one.running or (needs[number] <= LEAST and draw.random() < 0.5):
            continue
        left = needs[number] - driver.memory.get(number, 0)
        if left > 0:
            driver.allocate(number, min(left, draw.randrange(256, 8192)), now)
        elif draw.random() < 0.9:  # a program that frees a part, and takes it again
            driver.memory[number] = draw.randrange(GIB, driver.memory[number] + 1)
            see(one, number, driver.memory[number], now)
        else:
            driver.memory.pop(number)
            done.add(number)
            one.ended(EndFacts(task=number, now_s=now, code=0))
    assert sum(run.least_mib or 0 for run in one.running.values()) <= 80 * GIB


def draw_need(draw: random.Random) -> int:
    return draw.randrange(LEAST, MOST) if draw.random() < 0.7 else draw.randrange(2 * GIB, LEAST + 1)


@pytest.mark.parametrize("seed", range(2))
def test_in_a_packed_run_no_task_within_its_guaranteed_part_ends_for_a_neighbour(seed):
    draw = random.Random(seed)
    one = limited(retries=0, oom_retries=0)
    driver = Driver(one, 80 * GIB, draw)
    needs: dict[int, int] = {}
    done: set[int] = set()
    now = 0.0
    while driver.contended < 100:
        now += 1.0
        while len(one.waiting) < 4:
            one.add(ask(len(needs)), now)
            needs[len(needs)] = draw_need(draw)
        one.decide(now)
        work(one, driver, needs, done, draw, now)
    assert driver.ended_within == []
    assert driver.reclaimed > 5
    assert set(needs) - set(one.running) - set(one.waiting) == done, "what the driver took back was free"


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.weekly) for seed in (1, 2, 3))])
def test_in_slots_no_task_within_its_guaranteed_part_ends_in_10000_contended_allocations(seed):
    draw = random.Random(seed)
    one = slots(slots=10)
    driver = Driver(one, 80 * GIB, draw)
    needs: dict[int, int] = {}
    done: set[int] = set()
    now = 0.0
    while driver.contended < 2500:
        now += 1.0
        one.slots.reserve()
        for _ in range(10 - len(one.running)):
            if one.start_waiting(("GPU-0",), now) is not None:
                continue
            if not one.may_start_new(("GPU-0",)):
                break
            one.start_new(TaskAsk(task=len(needs)), ("GPU-0",), now)
            needs[len(needs)] = draw_need(draw)
        work(one, driver, needs, done, draw, now)
    assert driver.ended_within == []
    assert driver.reclaimed > 100
    assert driver.refused > 100
    assert set(needs) - set(one.running) - set(one.waiting) == done, "what the driver took back was free"


def test_recover_bounds_the_guaranteed_part_by_the_most():
    had = recover.AttemptMemory(
        reserved_mib=LEAST, cap_mib=MOST, peak_mib=MOST, room_mib=0, is_alone=False, by_user=True,
        least_mib=LEAST, most_mib=MOST,
    )  # fmt: skip
    after = recover.recover(recover.AttemptEnd("above guarantee", "why", had, Tries(), 0, PackSettings(), 80 * GIB))
    assert (after.is_retried, after.floor_mib, after.wants_alone) == (True, MOST, False)

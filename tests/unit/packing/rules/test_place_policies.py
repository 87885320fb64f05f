"""The GPU that `booked` chooses, in states with one expected answer."""

import pytest
from msgspec.structs import replace
from packing_values import A100, estimate, gpu, running, starts, view, waiting

from slurm_share.packing.decision_records import Hold
from slurm_share.packing.records import GpuFacts, GpuView, Tries
from slurm_share.packing.rules import refusals
from slurm_share.packing.rules.place import decide


def busy(index, used, sm=0.5, **fields):
    """A GPU with one task of ours that has all memory in use."""
    return gpu(index, used_mib=used, sm_ratio=sm, **fields)


def task_on(index, mib, number=None):
    return running(100 + index if number is None else number, index, mib, memory=mib)


def idle(index, used=400, sm=0.0, **fields):
    return gpu(index, used_mib=used, sm_ratio=sm, **fields)


TABLE = {
    # name: policy, gpus, running, waiting task, settings, expected index or None
    "booked takes most room, whatever is free": (
        "booked", [busy(0, 1000), busy(1, 9000)], [running(100, 0, 30000, memory=1000), task_on(1, 9000)],
        waiting(1, 8000), {}, 1,
    ),
    "booked takes the lower index of equals": ("booked", [idle(0), idle(1)], [], waiting(1, 8000), {}, 0),
    "booked waits for booked memory": ("booked", [idle(0)], [running(100, 0, 35000)], waiting(1, 8000), {}, None),
    "booked starts on exactly the room": ("booked", [idle(0)], [running(100, 0, 30141)], waiting(1, 10000), {}, 0),
    "booked does not start on one MiB less": (
        "booked", [idle(0)], [running(100, 0, 30142)], waiting(1, 10000), {}, None,
    ),
    "booked takes half a GPU for an unknown size": (
        "booked", [idle(0), idle(1)], [running(100, 0, 15000), running(101, 1, 25000)], waiting(1), {}, 0,
    ),
    "booked waits where half a GPU is not free": ("booked", [idle(0)], [running(100, 0, 21000)], waiting(1), {}, None),
    "booked counts memory of others": (
        "booked", [gpu(0, others_mib=35000), gpu(1, others_mib=20000)], [], waiting(1, 8000), {}, 1,
    ),
    "booked counts bookings of other launchers": (
        "booked", [gpu(0, booked_elsewhere_mib=35000), gpu(1)], [], waiting(1, 8000), {}, 1,
    ),
    "booked counts growth beyond a reservation": (
        "booked", [gpu(0)], [running(100, 0, 20000, memory=35000)], waiting(1, 8000), {}, None,
    ),
    "booked needs no condition on free memory": (
        "booked", [idle(0)], [running(100, 0, 37000)], waiting(1, 3000), {}, 0,
    ),
    "booked takes a size above any GPU alone": (
        "booked", [idle(0), idle(1)], [task_on(0, 100)], waiting(1, 45000), {}, 1,
    ),
}  # fmt: skip


def chosen(policy, gpus, runs, task, settings):
    fields = dict(settings)
    last = fields.pop("last_gpu", -1)
    found = starts(decide(view(gpus, [task], runs, policy=policy, last_gpu=last, **fields)))
    return int(found[0][1].removeprefix("GPU-")) if found else None


@pytest.mark.parametrize("name", TABLE)
def test_policy(name):
    """The order in which GPUs are listed changes nothing."""
    policy, gpus, runs, task, settings, expected = TABLE[name]
    assert chosen(policy, gpus, runs, task, settings) == expected
    assert chosen(policy, list(reversed(gpus)), runs, task, settings) == expected


# ---- Starts in other states ----

T4 = GpuView(facts=GpuFacts(uuid="GPU-1", index=1, model="T4", total_mib=15360, reserve_mib=307, is_mps=True))
STATES = {
    "small tasks go past one that does not fit": (
        view([gpu(0)], [waiting(1, 30000), waiting(2, 1000)], [running(9, 0, 20000)]), [(2, 0)],
    ),
    "in strict order nothing goes past it": (
        view([gpu(0)], [waiting(1, 30000), waiting(2, 1000)], [running(9, 0, 20000)], backfills=False), [],
    ),
    "retries after running out of memory go first then old tasks then the rest": (
        view([gpu(0)], [waiting(1, 15000, waits_since_s=900.0), waiting(2, 15000, waits_since_s=0.0),
                        waiting(3, 15000, waits_since_s=950.0, after="gpu memory")], now=1000.0), [(3, 0), (2, 0)],
    ),
    "held gpu takes no other task and takes its own": (
        view([gpu(0, held_for=2)], [waiting(1, 5000), waiting(2, 5000)]), [(2, 0)],
    ),
    "after the held task started the gpu is open to others in the same decision": (
        view([gpu(0, held_for=2)], [waiting(2, 5000, waits_since_s=-900.0), waiting(3, 5000)]), [(2, 0), (3, 0)],
    ),
    "nothing goes ahead of a hold when an end is not known": (
        view([gpu(0, held_for=1)], [waiting(1, 30000, waits_since_s=-900.0), waiting(2, 5000, seconds=1.0)],
             [running(8, 0, 15000), running(9, 0, 5000, ends_s=200.0)], now=100.0), [],
    ),
    "gpu takes no more tasks than are allowed": (
        view([gpu(0)], [waiting(number, 1000) for number in range(3)], max_per_gpu=2), [(0, 0), (1, 0)],
    ),
    "clients of other launchers count": (
        view([gpu(0, clients_elsewhere=47)], [waiting(1, 300), waiting(2, 300)]), [(1, 0)],
    ),
    "gpu of unknown size takes one task at a time": (
        view([gpu(0, None)], [waiting(1, 90000), waiting(2, 300)]), [(1, 0)],
    ),
    "without figures a task starts only where nothing else runs": (
        view([gpu(0, can_measure=False), gpu(1, can_measure=False)], [waiting(1, 300), waiting(2, 300)],
             [running(9, 0, 1000)]), [(1, 1)],
    ),
    "busy multiprocessors alone stop nothing": (
        view([gpu(0, sm_ratio=1.0)], [waiting(1, 300)], [running(9, 0, 1000)]), [(1, 0)],
    ),
    "unknown figures stop nothing": (
        view([gpu(0)], [waiting(1, 300), waiting(2, 39000)], [running(9, 0, 1000)]), [(1, 0)],
    ),
    "gpu with a problem or out of service takes nothing": (
        view([gpu(0, problem="no daemon"), gpu(1, is_out=True), gpu(2)], [waiting(1, 300)]), [(1, 2)],
    ),
    "unknown task closes its gpu": (view([gpu(0)], [waiting(1), waiting(2)]), [(1, 0)]),
    "known task does not close its gpu": (view([gpu(0)], [waiting(1, 9000), waiting(2, 9000)]), [(1, 0), (2, 0)]),
    "closed gpu is not used": (view([gpu(0, closed_until_s=100.5)], [waiting(1, 300)], now=100.0), []),
    "closed gpu opens at its time": (view([gpu(0, closed_until_s=100.0)], [waiting(1, 300)], now=100.0), [(1, 0)]),
    "task alone on a gpu is joined by nobody": (
        view([gpu(0)], [waiting(1, 300)], [running(9, 0, 1000, is_alone=True)]), [],
    ),
    "unlike gpus are asked for the estimate of their model": (
        view([gpu(0), T4], [replace(waiting(1), estimates=((A100, estimate(35000)), ("T4", estimate(9000))))],
             [running(9, 0, 10000)]), [(1, 1)],
    ),
    "exclusive recovery stops the queue": (
        view([gpu(0)], [waiting(1, 5000), waiting(2, 5000, wants_alone=True, after="gpu memory")],
             [running(8, 0, 1000)], recovery="exclusive"), [],
    ),
}  # fmt: skip
"""State -> (task, GPU index) of each start."""


@pytest.mark.parametrize("name", STATES)
def test_starts(name):
    state, expected = STATES[name]
    assert [(task, int(uuid.removeprefix("GPU-"))) for task, uuid in starts(decide(state))] == expected


# ---- booked: order, ageing, holds ----


@pytest.mark.parametrize(("order", "first"), [("fifo", 1), ("short", 2), ("long", 3)])
def test_order_of_known_durations(order, first):
    waits = [waiting(1, 30000, seconds=50), waiting(2, 30000, seconds=10), waiting(3, 30000, seconds=90)]
    assert starts(decide(view([gpu(0)], waits, order=order)))[0][0] == first


@pytest.mark.parametrize("order", ["short", "long"])
def test_task_of_unknown_duration_is_in_the_middle(order):
    waits = [waiting(1, 9000, seconds=10), waiting(2, 9000), waiting(3, 9000, seconds=90), waiting(4, 9000, seconds=20)]
    found = [task for task, _ in starts(decide(view([gpu(0)], waits, order=order)))]
    assert found.index(2) in (1, 2)


def holds(decision):
    return [(one.task, one.gpu) for one in decision.actions if isinstance(one, Hold)]


def test_old_task_gets_a_gpu_held_where_its_room_comes_first():
    runs = [running(8, 0, 30000, ends_s=900.0), running(9, 1, 30000, ends_s=300.0)]
    state = view([gpu(0), gpu(1)], [waiting(1, 30000), waiting(2, 1000)], runs, now=700.0)
    decision = decide(state)
    assert holds(decision) == [(1, "GPU-1")]
    assert starts(decision) == [(2, "GPU-0")]


def test_task_is_old_only_after_twice_the_median_duration():
    state = view([gpu(0)], [waiting(1, 30000)], [running(9, 0, 30000)], now=700.0, median_s=500.0)
    assert holds(decide(state)) == []


def test_without_known_ends_the_gpu_is_held_where_least_memory_is_missing():
    runs = [running(8, 0, 30000), running(9, 1, 20000)]
    state = view([gpu(0), gpu(1)], [waiting(1, 30000)], runs, now=700.0)
    assert holds(decide(state)) == [(1, "GPU-1")]


def test_one_task_at_a_time_has_a_gpu_held():
    runs = [running(8, 0, 30000), running(9, 1, 30000)]
    held = [gpu(0, held_for=1), gpu(1)]
    state = view(held, [waiting(1, 30000), waiting(2, 25000)], runs, now=700.0)
    assert holds(decide(state)) == []


def test_hold_of_a_task_that_waits_no_more_ends():
    decision = decide(view([gpu(0, held_for=77)], [waiting(1, 5000)]))
    assert holds(decision) == [(None, "GPU-0")]
    assert starts(decision) == [(1, "GPU-0")]


@pytest.mark.parametrize(("seconds", "is_started"), [(50.0, True), (101.0, False), (None, False)])
def test_held_gpu_takes_a_task_that_ends_before_the_hold_can_begin(seconds, is_started):
    waits = [waiting(1, 30000, waits_since_s=-900.0), waiting(2, 5000, seconds=seconds)]
    runs = [running(9, 0, 20000, ends_s=200.0)]
    found = starts(decide(view([gpu(0, held_for=1)], waits, runs, now=100.0)))
    assert found == ([(2, "GPU-0")] if is_started else [])


@pytest.mark.parametrize(
    "fields", [{"is_single": True, "is_mps": False}, {"can_measure": False}, {"closed_until_s": 150.0}]
)
def test_what_goes_ahead_of_a_hold_obeys_all_other_limits(fields):
    waits = [waiting(1, 30000, waits_since_s=-900.0), waiting(2, 5000, seconds=50.0)]
    runs = [running(9, 0, 20000, ends_s=200.0)]
    assert starts(decide(view([gpu(0, held_for=1, **fields)], waits, runs, now=100.0))) == []


# ---- booked: several GPUs ----


@pytest.mark.parametrize(
    ("now", "held", "begun"), [(599.0, [], [(8, "GPU-0")]), (600.0, [(7, "GPU-0"), (7, "GPU-1")], [])]
)
def test_gpus_drain_for_a_task_of_several_gpus_only_when_it_is_old(now, held, begun):
    waits = [waiting(7, gpus=2, waits_since_s=0.0), waiting(8, 5000)]
    decision = decide(view([gpu(0), gpu(1)], waits, [running(1, 0, 10_000), running(2, 1, 10_000)], now=now))
    assert (holds(decision), starts(decision)) == (held, begun)


def test_a_short_task_runs_on_an_empty_held_gpu_while_another_one_is_still_in_use():
    """GPU 1 is in use for 1000 s more; GPU 0 is empty, and held for the same task."""
    waits = [waiting(7, gpus=2), waiting(8, 5000, seconds=900.0), waiting(9, 5000, seconds=1100.0), waiting(10, 5000)]
    state = view([gpu(0, held_for=7), gpu(1, held_for=7)], waits, [running(1, 1, 10_000, ends_s=1100.0)])
    assert starts(decide(state)) == [(8, "GPU-0")]


def test_task_with_more_gpus_than_the_node_has_is_not_started():
    (end,) = decide(view([gpu(0)], [waiting(1, gpus=2)])).actions
    assert (end.outcome, end.why) == ("not started", "wants 2 GPUs; this node has 1 GPU")


# ---- booked: limits ----


@pytest.mark.parametrize(("processes", "count"), [(1, 48), (12, 4), (20, 2), (60, 1)])
def test_processes_count_against_the_limit_of_clients_not_tasks(processes, count):
    """Row "48/60 clients reached (a task with 12 CUDA processes)": clients counted, not tasks."""
    waits = [waiting(number, 300, processes=processes) for number in range(60)]
    assert len(starts(decide(view([gpu(0)], waits)))) == count


def test_exclusive_process_mode_without_mps_takes_one_task_a_gpu():
    """Row "empty GPU but compute mode EXCLUSIVE_PROCESS without MPS": one task a GPU, with a sentence."""
    state = view([gpu(0, is_single=True, is_mps=False)], [waiting(1, 300), waiting(2, 300)])
    decision = decide(state)
    assert starts(decision) == [(1, "GPU-0")]
    assert [row.why for row in decision.refused if row.task == 2] == [refusals.SINGLE]


@pytest.mark.parametrize(("figure", "value"), [("sm_ratio", 0.96), ("dram_ratio", 0.81)])
def test_saturated_gpu_takes_no_further_task_but_an_idle_one_does(figure, value):
    full = gpu(0, **{figure: value})
    assert starts(decide(view([full], [waiting(1, 300)], [running(9, 0, 1000)], sm_guard=0.95))) == []
    assert starts(decide(view([full], [waiting(1, 300)], sm_guard=0.95))) == [(1, "GPU-0")]


def test_with_all_gpus_out_of_service_tasks_are_left_for_other_nodes_and_resume():
    assert decide(view([gpu(0, is_out=True)], [waiting(1, 300), waiting(2, word=50000)])).actions == ()


def test_size_above_every_gpu_is_given_up_with_the_largest_size():
    (end,) = decide(view([gpu(0), gpu(1, 20480)], [waiting(1, word=50000)])).actions
    assert end.why == "wants 48.8 GiB; the largest GPU of this node has 40.0 GiB"


def test_a_task_like_dead_ones_is_given_up_unless_asked():
    waits = [waiting(1, 300, hopeless="task 0, the same command, ran out of GPU memory")]
    (end,) = decide(view([gpu(0)], waits)).actions
    assert (end.outcome, end.why) == (
        "given up", "task 0, the same command, ran out of GPU memory; --keep-going tries it"
    )  # fmt: skip
    assert starts(decide(view([gpu(0)], waits, keep_going=True))) == [(1, "GPU-0")]


# ---- Retries after running out of memory ----


@pytest.mark.parametrize(
    ("had", "booked", "is_started"),
    [
        (10000, 27000, True),  # 13,141 of room; 20 % more than 10,000
        (10000, 29000, False),  # 11,141: not 20 % more
        (30000, 5000, True),  # 35,141: 5,120 more than 30,000
        (30000, 6000, False),  # 34,141
    ],
)
def test_retry_wants_a_roomier_gpu(had, booked, is_started):
    task = waiting(1, 5000, floor_mib=9000, had_room_mib=had, after="gpu memory", not_on=("GPU-0",))
    found = starts(decide(view([gpu(0)], [task], [running(9, 0, booked)])))
    assert found == ([(1, "GPU-0")] if is_started else [])


def test_retry_alone_holds_the_gpu_that_is_free_first_at_once():
    task = waiting(1, 5000, wants_alone=True, after="gpu memory")
    runs = [running(8, 0, 1000, ends_s=500.0), running(9, 1, 1000, ends_s=300.0)]
    assert holds(decide(view([gpu(0), gpu(1)], [task], runs))) == [(1, "GPU-1")]


def test_retry_alone_gets_an_idle_gpu_without_a_cap():
    task = waiting(1, 5000, wants_alone=True, after="gpu memory")
    (start,) = decide(view([gpu(0), gpu(1)], [task], [running(8, 0, 1000)])).actions
    assert (start.gpus, start.is_alone, start.cap_mib, start.reserve_mib) == (("GPU-1",), True, None, 40960 - 819)


def test_task_that_died_alone_goes_only_to_a_larger_gpu():
    task = waiting(
        1, wants_alone=True, had_room_mib=20000, tries=Tries(own_memory=2, was_alone=True), after="gpu memory"
    )
    small, large = gpu(0, 20480, reserve=480), gpu(1)
    assert starts(decide(view([small, large], [task]))) == [(1, "GPU-1")]
    (end,) = decide(view([small], [task])).actions
    assert end.outcome == "gpu memory"

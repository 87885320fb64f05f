import pytest
from packing_values import board, facts, key, queued, started, starts

from slurm_share.packing.decision_records import Reserve
from slurm_share.packing.records import EndFacts, PackSettings, TaskAsk
from slurm_share.packing.rules.board import Board
from slurm_share.packing.rules.estimate.estimator import Estimator
from slurm_share.packing.rules.explain import preview_run
from slurm_share.packing.rules.slots import slot_settings


def test_unknown_tasks_take_half_a_gpu_each_and_the_second_waits_for_the_firsts_first_memory():
    one = queued(*(key(f"e{task}", f"f{task}") for task in range(3)))
    _, first = one.decide(0.0)
    assert starts(first) == [(0, "GPU-0")]
    assert starts(one.decide(1.0)[1]) == []
    one.sample_task(0, {"GPU-0": 500}, 1, 5.0)
    assert starts(one.decide(5.0)[1]) == [(1, "GPU-0")]
    one.sample_task(1, {"GPU-0": 500}, 1, 9.0)
    assert starts(one.decide(9.0)[1]) == []


def test_flat_task_shrinks_and_its_siblings_are_sized_by_it():
    one = started(*(key(f"e{task}", "sweep") for task in range(6)))
    for second in range(5, 80):
        one.sample_task(0, {"GPU-0": 4000}, 1, float(second))
    _, decision = one.decide(80.0)
    assert isinstance(decision.actions[0], Reserve)
    assert starts(decision) == [(task, "GPU-0") for task in range(1, 6)]


def test_a_limit_is_in_the_settings_of_a_view_and_never_above_the_users():
    one = board(1, max_per_gpu=3)
    assert one.view(0.0).settings.max_per_gpu == 3
    one.limit(2)
    assert one.view(0.0).settings.max_per_gpu == 2
    one.limit(9)
    assert one.view(0.0).settings.max_per_gpu == 3
    one.limit(None)
    assert one.view(0.0).settings.max_per_gpu == 3


def test_how_many_have_room_is_known_with_their_size():
    one = queued(key("e", "f"), key("e", "f"), gpus=2)
    assert one.most_on_a_gpu() is None
    one.decide(0.0)
    for second in range(5, 80):
        one.sample_task(0, {"GPU-0": 4000}, 1, float(second))
    one.decide(80.0)
    most = one.most_on_a_gpu()
    assert most is not None
    assert 7 <= most <= 9
    assert queued(9000, gpus=2).most_on_a_gpu() == 4


def test_how_many_have_room_is_known_from_earlier_tasks_where_none_waits():
    """Nodes that share a list take a task when it can start, and short tasks are never flat."""
    one = board(2)
    one.add(TaskAsk(task=0, key=key("a", "f")), 0.0)
    one.decide(0.0)
    one.estimator.siblings["f"] = 9000
    one.sample_task(0, {"GPU-0": 8500}, 1, 1.0)
    one.learned("f")
    one.decide(2.0)
    assert one.most_on_a_gpu() == 4


@pytest.mark.parametrize(("policy", "starts_s"), [("booked", 6.0), ("lug", 36.0), ("magm", 36.0)])
def test_a_gpu_opens_after_the_first_memory_and_for_policies_that_read_it_after_the_warm_up(policy, starts_s):
    one = started(key("a", "a"), policy=policy, smact_max=None, warm_up_s=30.0)
    one.add(TaskAsk(task=1), 1.0)
    assert one.decide(1.0)[1].actions == ()
    one.sample_task(0, {"GPU-0": 400}, 1, 6.0)
    one.sample_gpu("GPU-0", 6.0, used_mib=400, sm_ratio=0.1)
    now = 6.0
    while not one.decide(now)[1].actions:
        now = one.next_s(now)
        assert now is not None
    assert now == starts_s


def parts(*asks, gpus):
    """Return what the tasks book that start at once on idle GPUs: (task, GPU, MiB, cap)."""
    one = Board(gpus, 64, PackSettings(), Estimator([], now=0.0))
    for task, ask in enumerate(asks):
        one.add(TaskAsk(task=task, **ask), 0.0)
    starts_now = [action for action in one.decide(0.0)[1].actions if hasattr(action, "reserve_mib")]
    return [(one.task, one.gpus[0], one.reserve_mib, one.cap_mib) for one in starts_now]


def test_a_part_of_a_gpu_is_a_part_of_what_a_task_can_have_on_each_of_them():
    gpus = [
        facts(0, 81920, reserve=1920, model="A100", is_mps=True),
        facts(1, 40960, reserve=960, model="V100", is_mps=True),
    ]
    quarter = {"gpu_mem_percent": 25.0}
    found = parts(*[quarter] * 9, gpus=gpus)
    assert sorted(one[1:] for one in found) == [("GPU-0", 20000, 20000)] * 4 + [("GPU-1", 10000, 10000)] * 4


def test_a_part_of_a_gpu_of_unknown_size_is_no_size_and_said_as_written():
    found = preview_run([TaskAsk(task=0, gpu_mem_percent=12.5)], (), 2, PackSettings(), Estimator([], now=0.0))
    assert [(group.least_mib, group.source) for group in found.groups] == [(None, "12.5 % of the GPU")]
    unsized = [facts(0, None, is_mps=True)]
    assert parts({"gpu_mem_percent": 50.0}, {"gpu_mem_percent": 50.0}, gpus=unsized) == [(0, "GPU-0", 0, None)]


def test_at_most_two_tasks_that_take_half_a_gpu_run_on_one_also_with_smaller_sizes():
    gpus = [facts(0, 81920, reserve=1920, is_mps=True), facts(1, 81920, reserve=1920, is_mps=True)]
    half = {"is_half": True, "gpu_mem_percent": 50.0}
    assert sorted(one[1:3] for one in parts(*[half] * 5, gpus=gpus)) == [("GPU-0", 40000)] * 2 + [("GPU-1", 40000)] * 2
    small = {"is_half": True, "gpu_mem_mib": 1000}
    found = parts(*[small] * 5, {"gpu_mem_mib": 1000}, gpus=gpus)
    assert {one[0] for one in found} == {0, 1, 2, 3, 5}


def test_a_task_that_takes_half_a_gpu_starts_when_another_one_ends():
    one = board(1)
    for task in range(3):
        one.add(TaskAsk(task=task, is_half=True, gpu_mem_mib=1000, key=key("e", "f")), 0.0)
    assert starts(one.decide(0.0)[1]) == [(0, "GPU-0"), (1, "GPU-0")]
    one.ended(EndFacts(task=0, now_s=5.0, code=0))
    assert starts(one.decide(5.0)[1]) == [(2, "GPU-0")]


# ---- Tasks that take the cores of several workers, or book host memory ----


def mixed(*asks, workers=4, host_mib=None, **settings):
    one = Board([facts(0, is_mps=True)], workers, PackSettings(**settings), Estimator([], now=0.0), host_mib=host_mib)
    for task, ask in enumerate(asks):
        one.add(TaskAsk(task=task, gpu_mem_mib=1000, **ask), 0.0)
    return one


def begun(one, now_s):
    return [task for task, _ in starts(one.decide(now_s)[1])]


def test_a_task_of_several_workers_starts_when_they_are_free_and_smaller_ones_go_on():
    one = mixed({}, {}, {"workers": 3}, {}, {})
    assert begun(one, 0.0) == [0, 1, 3, 4]
    one.ended(EndFacts(task=0, now_s=1.0, code=0))
    one.ended(EndFacts(task=1, now_s=1.0, code=0))
    assert begun(one, 1.0) == []
    one.ended(EndFacts(task=3, now_s=2.0, code=0))
    assert begun(one, 2.0) == [2]
    assert one.free_workers == 0
    one.ended(EndFacts(task=2, now_s=3.0, code=0))
    assert one.free_workers == 3


def test_a_task_of_several_workers_that_has_waited_long_gets_the_next_free_ones():
    one = mixed({}, {}, {}, {}, {"workers": 2}, patience_s=100.0)
    assert begun(one, 0.0) == [0, 1, 2, 3]
    one.add(TaskAsk(task=5, gpu_mem_mib=1000), 1.0)
    one.ended(EndFacts(task=0, now_s=400.0, code=0))
    assert begun(one, 2000.0) == []
    one.ended(EndFacts(task=1, now_s=2001.0, code=0))
    assert begun(one, 2001.0) == [4]
    one.ended(EndFacts(task=2, now_s=2002.0, code=0))
    assert begun(one, 2002.0) == [5]


def test_host_memory_is_booked_an_even_part_for_tasks_that_do_not_ask():
    one = mixed({"host_mib": 5000}, {"host_mib": 5000}, {}, {}, {}, workers=4, host_mib=8000)
    assert begun(one, 0.0) == [0, 2]
    one.ended(EndFacts(task=0, now_s=1.0, code=0))
    assert begun(one, 1.0) == [1]
    one.ended(EndFacts(task=1, now_s=2.0, code=0))
    one.ended(EndFacts(task=2, now_s=2.0, code=0))
    assert begun(one, 2.0) == [3, 4]


def test_without_pack_a_task_of_several_workers_waits_and_is_not_starved():
    one = Board([], 2, slot_settings(0), None)
    one.add(TaskAsk(task=0, workers=2), 0.0)
    one.add(TaskAsk(task=1), 0.0)
    assert one.start_waiting((), 1.0, 1).task == 1
    one.add(TaskAsk(task=2), 1.0)
    assert not one.is_held_back(599.0, 1)
    assert one.is_held_back(600.0, 1)
    assert one.start_waiting((), 600.0, 1) is None
    assert one.start_waiting((), 600.0, 2).task == 0

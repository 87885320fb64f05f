"""Reactions of a board to failures of tasks, GPUs, daemons and the driver.

More of them, with real programs, are in tests/unit/triples/launcher/test_packed_runs.py.
"""

import pytest
from msgspec.structs import replace
from packing_values import Known, board, facts, fill, key, oom, queued, started, starts

from slurm_share.packing.decision_records import GiveUp, Hold
from slurm_share.packing.records import EndFacts, PackSettings, TaskAsk
from slurm_share.packing.rules import endings
from slurm_share.packing.rules.board import Board

FAULT = b"RuntimeError: CUDA error: an illegal memory access was encountered\n"


def failed(task, now, text=b"", **fields):
    return EndFacts(task=task, now_s=now, code=1, log_tail=text, **fields)


def done(task, now):
    return EndFacts(task=task, now_s=now, code=0)


def run_of(one, task):
    return next(run for run in one.view(0.0).running if run.ask.task == task)


def grow(one, task, mib, now, clients=1):
    one.sample_task(task, {run_of(one, task).gpus[0]: mib}, clients, now)


def flat(one, task, mib, start, end):
    for second in range(int(start), int(end) + 1):
        grow(one, task, mib, float(second))


@pytest.mark.parametrize(
    ("ask", "known"), [({"gpu_mem_mib": 30720}, {}), ({"key": key("e")}, {"e": 30720})], ids=["user", "exact"]
)
def test_reservation_by_the_user_or_by_the_same_commands_history_never_shrinks(ask, known):
    one = board(1, estimator=Known(known))
    one.add(TaskAsk(task=0, **ask), 0.0)
    one.decide(0.0)
    flat(one, 0, 2048, 5, 80)
    assert one.decide(80.0)[1].actions == ()
    assert run_of(one, 0).reserved_mib == 30720


def test_with_the_hard_guard_nothing_shrinks():
    one = started(key("e"), guard="hard")
    flat(one, 0, 2048, 5, 80)
    assert one.decide(80.0)[1].actions == ()


def test_late_growth_within_what_is_expected_changes_nothing_and_beyond_it_is_booked_and_blamed():
    one = started(key("a", "a"), estimator=Known(growth=1.3))
    flat(one, 0, 10000, 5, 66)
    one.decide(66.0)
    assert run_of(one, 0).reserved_mib == 13056
    grow(one, 0, 12500, 100.0)  # validation: 1.25 times
    one.add(TaskAsk(task=1, gpu_mem_mib=23000), 100.0)
    assert starts(one.decide(100.0)[1]) == [(1, "GPU-0")]
    grow(one, 1, 20000, 110.0)
    grow(one, 0, 20000, 120.0)  # beyond: the GPU is overbooked
    one.decide(120.0)
    after = one.ended(oom(1, 121.0, sample_age_s=1.0))
    assert (after.kind, after.is_retried) == ("neighbour's memory", True)
    # 16,250 was booked for it when it grew and there was room; 20,000 is beyond that.
    assert after.why.startswith("task 0 outgrew its ")
    assert after.why.endswith("(19.5); runs again")


def test_neighbours_growth_is_no_excuse_for_a_task_that_outgrew_its_own_reservation():
    one = started(10000, 10000)
    grow(one, 0, 12000, 5.0)
    grow(one, 1, 11000, 5.0)
    assert one.ended(oom(1, 6.0)).kind == "gpu memory"


def test_task_within_its_reservation_that_asked_for_more_than_it_is_its_own_failure():
    one = started(10000, 10000)
    grow(one, 0, 12000, 5.0)
    grow(one, 1, 6000, 5.0)
    text = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB.\n"
    assert one.ended(oom(1, 6.0, text)).kind == "gpu memory"


def test_hundred_tasks_too_large_for_any_gpu_end_after_a_few_were_tried():
    one = board(4)
    for task in range(100):
        one.add(TaskAsk(task=task, gpu_mem_mib=30_000, key=key(f"e{task}", "sweep")), 0.0)
    tried, untried, now = set(), set(), 0.0
    while True:
        _, decision = one.decide(now)
        tried |= {task for task, _ in starts(decision)}
        untried |= {action.task for action in decision.actions if isinstance(action, GiveUp)}
        running = one.view(now).running
        if not running and one.next_s(now) is None:
            break
        for run in running:
            limit = run.cap_mib or 40000
            grow(one, run.ask.task, limit, now + 5)
            one.ended(oom(run.ask.task, now + 6))
        now += 10
    assert tried | untried == set(range(100))
    # Each of four GPUs has tasks of the sweep twice before three of them are through.
    assert len(tried) <= 3 + 4 * 4
    assert one.view(now).waiting == ()


def test_memory_error_that_was_caught_is_not_the_reason_of_a_later_one():
    text = b"torch.OutOfMemoryError: CUDA out of memory.\nbatch size is halved\nValueError: bad label\n"
    assert endings.classify(failed(0, 9.0, text, room_ratio=0.4))[0] == "failed"


def test_task_with_several_processes_is_booked_by_their_sum_and_capped_by_each_ones_part():
    sizes = Known({"e": 12000})
    one = board(1, estimator=sizes)
    original = sizes.estimate
    sizes.estimate = lambda ask, model, total: replace(original(ask, model, total), processes=4)
    one.add(TaskAsk(task=0, key=key("e")), 0.0)
    one.decide(0.0)
    run = run_of(one, 0)
    assert (run.reserved_mib, run.cap_mib, run.clients) == (12000, 15000 // 4, 4)
    grow(one, 0, 14000, 9.0, clients=5)
    assert run_of(one, 0).clients == 5


def test_memory_that_escaped_from_a_task_counts_as_somebody_elses():
    one = started(4096)
    grow(one, 0, 1000, 5.0)
    one.sample_gpu("GPU-0", 5.0, used_mib=9000)
    assert one.view(5.0).gpus[0].others_mib == 8000


def test_own_cap_is_no_fault_of_another_launcher_that_has_just_started_much():
    one = started(4096)
    one.note_elsewhere("GPU-0", 20000, 0, 1)
    one.sample_gpu("GPU-0", 5.0, used_mib=20000)
    after = one.ended(oom(0, 5.5, room_ratio=0.5))
    assert (after.kind, after.needs_mib) == ("gpu memory", 8601)


def test_memory_that_others_have_taken_is_no_fault_of_a_task_within_its_booking():
    one = started(4096)
    grow(one, 0, 1000, 5.0)
    one.sample_gpu("GPU-0", 5.0, used_mib=40500)
    assert one.ended(oom(0, 5.5, room_ratio=0.01)).kind == "neighbour's memory"


def test_end_of_the_daemon_is_free_for_its_tasks_and_its_gpu_takes_none_until_it_is_back():
    one = started(4096)
    one.sample_gpu("GPU-0", 5.0, used_mib=0, problem="its MPS daemon ended")
    after = one.ended(failed(0, 5.0, is_daemon_lost=True))
    assert (after.kind, after.is_retried) == ("neighbour's fault", True)
    assert starts(one.decide(5.0)[1]) == []
    one.sample_gpu("GPU-0", 9.0, used_mib=0, problem="")
    assert starts(one.decide(9.0)[1]) == [(0, "GPU-0")]


def test_fatal_fault_is_free_for_all_that_it_ended_and_the_first_runs_alone_next():
    """Under MPS a fault ends all clients of the GPU, in any order: nobody sees whose it was."""
    one = started(*[4096] * 3)
    first = one.ended(failed(1, 50.0, FAULT))
    second = one.ended(failed(0, 51.0, FAULT))
    third = one.ended(failed(2, 52.0, FAULT))
    assert [after.kind for after in (first, second, third)] == ["neighbour's fault"] * 3
    assert all(after.is_retried for after in (first, second, third))
    assert all("task 1 was the first that it ended" in after.why for after in (second, third))
    assert "its own or a neighbour's" in first.why
    waits = {task.ask.task: task for task in one.view(53.0).waiting}
    assert [waits[task].wants_alone for task in (0, 1, 2)] == [False, True, False]
    assert all(waits[task].tries.failed == 0 for task in waits)


def test_a_fault_is_a_tasks_own_without_neighbours_without_mps_and_after_an_older_fault():
    alone = started(4096)
    assert alone.ended(failed(0, 50.0, FAULT)).kind == "failed"
    alone.add(TaskAsk(task=1, gpu_mem_mib=4096), 51.0)
    alone.decide(51.0)
    assert alone.ended(failed(1, 55.0, FAULT)).kind == "failed"
    apart = started(4096, 4096)
    apart.ended(failed(0, 50.0, FAULT))
    assert apart.ended(failed(1, 61.0, FAULT)).kind == "failed"
    sliced = fill(Board([facts(0, is_mps=False)], 8, PackSettings(), Known()), 4096, 4096)
    sliced.decide(0.0)
    assert sliced.ended(failed(0, 50.0, FAULT)).kind == "failed"


@pytest.mark.parametrize(("has_own_faults", "kinds"), [(True, ["failed"] * 3), (False, ["neighbour's fault"] * 3)])
def test_a_fault_in_a_static_partition_is_the_tasks_own_from_driver_610_on(has_own_faults, kinds):
    gpu = facts(0, is_mps=True, partitions=4, has_own_faults=has_own_faults)
    one = fill(Board([gpu], 8, PackSettings(), Known()), *[4096] * 3)
    for now in range(0, 40, 5):
        one.decide(float(now))
    assert len(one.running) == 3
    for task, run in one.running.items():
        run.partition = f"GPU-0/{task}"
    ends = [one.ended(failed(task, 50.0 + task, FAULT)) for task in range(3)]
    assert [end.kind for end in ends] == kinds
    assert any(task.wants_alone for task in one.waiting.values()) is not has_own_faults


def test_no_more_tasks_than_static_partitions_start_on_a_gpu():
    one = fill(
        Board([facts(0, is_mps=True, partitions=2), facts(1, is_mps=True, partitions=3)], 8, PackSettings(), Known()),
        *[1024] * 8,
    )
    _, decision = one.decide(0.0)
    found = [gpu for _, gpu in starts(decision)]
    assert (found.count("GPU-0"), found.count("GPU-1")) == (2, 3)


def test_faulty_task_ends_and_all_others_are_done_whoever_ends_first():
    """Task 0 faults wherever it runs, and is the last to end of it: the others are done in the end, without retries."""
    one = queued(*[4096] * 5, gpus=2)
    now, ends = 0.0, {}
    while len(ends) < 5:
        assert now < 500
        one.decide(now)
        now += 5.0
        runs = one.view(now).running
        gpus = {run.gpus[0] for run in runs if run.ask.task == 0}
        for run in sorted(runs, key=lambda run: -run.ask.task):
            is_hit = run.gpus[0] in gpus
            after = one.ended(failed(run.ask.task, now, FAULT) if is_hit else done(run.ask.task, now))
            if not after.is_retried:
                ends[run.ask.task] = after.kind
        now += 1.0
    assert ends == {0: "failed", 1: "done", 2: "done", 3: "done", 4: "done"}


GONE = b"NVRM: GPU has fallen off the bus\n"


def test_task_that_says_of_every_gpu_that_it_is_gone_fails_and_the_gpus_are_back():
    one = started(30000, 30000, gpus=2)
    assert one.ended(failed(0, 5.0, GONE)).kind == "device"
    one.ended(done(1, 6.0))
    assert starts(one.decide(6.0)[1]) == [(0, "GPU-1")]
    after = one.ended(failed(0, 7.0, GONE))
    assert (after.kind, after.is_retried) == ("failed", False)
    assert [gpu.is_out for gpu in one.view(7.0).gpus] == [False, False]
    assert not any(gpu.is_out for gpu in one.view(8.0).gpus)


def test_only_gpu_is_not_taken_out_of_service_by_the_log_of_a_task():
    one = started(4096)
    assert one.ended(failed(0, 5.0, GONE)).kind == "failed"
    assert not one.view(6.0).gpus[0].is_out


def test_gpu_of_which_two_tasks_say_that_it_is_gone_stays_out():
    one = queued(*[15000] * 4, gpus=3)
    there = dict(starts(one.decide(0.0)[1]))
    pair = [task for task, gpu in there.items() if gpu == there[0]]
    assert len(pair) == 2
    for task in pair:
        assert one.ended(failed(task, 5.0, GONE)).kind == "device"
    one.decide(6.0)
    again = one.ended(failed(0, 7.0, GONE))
    assert again.kind == "device"
    assert there[0] in [gpu.facts.uuid for gpu in one.view(7.0).gpus if gpu.is_out]
    assert [gpu.is_out for gpu in one.view(8.0).gpus].count(True) == 2


def test_blind_driver_stops_starts_beside_others_until_it_answers_again():
    one = queued(4096, 4096)
    one.set_blind(0.0, is_blind=True)
    assert starts(one.decide(0.0)[1]) == [(0, "GPU-0")]
    assert starts(one.decide(99.0)[1]) == []
    one.set_blind(100.0, is_blind=False)
    assert starts(one.decide(100.0)[1]) == [(1, "GPU-0")]


def test_processes_seen_count_not_those_expected():
    one = fill(Board([facts(0, is_mps=True, clients_max=13)], 8, PackSettings(), Known()), *[300] * 3)
    one.free_workers = 1
    one.decide(0.0)
    grow(one, 0, 200, 5.0, clients=12)
    one.free_workers = 2
    assert starts(one.decide(6.0)[1]) == [(1, "GPU-0")]


def test_task_shorter_than_a_sample_opens_its_gpu_at_its_end():
    one = started(*(key(f"e{task}", f"f{task}") for task in range(2)))
    one.ended(done(0, 0.2))
    assert starts(one.decide(0.2)[1]) == [(1, "GPU-0")]


def test_hold_lets_others_go_on_elsewhere_and_ends_when_its_task_starts():
    one = started(30000, 30000, gpus=2, patience_s=100.0)
    one.add(TaskAsk(task=2, gpu_mem_mib=35000), 0.0)
    assert one.next_s(0.0) == 100.0
    _, decision = one.decide(100.0)
    assert [(action.task, action.gpu) for action in decision.actions if isinstance(action, Hold)] == [(2, "GPU-0")]
    for task in range(3, 9):
        one.add(TaskAsk(task=task, gpu_mem_mib=2000), 101.0)
    assert {gpu for _, gpu in starts(one.decide(101.0)[1])} == {"GPU-1"}
    one.ended(done(0, 200.0))
    assert (2, "GPU-0") in starts(one.decide(200.0)[1])
    assert [gpu.held_for for gpu in one.view(200.0).gpus] == [None, None]


def test_hold_of_a_withdrawn_task_ends():
    one = started(30000, patience_s=10.0)
    one.add(TaskAsk(task=1, gpu_mem_mib=30000), 0.0)
    one.decide(20.0)
    assert one.view(20.0).gpus[0].held_for == 1
    one.withdraw(1)
    assert one.view(21.0).gpus[0].held_for is None


# ---- What the board keeps ----


def test_siblings_of_a_task_that_ran_out_of_memory_get_its_floor_at_once():
    one = started(key("e"), estimator=Known({"e": 4000, "other": 4000}))
    one.add(TaskAsk(task=1, key=key("e")), 1.0)
    one.add(TaskAsk(task=2, key=key("other")), 1.0)
    grow(one, 0, 5000, 5.0)
    one.ended(oom(0, 6.0))
    floors = {task.ask.task: task.floor_mib for task in one.view(6.0).waiting}
    assert floors == {0: 8400, 1: 8400, 2: 0}
    one.add(TaskAsk(task=3, key=key("e")), 7.0)
    assert one.view(7.0).waiting[-1].floor_mib == 8400


def test_floor_is_forgotten_when_a_run_of_the_same_command_is_done():
    one = started(key("e"), estimator=Known({"e": 4000}))
    one.ended(oom(0, 6.0))
    one.decide(6.0)
    one.ended(done(0, 60.0))
    one.add(TaskAsk(task=1, key=key("e")), 61.0)
    assert one.view(61.0).waiting[0].floor_mib == 0


def test_task_that_could_not_be_started_waits_at_its_old_place_with_the_same_attempt():
    one = started(30000, 30000)
    one.put_back(0, 1.0)
    assert [(task.ask.task, task.attempt) for task in one.view(1.0).waiting] == [(0, 1), (1, 1)]
    assert one.free_workers == 64
    assert starts(one.decide(1.0)[1]) == [(0, "GPU-0")]


def test_memory_of_a_task_that_ended_is_free_before_the_next_figure_of_the_driver():
    one = started(30000, 30000)
    grow(one, 0, 29000, 5.0)
    one.sample_gpu("GPU-0", 5.0, used_mib=29000)
    one.ended(done(0, 5.5))
    assert starts(one.decide(5.5)[1]) == [(1, "GPU-0")]


def test_memory_of_others_that_grows_counts_a_fifth_more():
    one = board(1)
    one.sample_gpu("GPU-0", 0.0, used_mib=1000)
    assert one.view(0.0).gpus[0].others_mib == 1000
    one.sample_gpu("GPU-0", 30.0, used_mib=2000)
    assert one.view(30.0).gpus[0].others_mib == 2400
    one.sample_gpu("GPU-0", 95.0, used_mib=2000)
    assert one.view(95.0).gpus[0].others_mib == 2000


def test_what_other_launchers_use_is_theirs_and_not_a_strangers():
    one = board(1)
    one.note_elsewhere("GPU-0", 9000, 4000, 2)
    one.sample_gpu("GPU-0", 0.0, used_mib=4500)
    (gpu,) = one.view(0.0).gpus
    assert (gpu.others_mib, gpu.booked_elsewhere_mib, gpu.clients_elsewhere) == (500, 9000, 2)


def test_task_that_takes_all_it_is_given_at_once_keeps_its_reservation_and_tells_its_siblings_nothing():
    sizes = Known()
    one = started(key("jax", "f"), estimator=sizes)
    flat(one, 0, run_of(one, 0).reserved_mib + 400, 5, 70)
    assert run_of(one, 0).is_elastic
    assert all(action.reserve_mib >= 20000 for action in one.decide(70.0)[1].actions)
    assert sizes.siblings == {}


def test_estimates_are_asked_again_when_others_taught_the_estimator():
    sizes = Known()
    one = queued(key("e", "f"), estimator=sizes)
    assert one.view(0.0).waiting[0].estimates[0][1].safe_mib is None
    sizes.siblings["f"] = 7000
    one.learned("f")
    assert one.view(1.0).waiting[0].estimates[0][1].safe_mib == 7000


def test_only_the_window_is_looked_at_and_the_estimator_is_asked_once_for_the_same_command():
    sizes = Known({"e": 40000})
    one = queued(*(key("e") for task in range(100)), estimator=sizes, window=8)
    view, _ = one.decide(0.0)
    assert [task.ask.task for task in view.waiting] == list(range(8))
    assert sizes.asked == 1


def test_actions_of_a_journal_lead_to_the_same_state():
    first, second = board(2), board(2)
    for one in (first, second):
        for task in range(5):
            one.add(TaskAsk(task=task, gpu_mem_mib=15000), 0.0)
    _, decision = first.decide(0.0)
    second.apply(decision.actions, 0.0)
    assert first.view(1.0) == second.view(1.0)


def test_without_a_cap_and_without_neighbours_a_failure_is_one_with_a_gpu_to_itself():
    gpus = [facts(0, is_mps=False)]
    one = fill(Board(gpus, 8, PackSettings(), Known()), key("e"))
    one.decide(0.0)
    grow(one, 0, 39000, 5.0)
    after = one.ended(oom(0, 6.0))
    assert (after.kind, after.is_retried) == ("gpu memory", False)
    assert after.why.startswith("out of GPU memory with a GPU to itself (39.2 GiB)")


def test_on_a_gpu_of_unknown_size_a_task_has_no_cap_and_its_end_names_no_size():
    one = fill(Board([facts(0, None, is_mps=True)], 8, PackSettings(), Known()), key("e"))
    one.decide(0.0)
    assert run_of(one, 0).cap_mib is None
    after = one.ended(oom(0, 6.0))
    assert (after.is_retried, after.why) == (False, "out of GPU memory with a GPU to itself")


def test_memory_that_strangers_took_from_the_booked_is_not_the_tasks_own_failure():
    one = started(20000, 20000)
    grow(one, 0, 15000, 5.0)
    grow(one, 1, 15000, 5.0)
    one.sample_gpu("GPU-0", 5.0, used_mib=40500)  # a notebook of 10,500
    after = one.ended(oom(0, 6.0))
    assert (after.kind, after.is_retried) == ("neighbour's memory", True)


def test_a_gpu_closed_for_a_moment_is_no_reason_to_hold_another():
    one = started(*(key(f"e{task}", f"f{task}") for task in range(2)), patience_s=1.0)
    _, decision = one.decide(5.0)
    assert decision.actions == ()


def test_a_number_that_was_too_small_is_doubled_for_its_command_and_shrinks_when_flat():
    one = board(1, workers=1)
    for task, gpu_mem in enumerate((4000, 4000, 5000)):
        one.add(TaskAsk(task=task, key=key("e"), gpu_mem_mib=gpu_mem), 0.0)
    one.decide(0.0)
    one.ended(oom(0, 6.0))
    assert [task.floor_mib for task in one.view(6.0).waiting] == [8400, 8400, 0]
    one.add(TaskAsk(task=3, key=key("e"), gpu_mem_mib=4000), 6.0)
    assert one.view(6.0).waiting[-1].floor_mib == 8400
    one.decide(6.0)
    assert run_of(one, 0).reserved_mib == 8400
    flat(one, 0, 5000, 7, 80)
    one.decide(80.0)
    assert run_of(one, 0).reserved_mib == 5504

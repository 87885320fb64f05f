"""Properties of decisions in random states of GPUs, running tasks and waiting tasks."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import json
from msgspec.structs import replace
from packing_values import A100, Known, board, gpu, key, oom, running, starts, view, waiting

from slurm_share.lab.thesis_policies import decide
from slurm_share.packing.decision_records import GiveUp, Hold, Start
from slurm_share.packing.records import POLICIES, EndFacts, PackView, TaskAsk
from slurm_share.packing.rules import booked, room
from slurm_share.packing.rules.recover import FREE_TRIES
from slurm_share.packing.speed_records import Load

SIZES = st.integers(300, 45000)
RATIO = st.none() | st.floats(0, 1)


BOOKS = ("booked", "gain")
LOADS = st.none() | st.builds(Load, sm_ratio=st.floats(0, 1), dram_ratio=st.floats(0, 1), busy_ratio=st.floats(0, 1))


@st.composite
def gpus(draw):
    found = []
    for index in range(draw(st.integers(1, 4))):
        found.append(
            gpu(
                index,
                draw(st.sampled_from([16384, 40960, 81920])),
                is_mps=draw(st.booleans()),
                is_single=draw(st.sampled_from([False, False, False, True])),
                clients_max=draw(st.sampled_from([2, 48])),
                used_mib=draw(st.none() | st.integers(0, 16000)),
                others_mib=draw(st.sampled_from([0, 0, 500, 12000])),
                booked_elsewhere_mib=draw(st.sampled_from([0, 0, 0, 8000])),
                sm_ratio=draw(RATIO),
                dram_ratio=draw(RATIO),
                closed_until_s=draw(st.sampled_from([0.0, 0.0, 0.0, 150.0])),
                held_for=draw(st.sampled_from([None, None, None, 1])),
                problem=draw(st.sampled_from(["", "", "", "no daemon"])),
                can_measure=draw(st.sampled_from([True, True, True, False])),
                is_out=draw(st.sampled_from([False, False, False, True])),
            )
        )
    return found


@st.composite
def waits(draw, most=6):
    found = []
    for number in range(1, draw(st.integers(0, most)) + 1):
        size = draw(st.none() | SIZES)
        task = waiting(
            number,
            size,
            word=draw(st.sampled_from([None, None, None, 5000, 30000, 90000])),
            gpus=draw(st.sampled_from([1, 1, 1, 1, 2])),
            seconds=draw(st.none() | st.floats(1, 1000)),
            processes=draw(st.sampled_from([1, 1, 3])),
            wants_alone=draw(st.sampled_from([False, False, False, True])),
            after=draw(st.sampled_from(["", "", "gpu memory"])),
            waits_since_s=draw(st.sampled_from([0.0, 90.0])),
            floor_mib=draw(st.sampled_from([0, 0, 9000])),
            had_room_mib=draw(st.sampled_from([0, 0, 12000])),
            not_on=draw(st.sampled_from([(), (), ("GPU-0",)])),
        )
        load = draw(LOADS)
        task = replace(task, is_new=draw(st.booleans()))
        found.append(task if load is None else replace(task, loads=((A100, load),)))
    return found


@st.composite
def states(draw, policy=None, most=6):
    cards = draw(gpus())
    runs = []
    for number in range(draw(st.integers(0, 6))):
        reserved = draw(st.integers(300, 20000))
        on = draw(st.integers(0, len(cards) - 1))
        memory = draw(st.none() | st.integers(0, 22000))
        ends = draw(st.none() | st.floats(0, 2000))
        run = running(50 + number, on, reserved, memory=memory, ends_s=ends)
        paused, since_s = draw(st.sampled_from([False, False, True])), draw(st.sampled_from([None, 0.0]))
        is_new = draw(st.booleans())
        runs.append(replace(run, load=draw(LOADS), is_paused=paused, alone_since_s=since_s, is_new=is_new))
    return view(
        cards,
        draw(waits(most)),
        runs,
        now=draw(st.sampled_from([100.0, 700.0])),
        workers=draw(st.integers(0, 8)),
        policy=draw(st.sampled_from(policy if isinstance(policy, tuple) else (policy,) if policy else POLICIES)),
        uses_booking=draw(st.booleans()),
        order=draw(st.sampled_from(["fifo", "short", "long"])),
        guard=draw(st.sampled_from(["soft", "hard"])),
        max_per_gpu=draw(st.sampled_from([None, None, 2])),
    )


def on_gpu(state, uuid):
    return [task for task in state.running if uuid in task.gpus]


def gpu_of(state, uuid):
    return next(one for one in state.gpus if one.facts.uuid == uuid)


@given(states())
def test_the_same_view_gives_the_same_decision_also_after_a_journal(state):
    first = decide(state)
    read = json.decode(json.encode(state), type=PackView)
    assert json.encode(decide(read)) == json.encode(first) == json.encode(decide(state))


@given(states())
def test_each_task_starts_or_ends_once_and_never_beyond_the_free_workers(state):
    decision = decide(state)
    started = [one.task for one in decision.actions if isinstance(one, Start)]
    ended = [one.task for one in decision.actions if isinstance(one, GiveUp)]
    assert len(set(started + ended)) == len(started + ended)
    assert set(started + ended) <= {task.ask.task for task in state.waiting}
    assert len(started) <= state.free_workers


@given(states(policy=BOOKS))
def test_what_is_booked_never_exceeds_what_is_usable_but_by_growth(state):
    decision = decide(state)
    added = {}
    for one in decision.actions:
        if isinstance(one, Start):
            for uuid in one.gpus:
                added[uuid] = added.get(uuid, 0) + one.reserve_mib
    for uuid, mib in added.items():
        assert mib <= room.room(gpu_of(state, uuid), on_gpu(state, uuid))


@given(states(policy="magm").map(lambda one: replace(one, settings=replace(one.settings, uses_booking=True))))
def test_the_same_holds_for_the_thesis_policies_with_bookings(state):
    plain = [task for task in state.waiting if not (task.ask.gpus > 1 or task.wants_alone or task.after)]
    state = replace(state, waiting=tuple(plain))
    for one in decide(state).actions:
        if isinstance(one, Start):
            assert one.reserve_mib <= room.room(gpu_of(state, one.gpus[0]), on_gpu(state, one.gpus[0]))


@given(states())
def test_nothing_starts_on_a_gpu_that_is_out_has_a_problem_or_is_held_for_another(state):
    waits_for = {task.ask.task for task in state.waiting}
    known = {task.ask.task: task for task in state.waiting}
    for one in decide(state).actions:
        if not isinstance(one, Start):
            continue
        for uuid in one.gpus:
            card = gpu_of(state, uuid)
            assert not card.is_out
            assert not card.problem
            assert state.now_s >= card.closed_until_s
            if card.facts.is_single or not card.can_measure:
                assert not on_gpu(state, uuid)
            others = known[one.task].ask.task != card.held_for and card.held_for in waits_for
            if others and not any(isinstance(it, Start | GiveUp) and it.task == card.held_for
                                  for it in decide(state).actions):  # fmt: skip
                assert all(task.ends_s is not None for task in on_gpu(state, uuid))  # EASY backfill only


@given(states(policy=BOOKS))
def test_no_start_where_a_task_ran_out_of_memory_unless_there_is_more_room_now(state):
    known = {task.ask.task: task for task in state.waiting}
    for one in decide(state).actions:
        task = known.get(getattr(one, "task", None))
        if isinstance(one, Start) and task is not None and not one.is_alone:
            for uuid in set(one.gpus) & set(task.not_on):
                assert room.room(gpu_of(state, uuid), on_gpu(state, uuid)) >= task.floor_mib
                assert room.room(gpu_of(state, uuid), on_gpu(state, uuid)) > task.had_room_mib


@given(states(policy=BOOKS))
def test_no_task_waits_while_an_idle_gpu_fits_it(state):
    decision = decide(state)
    began = [one for one in decision.actions if isinstance(one, Start)]
    ended = {one.task for one in decision.actions if isinstance(one, GiveUp)}
    if state.free_workers <= len(began):
        return
    held = {one.facts.uuid for one in state.gpus if one.held_for is not None}
    held |= {one.gpu for one in decision.actions if isinstance(one, Hold)}
    taken = {uuid for one in began for uuid in one.gpus}
    idle = [
        one
        for one in state.gpus
        if not (on_gpu(state, one.facts.uuid) or one.facts.uuid in held | taken or one.is_out or one.problem)
        and state.now_s >= one.closed_until_s
        and not one.booked_elsewhere_mib
    ]
    for task in state.waiting:
        if task.ask.task in ended or any(one.task == task.ask.task for one in began):
            continue
        if task.ask.gpus > 1 or task.wants_alone or task.had_room_mib:
            continue
        (_, size) = task.estimates[0]
        for card in idle:
            usable = room.usable(card)
            needs = max(int(usable * 0.5) if size.safe_mib is None else size.safe_mib, task.floor_mib, 300)
            assert needs > usable


@given(states(policy="gain"))
def test_gain_starts_nobody_beside_tasks_that_booked_would_not_start_there(state):
    for task in state.waiting:
        alone = replace(state, waiting=(task,))
        for one in decide(alone).actions:
            if isinstance(one, Start):
                only = tuple(
                    card if card.facts.uuid in one.gpus else replace(card, problem="closed") for card in state.gpus
                )
                plain = replace(alone, gpus=only, settings=replace(state.settings, policy="booked"))
                assert starts(decide(plain)) == starts(decide(alone))


@given(states(policy=BOOKS), st.data())
def test_the_order_of_the_gpus_in_the_view_changes_nothing(state, data):
    shuffled = replace(state, gpus=tuple(data.draw(st.permutations(state.gpus))))
    assert decide(shuffled) == decide(state)


@given(states(policy=BOOKS, most=4), st.integers(1, 40000))
def test_more_memory_on_a_gpu_never_makes_a_task_wait(state, more):
    largest = max((room.capacity(card.facts) for card in state.gpus if not card.is_out), default=0)
    for task in state.waiting:
        if task.wants_alone or max(task.estimates[0][1].safe_mib or 0, task.floor_mib) > largest:
            continue
        alone = replace(state, waiting=(task,))
        if not starts(decide(alone)) or task.ask.gpus > 1:
            continue
        for card in state.gpus:
            larger = replace(card, facts=replace(card.facts, total_mib=card.facts.total_mib + more))
            cards = tuple(larger if one is card else one for one in state.gpus)
            assert starts(decide(replace(alone, gpus=cards)))


@given(states(policy=BOOKS))
def test_with_the_hard_guard_caps_and_reservations_of_new_tasks_are_the_same(state):
    state = replace(state, settings=replace(state.settings, guard="hard"))
    known = {task.ask.task: dict(task.estimates)["A100"].processes for task in state.waiting}
    for one in decide(state).actions:
        if isinstance(one, Start) and one.cap_mib is not None:
            assert one.cap_mib == max(one.reserve_mib // known[one.task], 300)


# ---- Whole runs on the board ----


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(500, 60000), st.integers(300, 60000)), min_size=1, max_size=12),
    st.integers(1, 3),
    st.sampled_from(POLICIES),
    st.integers(0, 2),
    st.randoms(use_true_random=False),
)
def test_every_task_of_a_random_mix_ends_in_bounded_attempts(mix, count, policy, retries, random):
    """Sizes are said wrongly by up to a factor of hundreds; a task dies at its cap, or when its GPU is full."""
    known = {f"e{number}": said for number, (said, _) in enumerate(mix)}
    one = board(count, estimator=Known(known), policy=policy, retries=retries, oom_retries=2)
    true = {number: needs for number, (_, needs) in enumerate(mix)}
    for number in true:
        one.add(TaskAsk(task=number, key=key(f"e{number}", f"f{number}")), 0.0)
    now, left, attempts = 0.0, set(true), dict.fromkeys(true, 0)
    for _ in range(2000):
        if not left:
            break
        _, decision = one.decide(now)
        for action in decision.actions:
            if isinstance(action, GiveUp):
                left.discard(action.task)
            elif isinstance(action, Start):
                attempts[action.task] += 1
        now += 100.0
        for run in sorted(one.view(now).running, key=lambda run: run.started_s):
            number, uuid = run.ask.task, run.gpus[0]
            beside = sum(true[other.ask.task] for other in one.view(now).running if uuid in other.gpus) - true[number]
            cap = run.cap_mib if run.cap_mib is not None else 40960
            limit = min(cap, 40960 - beside)
            memory = max(min(true[number], limit), 1)
            one.sample_task(number, {uuid: memory}, 1, now)
            if true[number] > limit:
                after = one.ended(oom(number, now))
                if not after.is_retried:
                    left.discard(number)
            elif random.random() < 0.5:
                assert one.ended(EndFacts(task=number, now_s=now, code=0)).kind == "done"
                left.discard(number)
        for card in one.view(now).gpus:
            one.sample_gpu(card.facts.uuid, now, used_mib=sum(
                run.memory_mib or 0 for run in one.view(now).running if card.facts.uuid in run.gpus))  # fmt: skip
    assert not left
    assert max(attempts.values()) <= 1 + retries + 3 + 3 * FREE_TRIES
    assert one.free_workers == 64
    assert not one.view(now).running


@given(states(policy=BOOKS, most=8))
def test_short_reasons_for_tasks_far_behind_change_no_action(state):
    rows = booked.DETAILED_ROWS
    try:
        booked.DETAILED_ROWS = 0
        short = decide(state)
        booked.DETAILED_ROWS = 1 << 30
        long = decide(state)
    finally:
        booked.DETAILED_ROWS = rows
    assert short.actions == long.actions

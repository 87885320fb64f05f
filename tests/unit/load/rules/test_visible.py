"""The part of a node's record that a user may see: the JSON that leaves has nothing of anybody else."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.core.metric import measured
from slurm_share.load import snapshot as snapshots
from slurm_share.load.rules.visible import BEFORE, OF_THE_GPU, OF_THE_NODE, OTHERS, OWN, for_user, for_user_by_jobs
from slurm_share.load.snapshot import (
    GpuBooking,
    GpuLoad,
    GpuUser,
    JobLoad,
    Means,
    OnGpu,
    ProcessLoad,
    Snapshot,
    UserLoad,
)
from slurm_share.node.gpu_figures import WINDOWED, Activity

ALICE, BOB, CAROL = 2001, 2002, 2003
NAMES = {ALICE: "alice", BOB: "bobby-tables", CAROL: "carolina"}


def gpu(uuid: str, clients: int | None, **fields: object) -> GpuLoad:
    values = {"index": 0, "name": "Fake", "memory_used_mib": 777, "utilization_percent": 50.0, **fields}
    return GpuLoad(uuid=uuid, clients=clients, **values)  # type: ignore[arg-type]


def process(pid: int, uid: int, *on: tuple[str, int | None]) -> ProcessLoad:
    gpus = tuple(OnGpu(uuid=uuid, memory_mib=mib) for uuid, mib in on)
    return ProcessLoad(pid=pid, name=f"prog-{uid}", uid=uid, user=NAMES[uid], job=uid * 10, gpus=gpus)


def node(gpus: tuple[GpuLoad, ...], processes: tuple[ProcessLoad, ...], **fields: object) -> Snapshot:
    uids = sorted({one.uid for one in processes})

    def mine(uid: int) -> tuple[str, ...]:
        return tuple({on.uuid: None for one in processes if one.uid == uid for on in one.gpus})

    jobs = tuple(JobLoad(job=uid * 10, uid=uid, user=NAMES[uid], gpus=mine(uid)) for uid in uids)
    users = tuple(UserLoad(uid=uid, user=NAMES[uid], jobs=(uid * 10,), gpus=mine(uid)) for uid in uids)
    values = {"node": "n1", "taken": 1.0, "cpus": 2, "cores": 2, "jobs": jobs, "users": users, **fields}
    return Snapshot(gpus=gpus, processes=processes, **values)  # type: ignore[arg-type]


def test_on_a_gpu_with_others_there_is_their_memory_and_no_more() -> None:
    people = (process(1, ALICE, ("GPU-a", 5)), process(2, BOB, ("GPU-a", 7)), process(3, CAROL, ("GPU-a", None)))
    seen = for_user(node((gpu("GPU-a", 3, others_mib=100),), people), ALICE, "alice")
    assert (seen.gpus[0].others_mib, seen.gpus[0].clients, seen.hidden_gpus) == (107, 1, 0)


def booking(uid: int, booked_mib: int) -> GpuBooking:
    return GpuBooking(uid=uid, job=uid * 10, booked_mib=booked_mib, tasks=1, held_for=3)


def test_bookings_are_the_users_own() -> None:
    both = (booking(ALICE, 100), booking(BOB, 7))
    gpus = (
        gpu("GPU-a", 2, booked_mib=107, bookings=both),
        gpu("GPU-b", 0, booked_mib=7, bookings=both[1:]),
        gpu("GPU-c", 0, booked_mib=100, bookings=both[:1]),
    )
    seen = for_user(node(gpus, (process(1, ALICE, ("GPU-a", 5)), process(2, BOB, ("GPU-a", 7)))), ALICE, "alice")
    assert [(one.booked_mib, one.bookings) for one in seen.gpus] == [(100, both[:1]), (None, ()), (100, both[:1])]
    assert "booked_mib" not in seen.gpus[1].unknown


def test_bookings_on_a_gpu_that_is_not_the_users_are_not_told() -> None:
    gpus = (gpu("GPU-a", 1, booked_mib=50), gpu("GPU-b", 0, booked_mib=7))
    seen = for_user_by_jobs(node(gpus, (process(1, ALICE, ("GPU-a", 5)),)), "alice")
    assert [(one.uuid, one.booked_mib) for one in seen.gpus] == [("GPU-a", 50), ("GPU-b", None)]


def test_a_gpu_whose_processes_are_not_told_may_be_somebodys() -> None:
    lost = gpu("GPU-b", None, memory_used_mib=None, utilization_percent=None, problem="GPU is lost")
    seen = for_user(node((gpu("GPU-a", None), lost, gpu("GPU-c", 1, others_mib=50)), ()), ALICE, "alice")
    assert [one.uuid for one in seen.gpus] == ["GPU-b"]
    assert seen.hidden_gpus == 2


ALL, MINE = Means(90, 90, 90, 900), Means(10, 10, 10, 30)


def worked(uuid: str, clients: int | None, *users: GpuUser, **fields: object) -> GpuLoad:
    values = {
        "utilization_percent_windows": ALL,
        "sm_percent_windows": ALL,
        "activity": Activity(sm_percent=80),
        "energy_j": 9e9,
        "power_w": 70.0,
        **fields,
    }
    return gpu(uuid, clients, users=users, **values)


def stay(uid: int, means: Means | None) -> GpuUser:
    return GpuUser(uid=uid, utilization_percent_windows=means, sm_percent_windows=means)


def test_a_gpu_without_gpm_hides_no_activity() -> None:
    windows = {"sm_percent_windows": None, "activity": Activity()}
    of_alice = GpuUser(uid=ALICE, utilization_percent_windows=MINE)
    seen = for_user(
        node((worked("GPU-a", 1, of_alice, **windows),), (process(1, ALICE, ("GPU-a", 5)),)), ALICE, "alice"
    )
    assert seen.gpus[0].utilization_percent_windows == MINE
    assert "activity" not in seen.gpus[0].unknown


def test_what_others_did_on_a_gpu_before_is_theirs() -> None:
    """A user's windows begin with the user; of a GPU that is free now there are the figures of now."""
    gpus = (worked("GPU-a", 1, stay(ALICE, MINE)), worked("GPU-b", 0, stay(BOB, ALL)), worked("GPU-c", 0))
    seen = for_user(node(gpus, (process(1, ALICE, ("GPU-a", 5)),)), ALICE, "alice")
    mine, his, free = seen.gpus
    assert (mine.utilization_percent_windows, mine.sm_percent_windows) == (MINE, MINE)
    assert (mine.activity.sm_percent, mine.energy_j) == (80, 9e9)
    for one in (his, free):
        assert (one.utilization_percent_windows, one.sm_percent_windows, one.energy_j) == (None, None, None)
        assert one.activity == Activity()
        assert [one.unknown[field] for field in ("utilization", "sm", "activity", "energy_j")] == [BEFORE] * 4
        assert (one.users, one.power_w, one.utilization_percent) == ((), 70.0, 50.0)


def test_when_others_left_a_gpu_is_theirs_and_that_it_is_free_for_ten_minutes_is_not() -> None:
    gpus = tuple(worked(f"GPU-{at}", 0, unused_s=unused_s) for at, unused_s in enumerate((599.0, 600.0, 871.0)))
    seen = for_user(node(gpus, ()), ALICE, "alice")
    assert [one.unused_s for one in seen.gpus] == [None, 600.0, 600.0]
    assert seen.gpus[0].unknown["unused_s"] == BEFORE


def test_who_has_just_come_has_no_means_yet() -> None:
    gpus = (worked("GPU-a", 1, stay(ALICE, None)),)
    (seen,) = for_user(node(gpus, (process(1, ALICE, ("GPU-a", 5)),)), ALICE, "alice").gpus
    assert (seen.utilization_percent_windows, seen.sm_percent_windows) == (None, None)
    assert (seen.activity, seen.unknown["sm"]) == (Activity(), BEFORE)


def test_between_two_tasks_a_user_keeps_the_windows() -> None:
    (seen,) = for_user(node((worked("GPU-a", 0, stay(ALICE, MINE)),), ()), ALICE, "alice").gpus
    assert (seen.utilization_percent_windows, seen.energy_j) == (MINE, None)


def test_on_a_shared_gpu_each_has_an_own_beginning() -> None:
    gpus = (worked("GPU-a", 2, stay(ALICE, MINE), stay(BOB, ALL)),)
    people = (process(1, ALICE, ("GPU-a", 5)), process(2, BOB, ("GPU-a", 7)))
    (seen,) = for_user(node(gpus, people), ALICE, "alice").gpus
    assert (seen.utilization_percent_windows, seen.users) == (MINE, (stay(ALICE, MINE),))


def test_a_lost_gpu_is_whose_it_was() -> None:
    nothing = {"memory_used_mib": None, "utilization_percent": None, "problem": "GPU is lost"}
    his, ours, nobodys = (
        worked(uuid, None, *users, **nothing)
        for uuid, users in (("GPU-a", (stay(BOB, ALL),)), ("GPU-b", (stay(ALICE, MINE), stay(BOB, ALL))), ("GPU-c", ()))
    )
    seen = for_user(node((his, ours, nobodys), ()), ALICE, "alice")
    assert [(one.uuid, one.utilization_percent_windows) for one in seen.gpus] == [("GPU-b", MINE), ("GPU-c", None)]
    assert seen.hidden_gpus == 1


def test_of_a_gpu_in_mig_mode_the_whole_is_hidden_where_a_part_is() -> None:
    """The parent's memory and load are mostly others'; with all its instances one's own they are shown."""
    means = Means(1, 1, 1, 60)
    parent = gpu(
        "GPU-a",
        0,
        mig_parent=True,
        utilization_percent_windows=means,
        sm_percent_windows=means,
        activity=Activity(sm_percent=9),
        power_w=300.0,
    )
    first, second = (gpu(f"MIG-{number}", 1, mig_of="GPU-a") for number in (1, 2))
    mine, his = process(1, ALICE, ("MIG-1", 5)), process(2, BOB, ("MIG-2", 7))
    seen = for_user(node((parent, first, second), (mine, his)), ALICE, "alice")
    assert [one.uuid for one in seen.gpus] == ["GPU-a", "MIG-1"]
    whole = seen.gpus[0]
    assert (whole.memory_used_mib, whole.power_w, whole.sm_percent_windows) == (None, None, None)
    assert whole.activity == Activity()
    assert (whole.unknown["power_w"], seen.hidden_gpus) == (OTHERS, 1)
    seen = for_user(node((parent, first), (mine,)), ALICE, "alice")
    assert (seen.gpus[0].power_w, seen.hidden_gpus) == (300.0, 0)
    seen = for_user(node((parent, first, second), (mine, his)), CAROL, "carolina")
    assert (seen.gpus, seen.hidden_gpus) == ((), 2)
    step_argv = process(3, CAROL, ("GPU-a", 1))
    seen = for_user(node((parent, first, second), (mine, his, step_argv)), CAROL, "carolina")
    assert [one.uuid for one in seen.gpus] == ["GPU-a"]


def test_a_problem_that_names_a_hidden_gpu_goes_with_it() -> None:
    problems = ("GPU-b is odd", "the driver was loaded anew")
    seen = for_user(node((gpu("GPU-b", 1),), (process(2, BOB, ("GPU-b", 7)),), problems=problems), ALICE, "alice")
    assert seen.problems == ("the driver was loaded anew",)


# ---- Whatever the node carries ----

UUIDS = tuple(f"GPU-{letter * 8}" for letter in "abcde")
PIDS = st.integers(1_000_000, 4_000_000)


@st.composite
def nodes(draw: st.DrawFn) -> Snapshot:
    uids = st.sampled_from((ALICE, BOB, CAROL))
    on = st.lists(
        st.tuples(st.sampled_from(UUIDS), st.none() | st.integers(1, 9)), max_size=3, unique_by=lambda x: x[0]
    )
    people = draw(st.lists(st.tuples(PIDS, uids, on), max_size=8, unique_by=lambda one: one[0]))
    processes = tuple(process(pid, uid, *gpus) for pid, uid, gpus in people)
    parents = draw(st.sets(st.sampled_from(UUIDS[:2])))
    gpus = []
    for number, uuid in enumerate(UUIDS):
        there = sum(on.uuid == uuid for one in processes for on in one.gpus)
        mig_of = draw(st.sampled_from(sorted(parents) or [None])) if number > 2 and draw(st.booleans()) else None
        told = draw(st.booleans())
        been = draw(st.lists(uids, max_size=3, unique=True))
        stays = tuple(stay(uid, Means(float(uid), 0, 0, 60)) for uid in been)
        gpus.append(worked(uuid, there if told else None, *stays, mig_parent=uuid in parents, mig_of=mig_of))
    return node(tuple(gpus), processes)


@given(nodes())
def test_nothing_of_another_user_leaves(everything: Snapshot) -> None:
    seen = for_user(everything, ALICE, "alice")
    text = snapshots.render(seen).decode()
    own = {on.uuid for one in everything.processes if one.uid == ALICE for on in one.gpus}
    for one in everything.processes:
        if one.uid == ALICE:
            continue
        for secret in (str(one.pid), one.user, one.name, str(one.uid), str(one.job)):
            assert not re.search(rf"(?<![0-9a-z.]){re.escape(secret)}(?![0-9a-z.])", text), secret
        for on in one.gpus:
            # Of a GPU in MIG mode that has an instance of ours the name stays, as that instance's parent.
            parent = any(gpu.mig_of == on.uuid and gpu.uuid in {shown.uuid for shown in seen.gpus} for gpu in seen.gpus)
            assert on.uuid in own or parent or on.uuid not in text
    shown = {one.uuid: one for one in seen.gpus}
    assert own <= shown.keys()
    for one in everything.gpus:
        others = sum(
            on.memory_mib or 0 for p in everything.processes if p.uid != ALICE for on in p.gpus if on.uuid == one.uuid
        )
        if one.uuid in shown and one.uuid in own and not one.mig_parent:
            assert shown[one.uuid].others_mib == others
    assert len(seen.whole_gpus) + seen.hidden_gpus == len(everything.whole_gpus)
    assert [one.pid for one in seen.processes] == [one.pid for one in everything.processes if one.uid == ALICE]


@given(nodes())
def test_seen_twice_is_the_same(everything: Snapshot) -> None:
    seen = for_user(everything, ALICE, "alice")
    assert for_user(seen, ALICE, "alice") == seen


# ---- Fields ----

COMPUTED = {
    Snapshot: {"view", "gpus", "processes", "jobs", "users", "hidden_gpus", "problems"},
    GpuLoad: {"activity", "bookings", "others_mib", "users", "unknown", *(one.windows for one in WINDOWED)},
}
"""What a user is shown in another form than root."""
HIDDEN = {Snapshot: {"gpu_sums"}}
"""What no user is shown."""


def declared(record: type[msgspec.Struct]) -> set[str]:
    """Fields that somebody declared as shown, hidden or cut."""
    by_metric = {one.name for one in measured(record)} if record in (GpuLoad, Activity) else set()
    by_name = {Snapshot: OF_THE_NODE, GpuLoad: OF_THE_GPU}.get(record, OWN.get(record, ()))
    return by_metric | set(by_name) | COMPUTED.get(record, set()) | HIDDEN.get(record, set())


@pytest.mark.parametrize("record", [Snapshot, GpuLoad, Activity, *OWN])
def test_each_field_is_declared_as_shown_or_not(record: type[msgspec.Struct]) -> None:
    assert declared(record) == set(record.__struct_fields__)


class NewGpu(GpuLoad, frozen=True, gc=False, kw_only=True):
    """A GPU with fields that nobody declared."""

    secret: str = ""


class NewJob(JobLoad, frozen=True, gc=False, kw_only=True):
    secret: str = ""


class NewSnapshot(Snapshot, frozen=True, gc=False, kw_only=True):
    secret: str = ""


def test_a_field_that_nobody_declared_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide it on a node, on a job, and on a GPU that is one's own, free, or used in part by others."""
    monkeypatch.setitem(OWN, NewJob, OWN[JobLoad])
    values = {"index": 0, "name": "Fake", "secret": "s3cret"}
    gpus = (
        NewGpu(uuid="GPU-a", clients=1, **values),
        NewGpu(uuid="GPU-b", clients=0, **values),
        NewGpu(uuid="GPU-c", clients=0, mig_parent=True, **values),
        NewGpu(uuid="MIG-1", clients=1, mig_of="GPU-c", **values),
        NewGpu(uuid="MIG-2", clients=1, mig_of="GPU-c", **values),
    )
    people = (process(1, ALICE, ("GPU-a", 5), ("MIG-1", 5)), process(2, BOB, ("MIG-2", 7)))
    job = NewJob(job=1, uid=ALICE, user="alice", secret="s3cret")
    whole = NewSnapshot(
        node="n1", taken=1.0, cpus=2, cores=2, gpus=gpus, processes=people, jobs=(job,), secret="s3cret"
    )
    assert snapshots.render(whole).count(b"s3cret") == 7
    seen = for_user(whole, ALICE, "alice")
    assert [one.uuid for one in seen.gpus] == ["GPU-a", "GPU-b", "GPU-c", "MIG-1"]
    assert len(seen.jobs) == 1
    assert b"s3cret" not in snapshots.render(seen)


def test_of_a_gpu_that_others_use_in_part_only_what_it_is_is_shown() -> None:
    figures = {one.name: 7 for one in measured(GpuLoad) if not one.is_windows}
    parent = GpuLoad(uuid="GPU-a", index=0, name="Fake", mig_parent=True, others_mib=7, **figures)
    instances = tuple(gpu(f"MIG-{number}", 1, mig_of="GPU-a") for number in (1, 2))
    people = (process(1, ALICE, ("MIG-1", 5)), process(2, BOB, ("MIG-2", 7)))
    shown = for_user(node((parent, *instances), people), ALICE, "alice").gpus[0]
    assert msgspec.structs.replace(shown, unknown={}) == GpuLoad(
        uuid="GPU-a", index=0, name="Fake", mig_parent=True, memory_total_mib=7
    )
    assert {shown.unknown[one.json] for one in measured(GpuLoad) if one.name != "memory_total_mib"} == {OTHERS}

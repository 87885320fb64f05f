"""The ledger as jobs come and go."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_share.core.records import ProcessIdentity, ShareRequest
from slurm_share.node.records import Gpu
from slurm_share.share.records import Grant, Leaving, Ledger, LedgerJob, UserRemains
from slurm_share.share.rules import reconcile
from slurm_share.slurm.records import JobContext

NOW = 1000.0
"""Long after all that is in these ledgers."""
GPU = Gpu("GPU-0", 0, 0, "H100", 81920)


def context(job_id, uid=2001, restart=0, exclusive=None):
    return JobContext(job_id, uid, uid, "n1", ("0",), ShareRequest(4), restart_count=restart, exclusive=exclusive)


def held(*entries):
    """Return a ledger of (job, uid, GPUs)."""
    return Ledger("b", tuple(LedgerJob(job_id, uid, "4", gpus, 4, 0.0, 1) for job_id, uid, gpus in entries))


@pytest.mark.parametrize(
    ("arrival", "granted", "live", "stale"),
    [
        (context(9, exclusive="node"), (), (), [1, 2, 3]),
        (context(9, exclusive="node"), (), (2,), [1, 3]),
        (context(9, uid=2001, exclusive="user"), (), (), [3]),
        (context(9, uid=2002), ("GPU-1",), (), [2]),
        (context(9, uid=2002), ("GPU-1",), (2,), []),
        (context(9), ("GPU-1",), (), []),
        (context(9), ("GPU-1", "GPU-7"), (), [2]),
        (context(9), (), (), []),
        (context(1, exclusive="node"), (), (2, 3), []),
    ],
)
def test_an_arrival_proves_others_over(arrival, granted, live, stale):
    """Slurm gives a whole node, a user's node or a GPU to another user only after the previous job has ended. A GPU
    that the same user gets again may be shared with his earlier job."""
    ledger = held((1, 2001, ("GPU-0",)), (2, 2001, ("GPU-1",)), (3, 2002, ("GPU-2",)))
    assert [entry.job_id for entry in reconcile.stale(ledger, arrival, None, granted, live, NOW)] == stale


def test_a_gpu_is_free_when_no_other_job_has_it():
    ledger = held((1, 2001, ("GPU-0", "GPU-1")), (2, 2001, ("GPU-1",)))
    assert reconcile.is_in_use(reconcile.leave(ledger, 1), "GPU-1")
    assert not reconcile.is_in_use(reconcile.leave(ledger, 1), "GPU-0")


def test_the_epilog_of_an_earlier_run_is_late():
    entry = held((1, 2001, ("GPU-0",))).jobs[0]
    assert reconcile.is_late(entry, context(1, restart=0))
    assert not reconcile.is_late(entry, context(1, restart=1))
    assert not reconcile.is_late(entry, context(1, restart=None))
    assert not reconcile.is_late(None, context(1))


def test_the_first_compute_mode_is_the_one_to_put_back():
    ledger = reconcile.remember_mode(reconcile.remember_mode(Ledger("b"), "GPU-0", 0), "GPU-0", 3)
    assert [(before.gpu, before.mode) for before in ledger.modes] == [("GPU-0", 0)]
    assert reconcile.forget_mode(ledger, "GPU-0").modes == ()


@pytest.mark.parametrize(
    ("job", "has_step"),
    [
        (replace(context(9), nodes=1, is_batch=True), True),
        (replace(context(9), nodes=1, direct=True), True),
        (replace(context(9), nodes=1), False),
        (replace(context(9), nodes=2, is_batch=True), False),
        (replace(context(9), is_batch=True), False),
    ],
    ids=["a script", "srun alone", "salloc", "a script of two nodes", "nodes not told"],
)
def test_a_script_or_an_srun_on_one_node_has_a_step_there_until_its_end(job, has_step):
    assert reconcile.enter(Ledger("b"), job, None, NOW).jobs[0].has_step is has_step


@pytest.mark.parametrize(
    ("entry", "slurmd_start", "live", "is_over"),
    [
        ({}, 501.0, (), True),
        ({}, 501.0, (1,), False),
        ({}, 499.0, (), False),
        ({}, None, (), False),
        ({"has_step": False}, 501.0, (), False),
        ({"since": NOW - 29.0}, NOW - 1.0, (), False),
    ],
    ids=["slurmd is younger", "it has a step", "its slurmd lives", "no slurmd is known", "salloc", "just begun"],
)
def test_a_job_without_the_step_that_it_should_have_is_over_when_its_slurmd_is_gone(entry, slurmd_start, live, is_over):
    """The next job of the same user leaves room for it on its GPU. While its slurmd lives, the step may still come."""
    ledger = held((1, 2001, ("GPU-0",)))
    ledger = replace(ledger, jobs=(replace(ledger.jobs[0], **{"since": 500.0, "has_step": True, **entry}),))
    found = reconcile.stale(ledger, context(9, exclusive="user"), None, ["GPU-0"], live, NOW, slurmd_start)
    assert [one.job_id for one in found] == ([1] if is_over else [])


# --- parts of a GPU ------------------------------------------------------------------------------------------------


def share_of(gpu, job_id, per_gpu, *, is_part=True, uid=2001):
    """Return the grant of a job that has one of `per_gpu` parts of a GPU, or the whole GPU."""
    gpu = Gpu(gpu, 0, 0, "H100", 81920)
    job = replace(context(job_id, uid=uid, exclusive="user"), share=ShareRequest(per_gpu))
    return Grant(job, ShareRequest(per_gpu), (gpu,), 1 if is_part else per_gpu, is_part, "mps")


def parts(*entries):
    """Return a ledger of (job, share, GPU, number on it), the oldest first; the number None: it has the whole GPU."""
    jobs = (LedgerJob(job, 2001, share, (gpu,), 1, float(job), on_gpu=on_gpu) for job, share, gpu, on_gpu in entries)
    return Ledger("b", tuple(jobs))


@pytest.mark.parametrize(
    ("share", "on_gpu", "part"),
    [
        ("4", 0, 0.25),
        ("4,mem=8192M,sm=25", 3, 0.25),
        ("60", 59, 1 / 60),
        ("2", 1, 0.5),
        ("4", None, 1.0),
        ("1", None, 1.0),
        ("", None, 1.0),
    ],
)
def test_a_job_with_a_number_on_its_gpu_has_one_nth_of_it(share, on_gpu, part):
    assert reconcile.part(LedgerJob(7, 2001, share, ("GPU-0",), 1, 0.0, on_gpu=on_gpu)) == pytest.approx(part)


@pytest.mark.parametrize(
    ("there", "wanted", "crowded"),
    [
        ((), share_of("GPU-0", 9, 4), False),
        ((), share_of("GPU-0", 9, 4, is_part=False), False),
        (((1, "2", "GPU-0", 0),), share_of("GPU-0", 9, 2), False),
        (((1, "2", "GPU-0", 0), (2, "2", "GPU-0", 1)), share_of("GPU-0", 9, 2), True),
        (((1, "3", "GPU-0", 0), (2, "3", "GPU-0", 1)), share_of("GPU-0", 9, 3), False),
        (((1, "2", "GPU-0", 0), (2, "4", "GPU-0", 1)), share_of("GPU-0", 9, 4), False),
        (((1, "2", "GPU-0", 0), (2, "4", "GPU-0", 1)), share_of("GPU-0", 9, 3), True),
        (((1, "2", "GPU-0", 0), (2, "3", "GPU-0", 1)), share_of("GPU-0", 9, 6), False),
        (((1, "2", "GPU-0", 0), (2, "3", "GPU-0", 1)), share_of("GPU-0", 9, 5), True),
        (((1, "60", "GPU-0", 0),), share_of("GPU-0", 9, 4, is_part=False), True),
        (((1, "4", "GPU-0", None),), share_of("GPU-0", 9, 60), True),
        (((1, "4", "GPU-0", None),), share_of("GPU-0", 9, 4, is_part=False), True),
        (((1, "4", "GPU-1", None),), share_of("GPU-0", 9, 4, is_part=False), False),
        (((1, "2", "GPU-1", 0), (2, "2", "GPU-1", 1)), share_of("GPU-0", 9, 2), False),
        (((9, "4", "GPU-0", None),), share_of("GPU-0", 9, 4, is_part=False), False),
    ],
)
def test_a_gpu_is_crowded_when_its_parts_are_more_than_the_whole(there, wanted, crowded):
    """Thirds add up to one; parts of different sizes fit together; a whole GPU leaves no part, and a part leaves no
    whole GPU. Other GPUs do not count, nor does an earlier entry of the job itself."""
    assert reconcile.is_crowded(parts(*there), wanted) is crowded


def test_n_parts_fill_a_gpu_whatever_n():
    for per_gpu in range(1, 61):
        ledger = parts(*((number, str(per_gpu), "GPU-0", number) for number in range(per_gpu)))
        assert reconcile.is_crowded(ledger, share_of("GPU-0", 99, per_gpu)), per_gpu
        assert not reconcile.is_crowded(reconcile.leave(ledger, 0), share_of("GPU-0", 99, per_gpu)), per_gpu


@pytest.mark.parametrize("gpus", [("GPU-0", "GPU-1"), ("GPU-1", "GPU-0")])
def test_one_crowded_gpu_among_several_is_enough(gpus):
    wanted = share_of("GPU-0", 9, 4, is_part=False)
    wanted = replace(wanted, gpus=tuple(Gpu(uuid, 0, 0, "H100", 81920) for uuid in gpus))
    assert reconcile.is_crowded(parts((1, "4", "GPU-1", 0)), wanted)


@pytest.mark.parametrize(
    ("there", "number"),
    [
        (((9, "4", "GPU-0", 2), (1, "4", "GPU-0", 0)), 1),
        (((9, "4", "GPU-0", 0),), 0),
        (((1, "4", "GPU-0", 0), (2, "3", "GPU-0", 1), (3, "6", "GPU-0", 5)), 1),
    ],
    ids=["its own entry does not count", "it keeps its number", "parts of other sizes overlap with every free one"],
)
def test_a_part_gets_the_lowest_free_number_on_its_gpu(there, number):
    assert reconcile.free_part(parts(*there), share_of("GPU-0", 9, 4)) == number


FOUR = tuple((number, "4", "GPU-0", number - 1) for number in range(1, 5))


@pytest.mark.parametrize(
    ("there", "wanted", "live", "stale"),
    [
        (FOUR, share_of("GPU-0", 9, 4), (), [1]),
        (FOUR, share_of("GPU-0", 9, 4), (1,), [2]),
        (FOUR, share_of("GPU-0", 9, 4), (1, 2, 3), [4]),
        (FOUR, share_of("GPU-0", 9, 4), (1, 2, 3, 4), []),
        (FOUR[:3], share_of("GPU-0", 9, 4), (), []),
        (FOUR, share_of("GPU-0", 9, 2), (), [1, 2]),
        (FOUR, share_of("GPU-0", 9, 2), (2,), [1, 3]),
        (FOUR, share_of("GPU-0", 9, 4, is_part=False), (), [1, 2, 3, 4]),
        (FOUR, share_of("GPU-1", 9, 4, is_part=False), (), []),
        (FOUR, share_of("GPU-0", 3, 4), (), []),
        (((5, "4", "GPU-0", None),), share_of("GPU-0", 9, 4), (), [5]),
        (((5, "4", "GPU-0", None),), share_of("GPU-0", 9, 4), (5,), []),
        (((5, "4", "GPU-0", None),), share_of("GPU-0", 9, 4, is_part=False), (), [5]),
        (((*FOUR, (5, "4", "GPU-1", None))), share_of("GPU-1", 9, 4), (), [5]),
    ],
)
def test_an_arrival_proves_over_what_leaves_it_no_room(there, wanted, live, stale):
    """Slurm has counted the parts and gave this job one: as many of the oldest entries without a step as necessary have
    ended. For a whole GPU all on it have ended. Jobs with a step, and jobs on other GPUs, stay."""
    found = reconcile.stale(parts(*there), wanted.job, wanted, [gpu.uuid for gpu in wanted.gpus], live, NOW)
    assert [entry.job_id for entry in found] == stale


@pytest.mark.parametrize("live", [(5,), (1, 2, 5)])
def test_where_no_room_can_be_made_nobody_is_cleared_away(live):
    """A live job has what the arriving job wants, so that is refused. It proves nothing about the others, which may be
    between two steps."""
    ledger = parts((1, "4", "GPU-0", 0), (2, "4", "GPU-0", 1), (5, "2", "GPU-0", 2))
    wanted = share_of("GPU-0", 9, 4, is_part=False)
    assert reconcile.stale(ledger, wanted.job, wanted, ["GPU-0"], live, NOW) == ()


def test_the_oldest_is_told_by_its_time_and_not_by_its_line():
    ledger = parts(FOUR[2], FOUR[0], FOUR[3], FOUR[1])
    found = reconcile.stale(ledger, share_of("GPU-0", 9, 4).job, share_of("GPU-0", 9, 4), ["GPU-0"], (), NOW)
    assert [entry.job_id for entry in found] == [1]


def test_parts_of_another_user_are_over_when_a_part_arrives():
    wanted = share_of("GPU-0", 9, 4, uid=2002)
    found = reconcile.stale(parts(*FOUR[:2]), wanted.job, wanted, ["GPU-0"], (2,), NOW)
    assert [entry.job_id for entry in found] == [1]


def test_a_job_without_a_share_proves_no_part_of_the_same_user_over():
    ordinary = replace(context(9, exclusive="user"), share=None)
    assert reconcile.stale(parts(*FOUR), ordinary, None, ["GPU-0"], (), NOW) == ()


def test_a_part_that_has_only_just_begun_is_in_nobodys_way():
    wanted = share_of("GPU-0", 9, 4)
    ledger = parts(*FOUR)
    assert len(reconcile.stale(ledger, wanted.job, wanted, ["GPU-0"], (), NOW)) == 1
    young = replace(ledger, jobs=tuple(replace(entry, since=NOW - 29.0) for entry in ledger.jobs))
    assert reconcile.stale(young, wanted.job, wanted, ["GPU-0"], (), NOW) == ()


@pytest.mark.parametrize(("live", "is_over"), [((), True), ((5,), False)])
def test_a_whole_gpu_is_given_in_parts_only_when_its_job_is_over_however_young(live, is_over):
    """A slurmctld that was killed has forgotten the job, and gives its GPU away a moment later."""
    wanted, ledger = share_of("GPU-0", 9, 4), parts((5, "2", "GPU-0", None))
    young = replace(ledger, jobs=tuple(replace(entry, since=NOW - 12.0) for entry in ledger.jobs))
    found = reconcile.stale(young, wanted.job, wanted, ["GPU-0"], live, NOW)
    assert [entry.job_id for entry in found] == ([5] if is_over else [])


def test_what_remains_concerns_the_entries_of_its_user_gpu_and_job_and_is_logged_once_a_day():
    hook = ProcessIdentity(7)
    first, second, others = (
        LedgerJob(1, 2001, "2", ("GPU-a",), 2, 0.0),
        LedgerJob(2, 2001, "2", ("GPU-b",), 2, 0.0),
        LedgerJob(3, 2002, "2", ("GPU-a",), 2, 0.0),
    )
    over = (first, second, others)
    ledger = Ledger("b", leaving=tuple(Leaving(one, hook) for one in over))
    of_gpu, of_job = UserRemains(2001, "busy", gpu="GPU-a"), UserRemains(2001, "full", job_id=2)
    assert [reconcile.remaining(one, [of_gpu, of_job]) for one in over] == ["busy", "full", ""]
    assert [reconcile.remaining(one, [UserRemains(2001, "x")]) for one in over] == ["x", "x", ""]
    ledger, said = reconcile.note_remains(ledger, over, [of_gpu], 100.0)
    assert [(one.job.job_id, one.why) for one in said] == [(1, "busy")]
    assert reconcile.with_noted_remains(ledger) == {first}
    for remains, now, logged in (
        (of_gpu, 200.0, []),
        (UserRemains(2001, "other", gpu="GPU-a"), 300.0, [1]),
        (UserRemains(2001, "other", gpu="GPU-a"), 300.0 + reconcile.AGAIN_S, [1]),
    ):
        ledger, said = reconcile.note_remains(ledger, over, [remains], now)
        assert [one.job.job_id for one in said] == logged
    again = reconcile.begin_leaving(ledger, [first], ProcessIdentity(8))
    assert reconcile.with_noted_remains(again) == {first}

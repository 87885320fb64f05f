"""The GPU that each policy of the literature chooses, in states with one expected answer.

Definitions: Yousefzadeh 2025, 6.2.2 (exclusive, RR, MAGM, LUG, MUG) and 6.3.3 (first, best and worst fit, and LUG with
true sizes), with the conditions of Tables 6.3 to 6.6.
"""

import pytest
from packing_values import gpu, running, starts, view, waiting

from slurm_share.lab.thesis_policies import decide

NONE = {"smact_max": None, "free_min_mib": None}
"""RR and MAGM of Table 6.3 without conditions."""


def busy(index, used, sm=0.5, **fields):
    """A GPU with one task of ours that has all memory in use."""
    return gpu(index, used_mib=used, sm_ratio=sm, **fields)


def task_on(index, mib, number=None):
    return running(100 + index if number is None else number, index, mib, memory=mib)


def used(*gpus):
    """Return GPUs with one task of ours each, and these tasks. A GPU: MiB in use, SM activity."""
    return (
        [busy(index, mib, sm) for index, (mib, sm) in enumerate(gpus)],
        [task_on(index, mib) for index, (mib, _) in enumerate(gpus)],
    )


TWO = used((30000, 0.2), (20000, 0.7))
THREE = used((30000, 0.7), (20000, 0.5), (10000, 0.6))


def idle(index, used=400, sm=0.0, **fields):
    return gpu(index, used_mib=used, sm_ratio=sm, **fields)


TABLE = {
    # name: policy, gpus, running, waiting task, settings, expected index or None
    "exclusive takes the lowest idle GPU": ("exclusive", [*TWO[0], idle(2), idle(3)], TWO[1], waiting(1), {}, 2),
    "exclusive waits without an idle GPU": ("exclusive", *TWO, waiting(1), {}, None),
    "exclusive takes a GPU however full a notebook has it": (
        "exclusive", [idle(0, used=30000, others_mib=30000)], [], waiting(1), {}, 0,
    ),
    "rr goes on after the GPU given last": ("rr", *THREE, waiting(1), {**NONE, "last_gpu": 0}, 1),
    "rr begins again after the last GPU": ("rr", *THREE, waiting(1), {**NONE, "last_gpu": 2}, 0),
    "rr begins with the first GPU": ("rr", [idle(0), idle(1)], [], waiting(1), NONE, 0),
    "rr takes a full GPU, without conditions": ("rr", *used((40900, 1.0)), waiting(1), NONE, 0),
    "rr passes over a busy GPU, with a condition on SM": (
        "rr", [busy(0, 20000, 0.9), busy(1, 20000, 0.5)], TWO[1], waiting(1), {}, 1,
    ),
    "rr takes a GPU without a task first": ("rr", [*TWO[0], idle(2)], TWO[1], waiting(1), {**NONE, "last_gpu": 0}, 2),
    "magm takes most free memory": ("magm", *THREE, waiting(1), {}, 2),
    "magm takes a GPU without a task before a roomier one": (
        "magm", [busy(0, 1000), idle(1, used=20000, others_mib=20000)], [task_on(0, 1000)], waiting(1), {}, 1,
    ),
    "magm takes the roomiest of those without a task": (
        "magm", [idle(0, used=9000, others_mib=9000), idle(1)], [], waiting(1), {}, 1,
    ),
    "magm wants 5 GiB free": ("magm", *used((36000, 0.5)), waiting(1), {}, None),
    "magm wants 2 GiB free, as of Tables 6.5 and 6.6": (
        "magm", *used((36000, 0.5)), waiting(1), {"free_min_mib": 2048}, 0,
    ),
    "magm wants SM activity of 80 % at most": ("magm", *used((1000, 0.81), (30000, 0.8)), waiting(1), {}, 1),
    "magm with 85 % takes the busier one": (
        "magm", *used((1000, 0.81), (30000, 0.8)), waiting(1), {"smact_max": 0.85}, 0,
    ),
    "magm without conditions takes a full GPU": ("magm", *used((40000, 1.0)), waiting(1), NONE, 0),
    "magm with an estimate wants that much free, not 5 GiB": ("magm", *used((38000, 0.5)), waiting(1, 2900), {}, 0),
    "magm with an estimate waits for that much": ("magm", *used((30000, 0.5)), waiting(1, 12000), {}, None),
    "magm sees free memory, not bookings": (
        "magm", [busy(0, 5000), busy(1, 9000)], [running(100, 0, 39000, memory=5000), task_on(1, 9000)],
        waiting(1), {}, 0,
    ),
    "magm,book sees bookings": (
        "magm", [busy(0, 5000), busy(1, 9000)], [running(100, 0, 39000, memory=5000), task_on(1, 9000)],
        waiting(1), {"uses_booking": True}, 1,
    ),
    "magm,book wants what an unknown task reserves": (
        "magm", [busy(0, 9000)], [running(100, 0, 30000, memory=9000)], waiting(1), {"uses_booking": True}, None,
    ),
    "lug takes least SM activity": ("lug", *THREE, waiting(1), {}, 1),
    "lug takes a GPU without a task before a less used one": (
        "lug", [busy(0, 1000, 0.1), idle(1, sm=0.3)], [task_on(0, 1000)], waiting(1), {}, 1,
    ),
    "lug of equals takes the lower index": ("lug", *used((2000, 0.4), (1000, 0.4)), waiting(1), {}, 0),
    "lug wants 5 GiB free": ("lug", *used((38000, 0.1), (30000, 0.6)), waiting(1), {}, 1),
    "lug with unknown activity takes a GPU that is known": ("lug", *used((1000, None), (1000, 0.7)), waiting(1), {}, 1),
    "mug takes least free memory that fits": ("mug", *THREE, waiting(1), {}, 0),
    "mug takes a GPU with tasks before one without": (
        "mug", [idle(0), busy(1, 10000)], [task_on(1, 10000)], waiting(1), {}, 1,
    ),
    "mug takes a GPU without a task where no other fits": (
        "mug", [idle(0), busy(1, 39000)], [task_on(1, 39000)], waiting(1), {}, 0,
    ),
    "first fit takes the first": ("first-fit", *THREE, waiting(1, 8000), {}, 0),
    "first fit wants 2 GiB beyond the size": ("first-fit", *THREE, waiting(1, 9000), {}, 1),
    "first fit takes a GPU without a task before": (
        "first-fit", [*THREE[0], idle(3)], THREE[1], waiting(1, 8000), {}, 3,
    ),
    "best fit takes least free memory": ("best-fit", *THREE, waiting(1, 8000), {}, 0),
    "best fit passes over one that is too full": ("best-fit", *THREE, waiting(1, 18000), {}, 1),
    "worst fit takes most free memory": ("worst-fit", *THREE, waiting(1, 8000), {}, 2),
    "worst fit passes over a busy GPU": (
        "worst-fit", [busy(0, 20000, 0.5), busy(1, 5000, 0.9)], TWO[1], waiting(1, 8000), {}, 0,
    ),
    "a task as large as the GPU starts on an idle one": ("worst-fit", [idle(0)], [], waiting(1, 39500), {}, 0),
    "oracle lug takes least SM activity among those that fit": ("oracle-lug", *THREE, waiting(1, 8000), {}, 1),
    "oracle lug wants the size and 2 GiB": ("oracle-lug", *THREE, waiting(1, 19500), {}, 2),
    "SM condition does not stop a task on an idle GPU": ("magm", [idle(0, sm=0.95)], [], waiting(1), {}, 0),
    "unknown SM activity does not stop a task": ("magm", *used((1000, None)), waiting(1), {}, 0),
    "recovery takes only an idle GPU": (
        "magm", *used((1000, 0.5)), waiting(1, after="gpu memory", wants_alone=True), {}, None,
    ),
    "recovery takes the idle GPU": (
        "magm", [busy(0, 1000), idle(1)], [task_on(0, 1000)], waiting(1, after="gpu memory"), {}, 1,
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


STATES = {
    "thesis policies go in order and a large task stops those behind": (
        view([busy(0, 20000)], [waiting(1, 30000), waiting(2, 1000)], [task_on(0, 20000)], policy="worst-fit"), [],
    ),
    "one decision starts one task on a gpu since free memory lags behind": (
        view([idle(0), idle(1)], [waiting(number) for number in range(4)], policy="magm"), [(0, 0), (1, 1)],
    ),
}  # fmt: skip
"""State -> (task, GPU index) of each start."""


@pytest.mark.parametrize("name", STATES)
def test_starts(name):
    state, expected = STATES[name]
    assert [(task, int(uuid.removeprefix("GPU-"))) for task, uuid in starts(decide(state))] == expected


# ---- First in, first out, and recovery, of the thesis ----


def test_recovery_goes_first_and_stops_the_queue_until_a_gpu_is_idle():
    waits = [waiting(1, 1000), waiting(2, 1000, after="gpu memory")]
    full = view([busy(0, 1000)], waits, [task_on(0, 1000)], policy="magm")
    assert starts(decide(full)) == []
    empty = view([idle(0), busy(1, 1000)], waits, [task_on(1, 1000)], policy="magm")
    decision = decide(empty)
    assert starts(decision) == [(2, "GPU-0"), (1, "GPU-1")]
    assert decision.actions[0].is_alone


def test_policies_of_the_thesis_set_no_cap_and_those_with_bookings_do():
    plain = decide(view([idle(0)], [waiting(1, 4000)], policy="magm")).actions[0]
    book = decide(view([idle(0)], [waiting(1, 4000)], policy="magm", uses_booking=True)).actions[0]
    assert (plain.reserve_mib, plain.cap_mib) == (4000, None)
    assert (book.reserve_mib, book.cap_mib) == (4000, 5024)

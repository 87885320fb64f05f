"""Which GPUs, which slot where, and whether a job has a part of one."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from slurm_share.decide import place
from slurm_share.records import Gpu, JobContext, ShareRequest
from slurm_share.settings import Settings

GPUS = tuple(Gpu(f"GPU-{i}", i, i, "H100", 81920) for i in range(2))
PART = JobContext(7, 2001, 2001, "n1", ("0",), ShareRequest(4), exclusive="user", tasks=1, nodes=1)


@pytest.mark.parametrize(
    ("changes", "is_part"),
    [
        ({}, True),
        ({"share": ShareRequest(2, mem_mib=8192, sm=10, mps=True)}, True),
        ({"granted": ("GPU-0",)}, True),
        ({"nodes": None}, True),
        ({"share": ShareRequest(1)}, False),
        ({"share": ShareRequest(1, sm=25)}, False),
        ({"share": None}, False),
        ({"tasks": None}, False),
        ({"tasks": 2}, False),
        ({"tasks": 0}, False),
        ({"nodes": 2}, False),
        ({"nodes": 0}, False),
        ({"granted": ()}, False),
        ({"granted": ("0", "1")}, False),
        ({"exclusive": None}, False),
        ({"exclusive": "node"}, False),
        ({"direct": True}, False),
    ],
)
def test_a_part_is_one_task_on_one_gpu_of_a_users_node(changes, is_part):
    """Every word of it counts: N above 1, one task, one node, one GPU, a node of one user, and not srun alone."""
    assert place.is_part(replace(PART, **changes)) is is_part


def test_no_other_job_is_a_part():
    """Over every combination of what a hook is told, exactly those with all of it are."""
    values = itertools.product(
        (None, ShareRequest(1), ShareRequest(4)), (None, 1, 4), (None, 1, 2), ((), ("0",), ("0", "1")),
        (None, "user", "node"), (False, True),
    )  # fmt: skip
    names = ("share", "tasks", "nodes", "granted", "exclusive", "direct")
    found = [words for words in values if place.is_part(replace(PART, **dict(zip(names, words, strict=True))))]
    assert found == [(ShareRequest(4), 1, nodes, ("0",), "user", False) for nodes in (None, 1)]


def test_a_part_has_one_slot_with_an_nth_of_the_gpu():
    """The same caps as each of the N slots that the whole GPU would have."""
    share = ShareRequest(4, sm="even")
    whole = place.slots(GPUS[:1], share, Settings())
    part = place.slots(GPUS[:1], share, Settings(), is_part=True)
    assert len(whole) == 4
    assert part == whole[:1]
    assert (part[0].memory_cap_mib, part[0].thread_percent, part[0].part) == (19942, 25.0, 0)


@pytest.mark.parametrize("per_gpu", [2, 3, 4, 7, 60])
def test_the_caps_of_n_parts_fit_on_their_gpu(per_gpu):
    """N jobs with a part each take no more than one job with all of them."""
    slot = place.slots(GPUS[:1], ShareRequest(per_gpu, sm="even"), Settings(), is_part=True)[0]
    assert per_gpu * slot.memory_cap_mib <= 0.98 * 81920 - 512
    assert per_gpu * slot.thread_percent <= 100

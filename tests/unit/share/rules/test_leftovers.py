"""The processes that are ended, and that may stay, when a job has left a GPU."""

from __future__ import annotations

import pytest

from slurm_share.core.records import ProcessIdentity
from slurm_share.core.settings import Settings
from slurm_share.node.records import Gpu, GpuReading, NodeProcess
from slurm_share.share.rules import leftovers

ALICE, BOB = 2001, 2002


def process(uid, job_id, name="python", is_own_claim=False):
    return NodeProcess(ProcessIdentity(100, 5, uid, name), job_id, is_own_claim)


@pytest.mark.parametrize(
    ("seen", "fate"),
    [
        (process(ALICE, 7), "end"),
        (process(ALICE, None), "end"),
        (process(ALICE, 6), "end"),
        (process(ALICE, 8), "tolerated"),
        (process(BOB, 9), "tolerated"),
        (process(BOB, None), "without_job"),
        (process(BOB, 7), "without_job"),
        (process(0, None, "Xorg"), "tolerated"),
        (process(0, None, "nv-hostengine"), "tolerated"),
        (process(0, None, "miner"), "foreign"),
        (process(BOB, None, "Xorg"), "without_job"),
        (process(None, None, None), "foreign"),
        (process(ALICE, 8, is_own_claim=True), "tolerated"),
        (process(BOB, 9, is_own_claim=True), "tolerated"),
        (process(BOB, 8, is_own_claim=True), "without_job"),
        (process(ALICE, 9, is_own_claim=True), "end"),
    ],
)
def test_a_process_on_a_gpu_that_job_7_of_alice_has_left(seen, fate):
    """Jobs 8 of alice and 9 of bob are alive. Alice's own processes and those of other users are in no live job.
    Neither a name nor the claim to belong to another user's job protects a process. System users' are never ended."""
    sweep = leftovers.sweep([seen], ALICE, 7, {8: ALICE, 9: BOB}, Settings())
    assert getattr(sweep, fate) == (seen,)
    assert len(sweep.end + sweep.tolerated + sweep.without_job + sweep.foreign) == 1


def test_a_job_of_root_ends_nobody():
    assert leftovers.sweep([process(0, 7)], 0, 7, {}, Settings()).end == ()


@pytest.mark.parametrize(
    ("seen", "ended"),
    [
        (process(ALICE, 7), True),
        (process(ALICE, 8), False),
        (process(ALICE, None), False),
        (process(BOB, 7), False),
        (process(0, 7), False),
    ],
)
def test_a_process_of_a_job_that_is_over_is_ended_wherever_it_is(seen, ended):
    assert leftovers.escaped([seen], ALICE, {8: ALICE}) == ((seen,) if ended else ())


def test_a_lost_gpu_of_an_ended_job_is_not_read():
    well = GpuReading(Gpu("GPU-0", 0, 0, "H100", 81920), 0, 0, ())
    lost = GpuReading(Gpu("GPU-unknown-1", 1, None, "unknown", None, problem="GPU is lost"), None, None, ())
    assert leftovers.unread([well, lost], ["GPU-0", "GPU-1"]) == "GPU-1 (GPU 1: GPU is lost)"
    assert leftovers.unread([well, lost], ["GPU-0"]) == ""
    assert leftovers.unread([well], ["GPU-1"]) == ""  # taken out of the node: no process can be on it

"""The namespaces of an MPS daemon with protocol 3: which a job's GPUs need, and which a task is in."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_share.core.records import ShareRequest
from slurm_share.core.settings import Settings
from slurm_share.mps.records import Namespace
from slurm_share.node.records import Gpu
from slurm_share.share import plan as plan_text
from slurm_share.share.backends.registry import slot_environment
from slurm_share.share.records import Grant, Plan, PreparedGpu, PreparedGpus
from slurm_share.share.rules import allocation, mps
from slurm_share.slurm.records import JobContext

GPUS = tuple(Gpu(f"GPU-{i}", i, i, "H100", 81920) for i in range(2))
SITE = Settings(mps_protocol=3)
PIPE = "/run/slurm-share/user/mps/2001/0"


def grant(share: ShareRequest = ShareRequest(2, mem_mib=8192, sm=25), protocol: int = 3) -> Grant:  # noqa: B008
    job = JobContext(job_id=7, uid=2001, gid=2001, node="n1", granted=("0", "1"), share=share)
    return Grant(job, share, GPUS, 4, False, "mps", "MPS", mps_protocol=protocol)


def plan() -> Plan:
    served = PreparedGpu(mps_directory=PIPE, has_namespaces=True)
    prepared = PreparedGpus({gpu.uuid: served for gpu in GPUS})
    decided = allocation.decide(grant(), prepared, SITE, cores=((0,), (1,)))
    assert isinstance(decided, Plan)
    return decided


def test_each_task_of_a_gpu_has_a_namespace_with_its_caps_and_one_has_none() -> None:
    found = mps.namespaces(grant(), SITE, None)
    each = (Namespace("slot_0", 8192, 25.0), Namespace("slot_1", 8192, 25.0), Namespace("any"))
    assert found == {"GPU-0": each, "GPU-1": each}


def test_a_job_with_a_part_of_a_gpu_has_the_namespace_of_that_part() -> None:
    found = mps.namespaces(replace(grant(), gpus=GPUS[:1]), SITE, 1)
    assert [one.name for one in found["GPU-0"]] == ["slot_1", "any"]


def test_with_protocol_2_there_are_none() -> None:
    assert mps.namespaces(grant(protocol=2), SITE, None) == {}


@pytest.mark.parametrize(
    ("driver", "protocol", "found"),
    [("615.71", 3, 3), ("620.1", 3, 3), ("615.71", 2, 2), ("610.43", 3, 2), (None, 3, 2), ("580.95", 2, 2)],
)
def test_an_older_driver_falls_back_with_a_sentence(driver: str | None, protocol: int, found: int) -> None:
    chosen, why = mps.protocol(driver, Settings(mps_protocol=protocol))  # type: ignore[arg-type]
    assert chosen == found
    assert ("needs driver 615" in why) is (found != protocol)


def test_slots_are_in_the_namespaces_of_their_gpu_and_a_plan_says_so() -> None:
    decided = plan()
    assert [slot.mps_namespace for slot in decided.slots] == ["s/slot_0", "s/slot_0", "s/slot_1", "s/slot_1"]
    variables = {one.name: one.value for one in slot_environment(decided, decided.slots[2])}
    assert variables["CUDA_MPS_PIPE_DIRECTORY"] == f"{PIPE}/s/slot_1"
    assert variables["CUDA_MPS_PROTOCOL_VERSION"] == "3"
    assert plan_text.parse(plan_text.render(decided)) == decided


def test_a_task_with_other_caps_than_its_slot_is_not_held_to_those_of_the_slot() -> None:
    slot = plan().slots[0]
    assert allocation.with_memory_cap(slot, 8192).mps_namespace == "s/slot_0"
    assert allocation.with_memory_cap(slot, 16384).mps_namespace == "s/any"
    assert allocation.with_sm_percent(slot, 25.0).mps_namespace == "s/slot_0"
    assert allocation.with_sm_percent(slot, None).mps_namespace == "s/any"
    assert allocation.with_memory_cap(replace(slot, mps_namespace=None), 16384).mps_namespace is None

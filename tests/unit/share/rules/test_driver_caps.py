"""Where the driver enforces the memory caps of tasks, and what follows from that for plan and environment."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from plans import decided

from slurm_share.core.records import ShareRequest
from slurm_share.core.settings import Settings
from slurm_share.node.records import Gpu
from slurm_share.share.backends import registry
from slurm_share.share.records import DriverCaps, Grant, Plan, Refusal
from slurm_share.share.rules import driver_caps
from slurm_share.slurm.records import JobContext

GPU = Gpu("GPU-0", 0, 0, "H100", 81920)
NEW, OLD = {"driver": "615.71"}, {"driver": "580.95"}
EVEN, SIZED = ShareRequest(4), ShareRequest(4, mem_mib=8192)
IN_TURNS = replace(SIZED, sharing="time-slicing")


def job(share: ShareRequest) -> JobContext:
    return JobContext(4711, 2001, 2001, "n1", ("0",), share)


def plan(share: ShareRequest, mps: dict[str, str], **more: object) -> Plan:
    found = decided(job(share), (GPU,), mps, **more)  # type: ignore[arg-type]
    assert isinstance(found, Plan)
    return found


def environment(of: Plan) -> dict[str, str]:
    return {one.name: one.value for one in registry.slot_environment(of, of.slots[0])}


@pytest.mark.parametrize(
    ("driver", "settings", "has_cgroup_v2", "why"),
    [
        ("615.71", Settings(), True, None),
        ("615.71", Settings(memory_limits="off"), True, 'memory_limits is "off"'),
        ("610.43", Settings(), True, "needs driver 615 or newer, and this node has 610"),
        (None, Settings(), True, "one of unknown version"),
        ("620.1", Settings(), False, "needs jobs in cgroups of version 2"),
    ],
)
def test_a_node_has_caps_by_the_driver_with_release_615_and_jobs_in_cgroup_v2(driver, settings, has_cgroup_v2, why):
    found = driver_caps.why_none(driver, settings, has_cgroup_v2=has_cgroup_v2)
    assert (found is None) if why is None else (found is not None and why in found)


@pytest.mark.parametrize("share", [EVEN, SIZED])
def test_a_cap_under_mps_is_enforced_by_both_and_said_once(share):
    found = plan(share, NEW, directories={"GPU-0": "/run/p0"})
    cap_mib = found.slots[0].memory_cap_mib
    assert all(slot.is_cap_of_driver for slot in found.slots)
    said = f"the driver limits each task to {cap_mib} MiB of GPU memory, which its program sees as the GPU's size"
    assert found.notes == (said,)
    variables = environment(found)
    assert variables["SLURM_SHARE_MEM_LIMIT"] == "driver"
    assert variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={cap_mib}M"


def test_jax_takes_its_own_part_of_a_total_that_is_the_slots():
    under_mps, of_driver = (environment(plan(SIZED, mps, directories={"GPU-0": "/p"})) for mps in (OLD, NEW))
    assert under_mps["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.100"
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in of_driver
    assert of_driver["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"


def test_a_size_with_time_slicing_is_enforced_by_the_driver():
    found = plan(IN_TURNS, NEW)
    assert [(slot.memory_cap_mib, slot.is_cap_of_driver, slot.mps_directory) for slot in found.slots] == [
        (8192, True, None)
    ] * 4
    assert environment(found)["SLURM_SHARE_MEM_LIMIT"] == "driver"


def test_a_size_with_time_slicing_is_refused_where_the_driver_cannot_enforce_it():
    found = decided(job(IN_TURNS), (GPU,), OLD)
    assert isinstance(found, Refusal)
    assert found.cause == "job"
    assert "it asked for mem=8192M with sharing=time-slicing, where only the driver can enforce the cap" in (
        found.sentence
    )
    assert found.sentence.endswith("leave mem= away, or write sharing=mps")


@pytest.mark.parametrize(
    ("share", "gpu", "asked", "way_out"),
    [
        (
            replace(IN_TURNS, mem_least_mib=4096),
            GPU,
            "mem=4096M:8192M with sharing=time-slicing",
            "leave mem= away, or write mem=8192M,sharing=mps",
        ),
        (IN_TURNS, replace(GPU, uuid="MIG-1"), "mem=8192M with sharing=time-slicing", "; leave mem= away"),
    ],
)
def test_the_way_out_of_a_cap_that_the_driver_cannot_enforce_is_possible_there(share, gpu, asked, way_out):
    """MPS holds no guaranteed part, and serves no MIG instance."""
    why = driver_caps.why_refused(Grant(job(share), share, (gpu,), 4, False, "time-slicing"), DriverCaps())
    assert why is not None
    assert f"it asked for {asked}, where" in why
    assert why.endswith(way_out)


def test_time_slicing_in_the_place_of_mps_has_caps_by_the_driver_and_says_so():
    found = plan(SIZED, {**NEW, "why_not": "there is no MPS"})
    assert "the driver enforces their memory caps" in found.notes[0]
    assert not any("no cap is enforced" in note for note in found.notes)
    failed = plan(SIZED, NEW, failures={"GPU-0": "its server ended"})
    assert any("the driver enforces their memory caps" in note for note in failed.notes)


def test_a_task_alone_on_a_gpu_has_no_limit():
    found = plan(ShareRequest(1), NEW)
    assert [(slot.memory_cap_mib, slot.is_cap_of_driver) for slot in found.slots] == [(None, False)]


def test_mig_instances_and_gpus_with_a_problem_are_not_limited():
    mig = replace(GPU, uuid="MIG-1")
    grant = Grant(job(SIZED), SIZED, (GPU, mig), 8, False, "mps")
    assert driver_caps.of_gpus(grant, {}) == DriverCaps(
        frozenset({"GPU-0"}), "the driver limits no memory on MIG instances, which have their own"
    )
    assert driver_caps.of_gpus(replace(grant, gpus=(GPU,)), {"GPU-0": "Not Supported"}) == DriverCaps(
        frozenset(), "the driver limits no memory on GPU 0 (Not Supported)"
    )


def test_a_plan_that_is_carried_out_without_the_driver_has_the_caps_of_mps():
    by_mps = driver_caps.without(plan(SIZED, NEW, directories={"GPU-0": "/p"}))
    assert not any(slot.is_cap_of_driver for slot in by_mps.slots)
    assert environment(by_mps)["SLURM_SHARE_MEM_LIMIT"] == "mps"
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" in environment(by_mps)

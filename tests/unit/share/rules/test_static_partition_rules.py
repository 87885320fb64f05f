"""Static partitions of multiprocessors: when tasks get them, and what refusals, notes and variables say."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_share.core.records import ShareRequest
from slurm_share.core.settings import Settings
from slurm_share.mps.records import EqualPartitions, GpuChunks
from slurm_share.node.records import Gpu
from slurm_share.share import plan as plan_text
from slurm_share.share.backends import registry
from slurm_share.share.records import Grant, PreparedGpu, PreparedGpus, Refusal
from slurm_share.share.rules import allocation, static_partitions
from slurm_share.slurm.records import JobContext
from slurm_share.testing import offers_of

GPUS = tuple(Gpu(f"GPU-{i}", i, i, "H200", 81920, compute_capability=(9, 0)) for i in range(2))
ASKED = ShareRequest(4, sm="static")
JOB = JobContext(job_id=7, uid=2001, gid=2001, node="n1", granted=("0", "1"), share=ASKED)
SITE = Settings(sm="static")
CAN = {"driver": "595.71.05"}
OLD = {"driver": "580.95.05"}
NO_MPS = {"why_not": "no MPS here"}


def granted(share=ASKED, settings=Settings(), offer=CAN, gpus=GPUS, **job):  # noqa: B008  (frozen)
    asked = replace(JOB, share=share, **job)
    return allocation.admit(asked, gpus, offers_of(share, settings, **offer), settings)


def divided(uuid, parts=4, sm_count=24, total_sms=132):
    names = tuple(f"{uuid}/D/{part}+" for part in range(parts))
    return EqualPartitions(names, sm_count, GpuChunks(uuid, 15, 8, total_sms))


def prepared(parts=4, sm_count=24, gpus=GPUS, undivided=()):
    served = {
        gpu.uuid: PreparedGpu(
            mps_directory=f"/run/{gpu.uuid}",
            partitions=None if gpu.uuid in dict(undivided) else divided(gpu.uuid, parts, sm_count),
        )
        for gpu in gpus
    }
    return PreparedGpus(served, undivided=dict(undivided))


def decide(grant, made=None, settings=Settings(), **of):  # noqa: B008  (frozen)
    return allocation.decide(grant, made or prepared(), settings, cores=((0,),), **of)


def values(plan, slot):
    return {one.name: one.value for one in registry.slot_environment(plan, slot)}


# ---- Who gets them ----


def test_a_user_who_asks_gets_a_partition_for_each_task():
    grant = granted()
    assert (grant.backend, grant.partitions) == ("mps", 4)


@pytest.mark.parametrize(
    ("share", "partitions"),
    [
        (ShareRequest(4), 4),
        (ShareRequest(4, mem_mib=8192), 4),
        (ShareRequest(1), 0),
        (ShareRequest(4, sm="even"), 0),
        (ShareRequest(4, sm="free"), 0),
        (ShareRequest(4, sm=10), 0),
        (ShareRequest(4, sharing="time-slicing"), 0),
    ],
)
def test_the_sites_default_gives_them_to_tasks_that_do_not_choose(share, partitions):
    assert granted(share, SITE).partitions == partitions


@pytest.mark.parametrize("share", [ShareRequest(4, sm="free"), ShareRequest(4, sm="even"), ShareRequest(4)])
def test_a_task_without_a_partition_has_no_more_than_an_even_part_where_partitions_are_the_sites_default(share):
    assert {slot.sm_percent for slot in decide(granted(share, SITE, OLD), PreparedGpus(), SITE).slots} == {25}


def test_no_share_has_none_where_nobody_asks():
    assert granted(ShareRequest(4)).partitions == 0
    assert decide(granted(ShareRequest(4)), prepared(gpus=())).slots[0].partition is None


def test_one_task_on_a_gpu_gets_one_where_its_user_asks():
    assert granted(ShareRequest(1, sm="static")).partitions == 1


# ---- Where there are none ----


UNKNOWN = tuple(replace(gpu, compute_capability=None) for gpu in GPUS)
VOLTA = (GPUS[0], replace(GPUS[1], compute_capability=(7, 0), name="Tesla V100"))


@pytest.mark.parametrize(
    ("settings", "offer", "gpus", "why"),
    [
        (Settings(), OLD, GPUS, "sm=static needs driver 590 or newer, and this node has 580"),
        (Settings(), {}, GPUS, "sm=static needs driver 590 or newer, and this node has one of unknown version"),
        (Settings(), CAN, UNKNOWN, "the driver does not tell whether GPU 0 can have static partitions"),
        (Settings(), CAN, VOLTA, "needs compute capability 8.0 (Ampere) or newer, and GPU 1 (Tesla V100) has 7.0"),
        (Settings(sm="10"), CAN, GPUS, "this site gives a task 10 % of a GPU at most (sm in its configuration)"),
    ],
)
def test_a_user_who_asks_is_refused_where_there_are_none(settings, offer, gpus, why):
    found = granted(settings=settings, offer=offer, gpus=gpus)
    assert isinstance(found, Refusal)
    assert found.sentence.startswith("job 7 cannot have --share-gpu=4,sm=static on n1: ")
    assert why in found.sentence
    assert found.sentence.endswith("; ask for sm=even")
    assert found.cause == "job"


def test_a_user_who_asks_is_refused_without_mps():
    found = granted(offer=NO_MPS)
    assert "it asked for sm=static, and no MPS here" in found.sentence


def test_a_user_who_asks_is_refused_on_mig_instances():
    instance = (Gpu("MIG-1", 0, None, "H200 MIG 1g.18gb", 18000, compute_capability=(9, 0)),)
    found = granted(gpus=instance, granted=("MIG-1",))
    assert isinstance(found, Refusal)
    assert "sm=static" in found.sentence
    why = static_partitions.why_not(instance, ASKED, offers_of(ASKED, Settings(), **CAN)[0], Settings())
    assert why == "sm=static divides whole GPUs, and GPU 0 is divided by MIG"


@pytest.mark.parametrize(("offer", "gpus"), [(OLD, GPUS), (CAN, VOLTA), (CAN, UNKNOWN)])
def test_the_sites_default_falls_back_to_even_parts_with_one_note(offer, gpus):
    plan = decide(granted(ShareRequest(4), SITE, offer, gpus), prepared(gpus=()), SITE)
    assert {(slot.sm_percent, slot.partition) for slot in plan.slots} == {(25, None)}
    assert len(plan.notes) == 1
    assert "evenly, without static partitions, the default of this site (sm=static)" in plan.notes[0]


# ---- What they get ----


@pytest.mark.parametrize(
    ("share", "settings"),
    [
        (ShareRequest(4, sharing="time-slicing"), SITE),
        (ShareRequest(4), replace(SITE, sharing="time-slicing")),
    ],
)
def test_who_chose_time_slicing_is_not_told_that_the_sites_default_of_mps_does_not_apply(share, settings):
    """The tasks take turns: they do not share the SM evenly."""
    found = granted(share, settings)
    assert isinstance(found, Grant)
    assert (found.backend, found.partitions, found.note) == ("time-slicing", 0, None)


def test_each_task_of_a_gpu_has_another_partition_and_no_percentage():
    plan = decide(granted())
    assert len({slot.partition for slot in plan.slots}) == 8
    for slot in plan.slots:
        assert slot.partition == f"{slot.gpu.uuid}/D/{slot.number // 2}+"
        assert (slot.sm_count, slot.sm_percent) == (24, None)
        found = values(plan, slot)
        assert found["CUDA_MPS_SM_PARTITION"] == slot.partition
        assert found["SLURM_SHARE_SMS"] == "24"
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in found
    assert plan_text.parse(plan_text.render(plan)) == replace(
        plan,
        gpus=tuple(replace(gpu, compute_capability=None) for gpu in plan.gpus),
        slots=tuple(replace(slot, gpu=replace(slot.gpu, compute_capability=None)) for slot in plan.slots),
    )


def test_a_job_with_a_part_of_a_gpu_has_the_partition_of_its_part():
    share = ShareRequest(4, sm="static")
    grant = Grant(replace(JOB, share=share), share, GPUS[:1], 1, True, "mps", "MPS", partitions=4)
    (slot,) = decide(grant, on_gpu=2).slots
    assert slot.partition == "GPU-0/D/2+"


def test_without_partitions_on_a_gpu_a_user_who_asked_is_refused_and_the_sites_default_is_noted():
    made = prepared(undivided=[("GPU-1", "it can have 15 at most (--share-gpu=15 or less)")])
    found = decide(granted(), made)
    assert isinstance(found, Refusal)
    assert found.sentence.endswith(
        "it asked for sm=static, and GPU 1 has none: it can have 15 at most (--share-gpu=15 or less); ask for sm=even"
    )
    plan = decide(granted(ShareRequest(4), SITE), made, SITE)
    assert [(slot.partition, slot.sm_percent) for slot in plan.slots[:2]] == [("GPU-0/D/0+", None), (None, 25)]
    assert any("GPU 1 has none: it can have 15 at most" in note for note in plan.notes)


def test_a_note_names_the_idle_multiprocessors_and_better_numbers_of_tasks():
    assert decide(granted()).notes == (
        "static: 4 tasks on GPU 0,1 with 24 SM each; 36 of 132 SM are in nobody's partition",
        "3 or 5 tasks on such a GPU would leave fewer of its SM idle",
    )
    three = granted(ShareRequest(3, sm="static"))
    assert decide(three, prepared(3, 40)).notes == (
        "static: 3 tasks on GPU 0,1 with 40 SM each; 12 of 132 SM are in nobody's partition",
    )


def test_that_a_fault_ends_only_its_task_is_said_from_610_on():
    for version, is_said in (("595.71.05", False), ("609.99", False), ("610.43.02", True)):
        grant = granted(offer={"driver": version})
        assert any("a fault of a task ends only that task" in note for note in decide(grant).notes) is is_said


def test_fewer_tasks_than_planned_keep_their_partitions():
    plan = decide(granted())
    fewer = allocation.with_fewer_tasks(plan, ShareRequest(2, sm="static"), 4, Settings())
    assert [slot.partition for slot in fewer.slots] == [slot.partition for slot in plan.slots[:4]]
    assert {slot.sm_percent for slot in fewer.slots} == {None}

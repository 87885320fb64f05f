"""Decisions about the GPUs, memory and slots of jobs and launchers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from plans import decided

from slurm_share.core.records import ShareRequest
from slurm_share.core.settings import Settings
from slurm_share.node.records import Gpu
from slurm_share.share import plan as plan_text
from slurm_share.share.backends import registry
from slurm_share.share.records import Plan, PreparedGpu, PreparedGpus, Refusal
from slurm_share.share.rules import allocation, drain, mps
from slurm_share.slurm.records import JobContext
from slurm_share.testing import offers_of

GPUS = tuple(Gpu(f"GPU-{i}", i, i, "H100", 81920) for i in range(4))
CORES = tuple((core,) for core in range(8))
JOB = JobContext(job_id=7, uid=2001, gid=2001, node="n1", granted=("0", "1"), share=ShareRequest(4))


OFFER = {}
NO_MPS = {"why_not": "no MPS here"}
MISSING = {"why_not": "there is no such program", "is_missing": True}
"""How MPS is on the node."""


def decide(job=JOB, gpus=GPUS, settings=Settings(), offer=OFFER):  # noqa: B008  (frozen)
    return decided(job, gpus, offer, settings, cores=CORES)


def granted(job=JOB, gpus=GPUS, settings=Settings(), offer=OFFER):  # noqa: B008  (frozen)
    return allocation.admit(job, gpus, offers_of(job.share, settings, **offer), settings)


def wants_mps(grant):
    return grant.backend == "mps"


def test_slots_go_round_robin_over_the_granted_gpus():
    plan = decide()
    assert isinstance(plan, Plan)
    assert [slot.gpu.uuid for slot in plan.slots] == ["GPU-0", "GPU-1"] * 4
    assert [slot.number for slot in plan.slots] == list(range(8))
    assert {(slot.memory_cap_mib, slot.memory_ratio) for slot in plan.slots} == {(19942, "0.243")}
    # tasks of one GPU are neighbours on the cores
    assert [slot.part for slot in plan.slots if slot.gpu.index == 0] == [0, 1, 2, 3]
    assert sorted(slot.part for slot in plan.slots) == list(range(8))


def test_slurms_order_and_words_are_kept():
    assert [g.index for g in decide(replace(JOB, granted=("3", "2"))).gpus] == [3, 2]
    assert [g.index for g in decide(replace(JOB, granted=("GPU-2",))).gpus] == [2]


def test_a_number_is_the_device_file_and_not_the_drivers_order():
    swapped = (Gpu("GPU-a", 0, 1, "H100", 81920), Gpu("GPU-b", 1, 0, "H100", 81920))
    assert decide(replace(JOB, granted=("0",)), swapped).gpus[0].uuid == "GPU-b"
    unknown = tuple(replace(gpu, minor=None) for gpu in swapped)
    assert decide(replace(JOB, granted=("0",)), unknown).gpus[0].uuid == "GPU-a"


def test_one_task_a_gpu_has_no_cap():
    slot = decide(replace(JOB, share=ShareRequest(1))).slots[0]
    assert (slot.memory_cap_mib, slot.memory_ratio) == (None, None)


def test_the_users_size_wins_and_too_much_of_it_is_said():
    plan = decide(replace(JOB, share=ShareRequest(4, mem_mib=30000)))
    assert plan.slots[0].memory_cap_mib == 30000
    assert any("4 x 30000 MiB is more than GPU 0 has (81920 MiB)" in note for note in plan.notes)


@pytest.mark.parametrize("size", [None, 0])
def test_an_unknown_size_gives_no_cap_and_is_said(size):
    gpus = tuple(replace(gpu, memory_total_mib=size) for gpu in GPUS)
    plan = decide(gpus=gpus)
    assert {(slot.memory_cap_mib, slot.memory_ratio) for slot in plan.slots} == {(None, None)}
    assert len(plan.notes) == 1
    assert "the driver does not say how much memory GPU 0,1 has: its tasks have no memory cap" in plan.notes[0]
    assert "--share-gpu=4,mem=SIZE sets a cap" in plan.notes[0]
    sized = decide(replace(JOB, share=ShareRequest(4, mem_mib=3000)), gpus)
    assert (sized.slots[0].memory_cap_mib, sized.notes) == (3000, ())
    assert decide(replace(JOB, share=ShareRequest(1)), gpus).notes == ()  # its one task needs no cap


def test_a_number_instead_of_the_uuid_only_under_mps():
    """The first GPU has a daemon, the other one's did not start."""
    settings = Settings(gpu_ids="index")
    grant = granted(settings=settings)
    served = {"GPU-0": PreparedGpu(mps_directory="/run/p0")}
    prepared = PreparedGpus(served=served, failures={"GPU-1": "no room"})
    plan = allocation.decide(grant, prepared, settings, cores=CORES)
    visible = [
        {one.name: one.value for one in registry.slot_environment(plan, slot)}["CUDA_VISIBLE_DEVICES"]
        for slot in plan.slots[:2]
    ]
    assert visible == ["0", "GPU-1"]
    assert plan_text.parse(plan_text.render(plan)) == plan


def test_memory_of_the_node_is_named_and_not_capped():
    plan = decide(gpus=tuple(replace(gpu, is_host_memory=True) for gpu in GPUS))
    assert {slot.memory_cap_mib for slot in plan.slots} == {None}
    assert plan.notes[0].startswith("GPU 0,1 has no memory of its own and uses the node's (81920 MiB, MemTotal)")


def test_memory_that_the_site_reserves_as_a_whole_is_no_cap_and_is_said():
    plan = decide(settings=Settings(mps_server_memory_mib=81920))
    assert {slot.memory_cap_mib for slot in plan.slots} == {None}
    assert len(plan.notes) == 1
    assert plan.notes[0].startswith(
        "mps_server_memory_mib = 81920 and memory_reserve_percent = 2 in the configuration leave the 4 tasks on GPU "
        "0,1 nothing of its 81920 MiB: they have no memory cap; "
    )


LOST = Gpu("GPU-unknown-1", 1, None, "unknown", None, problem="GPU is lost")
WITH_LOST = (GPUS[0], LOST, *GPUS[2:])


def test_a_lost_gpu_gets_no_slots_and_is_named_with_the_arithmetic():
    plan = decide(gpus=WITH_LOST)
    assert [slot.gpu.uuid for slot in plan.slots] == ["GPU-0"] * 4
    assert (plan.gpus, plan.lost) == ((GPUS[0],), ("1",))
    assert plan.notes[0].startswith(
        "on n1 the job has GPU 1, which does not answer (the driver: GPU is lost): its tasks there use the other "
        "1 GPU, with 1 x 4 = 4 slots instead of 8; --exclude=n1 leaves the node out; "
    )
    assert sorted(slot.part for slot in plan.slots) == list(range(4))
    assert decide(replace(JOB, granted=("GPU-1", "GPU-2")), WITH_LOST).lost == ("GPU-1",)  # its UUID is not known now


def test_a_lost_gpu_refuses_only_the_job_that_has_no_other():
    for granted in ("1", "GPU-1"):
        found = decide(replace(JOB, granted=(granted,)), WITH_LOST)
        assert isinstance(found, Refusal)
        assert "Slurm granted it only GPU 1, which does not answer (the driver: GPU is lost)" in found.sentence
        assert "--exclude=n1" in found.sentence
        assert found.cause == drain.GPU_LOST
    for granted in (("0", "2"), ("GPU-3",)):
        found = decide(replace(JOB, granted=granted), WITH_LOST)
        assert isinstance(found, Plan)
        assert (found.lost, found.notes) == ((), ())


def test_a_lost_gpu_is_not_taken_for_one_that_answers():
    """NVML's order is that of the bus: the GPU with the index 0 is lost, and /dev/nvidia0 is the other one."""
    gpus = (replace(LOST, index=0), Gpu("GPU-b", 1, 0, "H100", 81920))
    plan = decide(gpus=gpus)
    assert ([gpu.uuid for gpu in plan.gpus], plan.lost) == (["GPU-b"], ("1",))
    assert decide(replace(JOB, granted=("0",)), gpus).lost == ()
    assert decide(replace(JOB, granted=("1",)), gpus).cause == drain.GPU_LOST
    assert decide(replace(JOB, granted=("2",)), gpus).cause == drain.NO_SUCH_GPU


@pytest.mark.parametrize(
    ("job", "gpus", "settings", "why"),
    [
        (replace(JOB, share=ShareRequest(9)), GPUS, Settings(max_share=8), "at most 8 tasks"),
        (replace(JOB, share=ShareRequest(49)), GPUS, Settings(), "49 tasks on a GPU are more than the 48 clients"),
        (replace(JOB, granted=()), GPUS, Settings(), "granted the job no GPU"),
        (replace(JOB, granted=("0", "7")), GPUS, Settings(), "granted GPU 7, but the driver lists only 0, 1, 2, 3"),
        (replace(JOB, granted=("0", "0")), GPUS, Settings(), "granted GPU 0"),
        (replace(JOB, granted=("GPU-x",)), (), Settings(), "lists only none"),
        (JOB, tuple(replace(g, mig_parent=True) for g in GPUS), Settings(), "MIG mode"),
        (JOB, tuple(replace(g, simulated=True) for g in GPUS), Settings(), "are simulated"),
    ],
)
def test_a_refusal_says_which_job_where_and_why(job, gpus, settings, why):
    refusal = decide(job, gpus, settings)
    assert isinstance(refusal, Refusal)
    assert refusal.sentence.startswith("job 7 cannot have --share-gpu=")
    assert " on n1: " in refusal.sentence
    assert why in refusal.sentence


def test_simulated_gpus_are_shared_where_the_site_says_so_and_the_output_says_it():
    plan = decide(gpus=tuple(replace(g, simulated=True) for g in GPUS), settings=Settings(simulated_gpus=True))
    assert isinstance(plan, Plan)
    assert any("simulated" in note for note in plan.notes)


def test_gpus_that_are_another_nodes_are_the_jobs_affair_and_not_this_nodes():
    job = replace(JOB, granted=("0", "9"), nodes=2, has_sure_gpus=False)
    refusal = decide(job)
    assert isinstance(refusal, Refusal)
    assert refusal.cause == drain.JOB
    assert "srun -N2 -n2 true" in refusal.sentence
    assert decide(replace(job, has_sure_gpus=True)).cause == drain.NO_SUCH_GPU
    assert isinstance(decide(replace(job, granted=JOB.granted)), Plan)


@pytest.mark.parametrize(
    ("share", "site", "wanted"),
    [
        (ShareRequest(4), "free", True),
        (ShareRequest(1), "free", False),
        (ShareRequest(1, mem_mib=8192), "free", True),
        (ShareRequest(1, sharing="mps"), "free", True),
        (ShareRequest(4, sharing="time-slicing"), "free", False),
        (ShareRequest(60, sharing="time-slicing"), "free", False),
        (ShareRequest(1, sm=25), "free", True),
        (ShareRequest(1, sm="even"), "free", True),
        (ShareRequest(1, sm="free"), "free", False),
        (ShareRequest(1), "50", True),
        (ShareRequest(1, sharing="time-slicing"), "50", False),
    ],
)
def test_mps_is_wanted_where_it_does_something(share, site, wanted):
    assert wants_mps(granted(replace(JOB, share=share), settings=Settings(sm=site))) is wanted


def test_without_mps_the_share_goes_on_and_says_so_once():
    assert [note for note in decide(offer=NO_MPS).notes if "MPS" in note] == [
        "the GPUs are shared without MPS: no MPS here; the tasks of a GPU take turns on it, and no cap is enforced"
    ]
    assert decide(replace(JOB, share=ShareRequest(1)), offer=NO_MPS).notes == ()
    assert decide(replace(JOB, share=ShareRequest(4, sharing="time-slicing")), offer=NO_MPS).notes == ()


def test_who_insists_on_mps_is_refused_without_it():
    insists = replace(JOB, share=ShareRequest(4, sharing="mps"))
    assert "it asked for sharing=mps, and no MPS here" in decide(insists, offer=NO_MPS).sentence
    refusal = decided(insists, GPUS, directories={"GPU-0": "/p"}, failures={"GPU-1": "it hangs"})
    assert "MPS did not start on GPU-1: it hangs" in refusal.sentence


def test_a_mig_instance_is_shared_without_mps():
    instance = replace(GPUS[0], uuid="MIG-1", minor=None)
    job = replace(JOB, granted=("MIG-1",))
    plan = decide(job, gpus=(instance,))
    assert not wants_mps(granted(job, gpus=(instance,)))
    assert any("MIG" in note for note in plan.notes)


def test_each_slot_has_the_daemon_of_its_gpu():
    plan = decided(JOB, GPUS, directories={"GPU-0": "/run/p0"}, failures={"GPU-1": "it hangs."})
    assert [slot.mps_directory for slot in plan.slots] == ["/run/p0", None] * 4
    assert [slot.backend for slot in plan.slots] == ["mps", "time-slicing"] * 4
    [note] = [one for one in plan.notes if "GPU 1 is shared without MPS: it hangs; its tasks take turns" in one]
    assert note.endswith("; with sharing=mps the job would be refused instead")


# --- a part of a GPU, caps alone, and whose fault a refusal is -----------------------------------------------------

PART = replace(JOB, granted=("1",), exclusive="user", tasks=1, nodes=1)


def test_a_part_of_a_gpu_has_one_slot_with_its_caps_and_mps():
    plan, grant = decided(PART, GPUS, on_gpu=3), granted(PART)
    assert grant.is_part
    assert [slot.on_gpu for slot in plan.slots] == [3]
    assert [(slot.number, slot.gpu.uuid, slot.memory_cap_mib) for slot in plan.slots] == [(0, "GPU-1", 19942)]
    assert plan.slots[0].memory_ratio == "0.243"
    assert wants_mps(grant)
    assert not granted(replace(PART, direct=True)).is_part
    assert len(decide(replace(PART, tasks=None)).slots) == 4


def test_a_cap_that_nobody_holds_is_said():
    job = replace(JOB, share=ShareRequest(1, sm=25))
    plan = decide(job, offer=NO_MPS)
    assert not wants_mps(granted(job, offer=NO_MPS))
    assert any("no cap is enforced" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("refusal", "cause"),
    [
        (allocation.driver_refusal(JOB, "the driver is gone"), "no-driver"),
        (decide(replace(JOB, granted=("0", "7"))), "no-such-gpu"),
        (decide(gpus=()), "no-such-gpu"),
        (decide(settings=Settings(mps_required=True), offer=MISSING), "no-mps-program"),
        (allocation.crowd_refusal(granted(PART)), "crowded"),
        (decide(settings=Settings(max_share=2)), "job"),
        (decide(replace(JOB, granted=())), "job"),
        (decide(replace(JOB, share=ShareRequest(4, sharing="mps")), offer=NO_MPS), "job"),
        (decide(replace(JOB, share=ShareRequest(4, sharing="mps")), offer=MISSING), "job"),
        (decide(replace(JOB, share=ShareRequest(49))), "job"),
        (
            decided(replace(JOB, share=ShareRequest(4, sharing="mps")), GPUS, failures={"GPU-0": "hangs"}),
            "mps-failed",
        ),
    ],
)
def test_a_refusal_says_whose_fault_it_is(refusal, cause):
    assert isinstance(refusal, Refusal)
    assert refusal.cause == cause


@pytest.mark.parametrize(
    ("share", "offer"),
    [(ShareRequest(4, sharing="time-slicing"), MISSING), (ShareRequest(1), MISSING), (ShareRequest(4), NO_MPS)],
    ids=["mps=off", "one task", "an operators' daemon"],
)
def test_a_site_that_requires_mps_refuses_only_what_would_have_had_it(share, offer):
    assert isinstance(decide(replace(JOB, share=share), settings=Settings(mps_required=True), offer=offer), Plan)


@pytest.mark.parametrize("per_gpu", [2, 3, 4, 7, 60])
def test_the_caps_of_n_parts_fit_on_their_gpu(per_gpu):
    share = ShareRequest(per_gpu, sm="even")
    settings = Settings(max_share=60)
    part = decide(replace(PART, share=share), settings=settings, offer={"client_limit": 60}).slots
    whole = decide(replace(PART, share=share, tasks=None), settings=settings, offer={"client_limit": 60}).slots
    assert part == whole[:1]
    assert per_gpu * part[0].memory_cap_mib <= 0.98 * 81920 - 512
    assert per_gpu * part[0].sm_percent <= 100


# --- a launcher's own processes, where the node has no plan ----------------------------------------------------------


def launch(processes, gpus=GPUS[:2], share=None, settings=Settings(), offer=OFFER):  # noqa: B008  (frozen)
    job = JobContext(7, 2001, 2001, "n1", (), share)
    return decided(job, gpus, offer, settings, processes=processes)


def launch_wants_mps(processes, gpus=GPUS[:2], share=None, offer=OFFER):
    job = JobContext(7, 2001, 2001, "n1", (), share)
    return wants_mps(allocation.grant(job, gpus, offers_of(share, **offer), Settings(), processes=processes))


def test_five_processes_take_two_gpus_in_turn_and_are_not_capped():
    plan = launch(5, settings=Settings(sm="even"))
    assert [slot.gpu.index for slot in plan.slots] == [0, 1, 0, 1, 0]
    assert {(slot.memory_cap_mib, slot.memory_ratio, slot.sm_percent) for slot in plan.slots} == {(None, None, None)}
    assert plan.share == ShareRequest(3)


@pytest.mark.parametrize("share", [ShareRequest(2), ShareRequest(2, mem_mib=4096), ShareRequest(3, sm="even")])
def test_hook_and_launcher_give_a_full_share_the_same_slots(share):
    hooks = decide(replace(JOB, share=share))
    launchers = launch(2 * share.per_gpu, share=share)
    assert (launchers.slots, launchers.share) == (hooks.slots, hooks.share)
    assert launch_wants_mps(2 * share.per_gpu, share=share) == wants_mps(granted(replace(JOB, share=share)))


def test_an_even_part_is_that_of_the_processes_there_are():
    """Two a GPU, where four were allowed: (81920 less 2 % less 512) / 2."""
    assert {slot.memory_cap_mib for slot in launch(4, share=ShareRequest(4)).slots} == {39884}
    asked = launch(4, share=ShareRequest(4, mem_mib=4096, sm=20)).slots
    assert {(slot.memory_cap_mib, slot.sm_percent) for slot in asked} == {(4096, 20)}


def test_more_processes_than_the_share_has_slots():
    refused = launch(9, share=ShareRequest(4))
    assert refused.sentence == (
        "job 7 cannot have --share-gpu=4 on n1: 9 processes are more than 2 GPUs x 4 = 8 slots; write --share-gpu=5, "
        "or a triple with at most 8 on a node"
    )
    assert len(launch(8, share=ShareRequest(4)).slots) == 8
    assert len(launch(100).slots) == 100


def test_what_no_share_can_hold_is_not_recommended():
    said = allocation.too_many(200, 2, 1)
    assert said == "200 processes are more than 1 GPU x 2 = 2 slots; write a triple with at most 2 on a node"


def test_a_share_of_no_gpu_is_refused_and_a_run_without_one_is_not():
    assert launch(8, gpus=()).slots == ()
    assert not launch_wants_mps(8, gpus=())
    assert "none for this run; ask for some (-g 1)" in launch(8, gpus=(), share=ShareRequest(4)).sentence


def test_a_launcher_outside_slurm_speaks_of_its_machine():
    job = JobContext(0, 2001, 2001, "ws1", (), ShareRequest(4))
    refused = allocation.grant(job, (), offers_of(job.share), Settings(), processes=1)
    assert refused.sentence.startswith("ws1 cannot run its processes: it asked to share its GPUs")
    assert "leave --share-gpu away, or use a machine with GPUs" in refused.sentence


@pytest.mark.parametrize(
    ("processes", "share", "needed"),
    [
        (2, None, True),
        (1, None, False),
        (1, ShareRequest(4), False),
        (1, ShareRequest(4, sharing="mps"), True),
        (1, ShareRequest(4, mem_mib=100), True),
        (1, ShareRequest(4, sm=10), True),
        (2, ShareRequest(4), True),
    ],
)
def test_which_processes_need_mps(processes, share, needed):
    assert launch_wants_mps(processes, gpus=GPUS[:1], share=share) is needed


@pytest.mark.parametrize(
    ("gpus", "processes", "offer", "why"),
    [
        (GPUS[:2], 4, {"why_not": "there is no program"}, "there is no program"),
        ((Gpu("MIG-1", 0, None, "1g", 9000),), 2, OFFER, "MPS is not used on MIG instances here"),
        (GPUS[:1], 49, OFFER, "49 tasks on a GPU are more than the 48 clients that MPS supports with this driver"),
    ],
)
def test_why_a_launcher_shares_without_mps(gpus, processes, offer, why):
    plan = launch(processes, gpus=gpus, offer=offer)
    assert not launch_wants_mps(processes, gpus=gpus, offer=offer)
    assert plan.notes == (
        f"the GPUs are shared without MPS: {why}; the tasks of a GPU take turns on it, and no cap is enforced",
    )
    assert launch(processes, gpus=gpus, offer=offer, share=ShareRequest(60, sharing="time-slicing")).notes == ()
    assert (
        f"it asked for sharing=mps, and {why}"
        in launch(processes, gpus=gpus, offer=offer, share=ShareRequest(60, sharing="mps")).sentence
    )


@pytest.mark.parametrize(
    ("program", "is_executable", "why"),
    [
        ("", False, "this site has switched MPS off (mps_control)"),
        ("/bin/none", False, "there is no /bin/none on this node"),
        ("/bin/mps", True, None),
    ],
)
def test_why_there_is_no_program(program, is_executable, why):
    assert mps.why_no_program(program, is_executable=is_executable) == why


# ---- Guaranteed memory ----

RANGE = ShareRequest(4, mem_mib=20480, mem_least_mib=8192)


def test_a_range_is_a_cap_and_its_guaranteed_part():
    plan = decide(replace(JOB, share=RANGE), offer={"driver": "615.71"})
    assert {(slot.memory_least_mib, slot.memory_cap_mib, slot.memory_ratio) for slot in plan.slots} == {
        (8192, 20480, "0.250")
    }
    assert all(slot.is_cap_of_driver for slot in plan.slots)
    assert plan.notes == (
        "the driver limits each task to 20480 MiB of GPU memory (8192 MiB are its own), which its program sees as the "
        "GPU's size",
    )
    assert {slot.memory_least_mib for slot in decide(replace(JOB, share=ShareRequest(4, mem_mib=8192))).slots} == {None}


def test_the_mosts_may_be_more_than_the_gpu_has_and_the_guaranteed_parts_may_not():
    fits = decide(replace(JOB, share=ShareRequest(8, mem_mib=60000, mem_least_mib=9971)), offer={"driver": "615.71"})
    assert isinstance(fits, Plan)
    assert [note[:47] for note in fits.notes] == ["the driver limits each task to 60000 MiB of GPU"]
    refused = decide(replace(JOB, share=ShareRequest(8, mem_mib=60000, mem_least_mib=9972)))
    assert refused.sentence.endswith(
        "8 x 9972 MiB guaranteed is more than the 79769 MiB that tasks can have on GPU 0; ask for "
        "mem=9971M:60000M or --share-gpu=7"
    )
    assert refused.cause == "job"


@pytest.mark.parametrize(
    ("least", "way_out"), [(79772, "ask for mem=1329M:90000M$"), (90000 - 1, "ask for mem=1329M:90000M$")]
)
def test_a_guaranteed_part_larger_than_a_gpu_has_no_smaller_number_of_tasks_as_way_out(least, way_out):
    share = ShareRequest(60, mem_mib=90000, mem_least_mib=least)
    with pytest.raises(AssertionError, match=way_out):
        raise AssertionError(decide(replace(JOB, share=share), offer={"client_limit": 60}).sentence)


def test_without_limits_of_the_driver_the_note_says_what_it_needs_and_what_to_write():
    plan = decide(replace(JOB, share=RANGE), offer={"driver": "580.95"})
    assert [slot.memory_least_mib for slot in plan.slots] == [8192] * 8
    assert plan.notes == (
        "mem=8192M:20480M needs driver 615 or newer, and this node has 580: llsub books 8192M of GPU memory for each "
        "task and takes 20480M as its cap; srun's tasks are refused, and run with mem=20480M or mem=8192M",
    )


def test_a_launcher_without_limits_of_the_driver_books_one_number_and_caps_at_the_other():
    job = replace(JOB, job_id=0, granted=(), share=RANGE)
    offers = offers_of(RANGE, Settings(), driver="580.95")
    grant = allocation.grant(job, GPUS[:1], offers, Settings(), processes=4)
    plan = allocation.decide(grant, PreparedGpus(served={"GPU-0": PreparedGpu("/p")}), Settings())
    assert [(slot.memory_least_mib, slot.memory_cap_mib) for slot in plan.slots] == [(8192, 20480)] * 4
    (note,) = plan.notes
    assert "8192M of GPU memory are booked for each task and 20480M are its cap" in note

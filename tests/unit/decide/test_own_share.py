"""GPUs dealt without a plan: which ones a process was shown, who gets them, with MPS or without."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_share.decide import own_share
from slurm_share.decide.own_share import Visible
from slurm_share.errors import LaunchError
from slurm_share.records import Gpu, MpsOffer, ShareRequest
from slurm_share.settings import Settings

GPUS = tuple(Gpu(f"GPU-{index}aaa-{index}", index, index, "V100", 32768) for index in range(4))
MIG = (
    replace(GPUS[0], mig_parent=True),
    Gpu("MIG-1", 0, None, "1g.10gb", 9000),
    Gpu("MIG-2", 0, None, "1g.10gb", 9000),
)
CAN = MpsOffer(48)


def indices(words, gpus=GPUS):
    return [one.gpu.index for one in own_share.visible(words, gpus, "n1")]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("0,1", [0, 1]),
        ("3, 1", [3, 1]),
        ("GPU-2aaa-2,0", [2, 0]),
        ("GPU-3", [3]),
        ("", []),
        ("NoDevFiles", []),
        ("-1", []),
        ("1,-1,2", [1]),
    ],
)
def test_what_cuda_would_see(words, expected):
    """CUDA_VISIBLE_DEVICES as Slurm and people write it, in its order."""
    assert indices(words) == expected


def test_a_number_is_a_place_in_the_list_that_the_job_sees():
    """Under ConstrainDevices the driver lists the job's GPUs alone: its 0 is the node's third."""
    assert own_share.visible("0", (GPUS[2],), "n1")[0].gpu is GPUS[2]


def test_instances_stand_for_their_parent():
    """MIG: work runs on the instances; the GPU itself is refused."""
    assert [one.gpu.uuid for one in own_share.visible(None, MIG, "n1")] == ["MIG-1", "MIG-2"]
    assert [one.gpu.uuid for one in own_share.visible("MIG-2", MIG, "n1")] == ["MIG-2"]
    with pytest.raises(LaunchError, match="GPU 0 is in MIG mode"):
        own_share.visible("0", MIG, "n1")


@pytest.mark.parametrize("word", ["4", "GPU-9", "GPU-", "x", "0001", "\u0661", "0;1"])
def test_a_word_that_names_no_gpu_is_an_error_that_lists_them(word):
    """The tasks would find no GPU, and say so less well."""
    with pytest.raises(LaunchError, match=r"n1 cannot run .* CUDA_VISIBLE_DEVICES names GPU .* 0 \(GPU-0aaa-0\), 1"):
        own_share.visible(word, GPUS, "n1")


def test_without_a_driver_slurms_words_are_kept():
    """Nothing is known of them, and CUDA may know them all the same."""
    assert own_share.visible("0,GPU-x", None, "n1") == (Visible("0", None), Visible("GPU-x", None))
    assert own_share.visible(None, None, "n1") == ()


def of(count):
    return tuple(Visible(gpu.uuid, gpu) for gpu in GPUS[:count])


def test_five_processes_take_two_gpus_in_turn_and_are_not_capped():
    """As at LLSC: nobody wrote a share."""
    slots = own_share.slots(5, of(2), None, Settings(sm="even"))
    assert [slot.gpu.index for slot in slots] == [0, 1, 0, 1, 0]
    assert {(slot.memory_cap_mib, slot.memory_fraction, slot.thread_percent) for slot in slots} == {(None, None, None)}


def test_an_even_part_is_that_of_the_processes_there_are():
    """Two a GPU, where four were allowed: (32768 less 2 % less 512) / 2."""
    slots = own_share.slots(4, of(2), ShareRequest(4), Settings())
    assert {slot.memory_cap_mib for slot in slots} == {15800}
    assert {slot.memory_fraction for slot in slots} == {"0.482"}
    asked = own_share.slots(4, of(2), ShareRequest(4, mem_mib=4096, sm=20), Settings())
    assert {(slot.memory_cap_mib, slot.thread_percent) for slot in asked} == {(4096, 20)}


def test_more_processes_than_the_share_has_slots():
    """The arithmetic, and what to write instead."""
    with pytest.raises(LaunchError) as caught:
        own_share.check(9, of(2), ShareRequest(4), Settings(), "n1")
    assert str(caught.value) == (
        "n1 cannot run its processes: 9 processes are more than 2 GPUs x 4 = 8 slots; write --share-gpu=5, or a triple "
        "with at most 8 on a node"
    )
    own_share.check(8, of(2), ShareRequest(4), Settings(), "n1")
    own_share.check(100, of(2), None, Settings(), "n1")


def test_what_no_share_can_hold_is_not_recommended():
    """N ends at 60."""
    said = own_share.too_many(200, 2, 1)
    assert said == "200 processes are more than 1 GPU x 2 = 2 slots; write a triple with at most 2 on a node"


def test_a_share_of_no_gpu_is_refused_and_a_run_without_one_is_not():
    """CPU triples are triples."""
    own_share.check(8, (), None, Settings(), "n1")
    with pytest.raises(LaunchError, match="it has none for this run"):
        own_share.check(8, (), ShareRequest(4), Settings(), "n1")


def test_simulated_gpus_are_dealt_where_the_site_says_so():
    """As the Prolog has it."""
    gpus = (Visible("0", replace(GPUS[0], simulated=True)),)
    own_share.check(1, gpus, None, Settings(simulated_gpus=True), "n1")
    with pytest.raises(LaunchError, match="simulated_gpus is not set"):
        own_share.check(1, gpus, None, Settings(), "n1")


@pytest.mark.parametrize(
    ("gpus", "per_gpu", "share", "needed"),
    [
        (of(1), 2, None, True),
        (of(1), 1, None, False),
        ((), 0, None, False),
        (of(1), 1, ShareRequest(4), False),
        (of(1), 1, ShareRequest(4, mps=True), True),
        (of(1), 1, ShareRequest(4, mem_mib=100), True),
        (of(1), 1, ShareRequest(4, sm=10), True),
        (of(1), 2, ShareRequest(4), True),
    ],
)
def test_who_needs_mps(gpus, per_gpu, share, needed):
    """Two tasks on a GPU, or a cap that nobody else enforces."""
    assert own_share.needs_mps(gpus, per_gpu, share, Settings()) is needed


@pytest.mark.parametrize(
    ("gpus", "per_gpu", "share", "offer", "why"),
    [
        (of(2), 2, None, CAN, None),
        (of(2), 2, ShareRequest(2, mps=False), CAN, "mps=off was asked"),
        (of(2), 2, None, MpsOffer(48, "there is no program"), "there is no program"),
        ((Visible("MIG-1", MIG[1]),), 2, None, CAN, "a MIG instance is a GPU of its own and takes no MPS here"),
        (of(1), 49, None, CAN, "49 tasks on a GPU are more than the 48 clients that MPS takes with its driver"),
        (of(1), 48, None, CAN, None),
    ],
)
def test_why_there_is_no_mps(gpus, per_gpu, share, offer, why):
    """None: there is."""
    assert own_share.why_no_mps(gpus, per_gpu, share, offer) == why


def test_a_daemon_that_did_not_start_is_said_of_its_gpu():
    """The other GPU's tasks have theirs."""
    slots = own_share.slots(4, of(2), None, Settings())
    settled, notes = own_share.settle(slots, {GPUS[0].uuid: "/tmp/p"}, {GPUS[1].uuid: "no server"})
    assert [slot.pipe for slot in settled] == ["/tmp/p", None, "/tmp/p", None]
    assert notes == ("GPU 1 is shared without MPS: no server; its tasks take turns, and no cap is enforced",)

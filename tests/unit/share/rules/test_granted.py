"""The GPUs that a job or a launcher was granted, and whether a job has a part of one."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from slurm_share.core.records import ShareRequest
from slurm_share.node.records import Gpu
from slurm_share.share.rules import granted
from slurm_share.slurm.records import JobContext

GPUS = tuple(Gpu(f"GPU-{index}aaa-{index}", index, index, "V100", 32768) for index in range(4))
MIG = (
    replace(GPUS[0], mig_parent=True),
    Gpu("MIG-1", 0, None, "1g.10gb", 9000),
    Gpu("MIG-2", 0, None, "1g.10gb", 9000),
)
PART = JobContext(7, 2001, 2001, "n1", ("0",), ShareRequest(4), exclusive="user", tasks=1, nodes=1)


def test_a_part_is_one_task_on_one_gpu_of_a_users_node():
    """Every word of it counts: N above 1, one task, one node, one GPU, a node of one user, and not srun alone."""
    small = ShareRequest(2, mem_mib=8192, sm=10, sharing="mps")
    values = itertools.product(
        (None, ShareRequest(1), ShareRequest(1, sm=25), ShareRequest(4), small), (None, 0, 1, 2), (None, 0, 1, 2),
        ((), ("0",), ("GPU-0",), ("0", "1")), (None, "user", "node"), (False, True),
    )  # fmt: skip
    names = ("share", "tasks", "nodes", "granted", "exclusive", "direct")
    found = [words for words in values if granted.is_part(replace(PART, **dict(zip(names, words, strict=True))))]
    parts = itertools.product((ShareRequest(4), small), (1,), (None, 1), (("0",), ("GPU-0",)), ("user",), (False,))
    assert found == list(parts)


# ---- What CUDA would see ----


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
    assert [gpu.index for gpu in granted.visible_gpus(words, GPUS)] == expected


def test_a_number_is_a_place_in_the_list_that_the_job_sees():
    """Under ConstrainDevices the driver lists the job's GPUs alone: its 0 is the node's third."""
    assert granted.visible_gpus("0", (GPUS[2],)) == (GPUS[2],)


def test_instances_stand_for_their_parent():
    assert granted.visible_gpus(None, MIG) == MIG[1:]
    assert granted.visible_gpus("MIG-2", MIG) == MIG[2:]
    assert granted.visible_gpus("0", MIG) == MIG[:1]


def test_an_instance_is_found_by_the_name_that_drivers_before_470_gave_it():
    named = (MIG[0], replace(MIG[1], mig_place="GPU-0/7/0"), replace(MIG[2], mig_place="GPU-0/8/0"))
    assert granted.granted_gpus(("MIG-GPU-0/8/0", "MIG-1"), named) == ((named[2], named[1]), ())
    assert granted.visible_gpus("MIG-GPU-0/7/0", named) == named[1:2]
    assert granted.granted_gpus(("MIG-GPU-0/9/0", "MIG-GPU-0/7"), named) == ((), ("MIG-GPU-0/9/0", "MIG-GPU-0/7"))
    assert granted.granted_gpus(("MIG-GPU-0/7/0", "MIG-1"), named) == (named[1:2], ("MIG-1",)), "one GPU twice"


@pytest.mark.parametrize("word", ["4", "GPU-9", "GPU-", "x", "0001", "\u0661", "0;1"])
def test_a_word_that_names_no_gpu_is_an_error_that_lists_them(word):
    with pytest.raises(ValueError, match=r"CUDA_VISIBLE_DEVICES names GPU .* 0 \(GPU-0aaa-0\), 1"):
        granted.visible_gpus(word, GPUS)


def test_without_a_driver_slurms_words_are_kept():
    found = granted.visible_gpus("0,GPU-x", None)
    assert [(gpu.uuid, gpu.is_listed, gpu.memory_total_mib) for gpu in found] == [
        ("0", False, None),
        ("GPU-x", False, None),
    ]
    assert granted.visible_gpus(None, None) == ()


def test_a_number_that_counts_the_gpus_of_an_mps_daemon_is_not_the_drivers():
    task = {"CUDA_VISIBLE_DEVICES": "0", "SLURM_SHARE_GPU_UUID": "GPU-3", "SLURM_SHARE_MPS": "on"}
    assert granted.visible_devices(task) == "GPU-3"
    assert granted.visible_devices(task | {"SLURM_SHARE_MPS": "off"}) == "0"
    assert granted.visible_devices(task | {"CUDA_VISIBLE_DEVICES": "1"}) == "1"  # the user's own
    assert granted.visible_devices({}) is None


# ---- GPUs of several types ----

TYPED = replace(PART, granted=("2", "3"), tasks=None)


def test_a_whole_nodes_job_has_all_gpus_if_slurm_and_the_driver_have_as_many():
    whole = replace(TYPED, exclusive="node")
    assert granted.whole_node(whole, GPUS, 4) == tuple(gpu.uuid for gpu in GPUS)
    lost = (*GPUS[:3], replace(GPUS[3], uuid="", problem="GPU is lost"))
    assert granted.whole_node(whole, lost, 4) == (*(gpu.uuid for gpu in GPUS[:3]), "3")
    assert granted.whole_node(whole, (*MIG, GPUS[1]), 3) == ("MIG-1", "MIG-2", GPUS[1].uuid)
    for job, count in ((whole, 3), (whole, None), (TYPED, 4), (replace(TYPED, exclusive=None), 4)):
        assert granted.whole_node(job, GPUS, count) is None


def test_the_controllers_numbers_are_the_jobs_gpus_if_they_contain_those_of_slurmd():
    assert granted.of_numbers(TYPED, GPUS, 4, (2, 3), (0, 2, 3)) == ("0", "2", "3")
    for known in ((0, 1), (2,), ()):
        assert granted.of_numbers(TYPED, GPUS, 4, (2, 3), known) is None
    assert granted.of_numbers(TYPED, GPUS, 4, (2,), (0, 2, 3)) is None
    unsure = replace(TYPED, has_sure_gpus=False)
    assert granted.of_numbers(unsure, GPUS, 4, (2, 3), (0, 1)) == ("0", "1")


def test_a_mig_instance_is_the_drivers_in_the_same_place_if_all_that_is_known_fits():
    gpus = (*MIG, GPUS[1])  # Slurm's 0 and 1 are the instances, and 2 is the GPU
    job = replace(TYPED, granted=("MIG-2",))
    assert granted.of_numbers(job, gpus, 3, (1,), (0, 1, 2)) == ("MIG-1", "MIG-2", GPUS[1].uuid)
    assert granted.of_numbers(job, gpus, 4, (1,), (0, 1, 2)) is None
    assert granted.of_numbers(job, gpus, None, (1,), (0, 1, 2)) is None
    assert granted.of_numbers(job, gpus, 3, (0,), (0, 1, 2)) is None
    assert granted.of_numbers(job, gpus, 3, (1,), (1, 9)) is None

"""The plan's text is the same plan again, and a damaged one is refused by line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from plans import plain_plan

from slurm_share.core import names
from slurm_share.core.errors import StateError
from slurm_share.core.records import ShareRequest
from slurm_share.node.records import Gpu
from slurm_share.share import plan as plan_text
from slurm_share.share.records import Assignment, Plan, Refusal, Slot, UnsharedReason

GPU = Gpu("GPU-1", 0, 3, "NVIDIA H100", 81920)
PLAN = Plan(
    job_id=4711,
    uid=2001,
    node="n2",
    share=ShareRequest(2, mem_mib=8192),
    gpus=(GPU,),
    cores=((0, 8), (1, 9)),
    notes=("GPU 0 is an old one",),
    slots=(
        Slot(0, GPU, 0, 8192, "0.100", 12.5, "/run/p0", "mps"),
        Slot(1, GPU, 1, backend="other", on_gpu=1, variables=(Assignment("A", "b", True), Assignment("C", "="))),
    ),
)
REFUSED = Refusal(4711, 2001, "n2", "job 4711 has no GPU here")
UNSHARED = UnsharedReason(4711, 2001, "n2", "the controller has sharing switched off")
OF_ANY = "CUDA_VISIBLE_DEVICES=GPU-1 SLURM_SHARE_SLOT={} SLURM_SHARE_SLOTS=2 SLURM_SHARE_PER_GPU=2 "
OF_GPU = "SLURM_SHARE_GPU_UUID=GPU-1 SLURM_SHARE_GPU_INDEX=0 SLURM_SHARE_GPU_MINOR=3 "


OF_DRIVER = replace(
    PLAN.slots[0],
    memory_cap_mib=20480,
    memory_least_mib=8192,
    partition="GPU-1/D/79e+DgwY=",
    sm_count=24,
    is_cap_of_driver=True,
)
WITH_DRIVER = replace(PLAN, slots=(OF_DRIVER, PLAN.slots[1]))
WITH_LOST = replace(PLAN, lost=("1", "GPU-7"))


@pytest.mark.parametrize(
    "plan",
    [PLAN, WITH_LOST, WITH_DRIVER, REFUSED, UNSHARED],
    ids=["carried out", "lost", "cap of the driver", "refused", "unshared"],
)
def test_a_plan_survives_being_written_and_read(plan):
    assert plan_text.parse(plan_text.render(plan)) == plan


def test_the_text_is_the_documented_one():
    assert plan_text.render(PLAN).splitlines() == [
        "slurm-share-plan 3",
        "job 4711",
        "uid 2001",
        "node n2",
        "share 2,mem=8192M",
        "gpus 1",
        "slots 2",
        "cores 0,8 1,9",
        "note GPU 0 is an old one",
        "gpu 0 uuid=GPU-1 index=0 minor=3 memory_mib=81920 name=NVIDIA H100",
        "slot 0 gpu=0 part=0/2 backend=mps memory_cap_mib=8192 memory_ratio=0.100 sm_percent=12.5 "
        "mps_directory=/run/p0",
        f"environment {OF_ANY.format(0)}{OF_GPU}SLURM_SHARE_MPS=on CUDA_MPS_PIPE_DIRECTORY=/run/p0 "
        "CUDA_MPS_PROTOCOL_VERSION=2 CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=12.5 CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M "
        "SLURM_SHARE_SHARING=mps SLURM_SHARE_MEM_LIMIT=mps "
        "XLA_PYTHON_CLIENT_MEM_FRACTION?=0.100 TF_FORCE_GPU_ALLOW_GROWTH?=true",
        "slot 1 gpu=0 part=1/2 backend=other on_gpu=1 backend_variables=2",
        f"environment {OF_ANY.format(1)}{OF_GPU}SLURM_SHARE_MPS=off CUDA_MPS_PIPE_DIRECTORY=/run/slurm-share/no-mps "
        "SLURM_SHARE_SHARING=time-slicing SLURM_SHARE_MEM_LIMIT=none A?=b C==",
        "end",
    ]


@given(st.integers(0, len(plan_text.render(PLAN)) - 1))
def test_a_torn_plan_is_never_read_as_a_plan(length):
    with pytest.raises(StateError):
        plan_text.parse(plan_text.render(PLAN)[:length])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("slurm-share-plan 3", "slurm-share-plan 4"),
        ("slurm-share-plan 3", "slurm-share-plan 1"),
        ("job 4711", "job x"),
        *(("job 4711", f"job {text}") for text in ("0", "04711", "-1", "4_7", "4294967296", "4711,1", "9" * 3000)),
        ("node n2", "node \x12"),
        ("node n2", "node " + "n" * 4091),
        ("cores 0,8 1,9", "cores 0,8  1,9"),
        ("cores 0,8 1,9", "cores 0,8 1,8192"),
        ("cores 0,8 1,9", "cores 0,8 1,-9"),
        ("share 2,mem=8192M", "share 2,mem=8G"),
        ("uid 2001\n", ""),
        ("gpus 1", "gpus 0"),
        ("gpus 1", "gpus 2"),
        ("slots 2", "slots 3"),
        ("slots 2", "slots 1025"),
        ("gpu 0 uuid=GPU-1", "gpu 1 uuid=GPU-1"),
        ("uuid=GPU-1 ", ""),
        ("index=0 ", "index=x "),
        ("minor=3", "minor=03"),
        ("memory_mib=81920", "memory_mib=1e3"),
        (" name=NVIDIA H100", ""),
        ("minor=3", "simulated=no"),
        ("minor=3", "host_memory=no"),
        ("slot 1", "slot 2"),
        ("slot 1 gpu=0", "slot 1 gpu=1"),
        ("part=1/2", "part=1/3"),
        ("part=1/2", "part=2/2"),
        ("part=1/2 ", ""),
        ("backend=mps ", ""),
        ("backend=mps", "backend=mps backend=mps"),
        ("backend=mps", "backend=mps color=red"),
        ("backend=mps", "backend="),
        ("backend=mps", "backend=\x7f"),
        ("sm_percent=12.5", "sm_percent=half"),
        ("memory_ratio=0.100", "memory_ratio=.1"),
        ("mps_directory=/run/p0", "mps_directory=run/p0"),
        ("on_gpu=1", "on_gpu=-1"),
        ("backend_variables=2", "backend_variables=99"),
        ("A?=b", "A?b"),
        ("environment ", "environ "),
        ("share 2,mem=8192M", "share off"),
        ("share 2,mem=8192M", "share lots"),
        ("end\n", "more\nend\n"),
    ],
)
def test_a_damaged_plan_is_refused_with_its_file_and_line(old, new):
    text = plan_text.render(PLAN)
    assert old in text
    with pytest.raises(StateError, match=r"^/x/plan: line \d+: "):
        plan_text.parse(text.replace(old, new, 1), "/x/plan")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("memory_least_mib=8192", "memory_least_mib=20481"),
        ("memory_cap_mib=20480 ", ""),
        ("memory_cap_mib=20480 memory_ratio=0.100", "memory_ratio=0.100 cap_by=driver"),
        ("cap_by=driver", "cap_by=mps"),
        ("sm_count=24", "sm_count=many"),
        ("partition=GPU-1/D/79e+DgwY=", "partition="),
    ],
)
def test_a_cap_of_the_driver_that_cannot_be_is_refused(old, new):
    text = plan_text.render(WITH_DRIVER)
    assert old in text
    with pytest.raises(StateError, match=r"^/x/plan: line 11: "):
        plan_text.parse(text.replace(old, new, 1), "/x/plan")


def test_nothing_is_read_out_of_the_environment():
    text = plan_text.render(PLAN)
    changed = text.replace("CUDA_MPS_PIPE_DIRECTORY=/run/p0", "CUDA_MPS_PIPE_DIRECTORY=/other")
    changed = changed.replace("SLURM_SHARE_GPU_INDEX=0", "SLURM_SHARE_GPU_INDEX=7")
    assert changed != text
    assert plan_text.parse(changed) == PLAN


@pytest.mark.parametrize("value", ["a b", "a\n", "é", "\0"])
def test_a_value_that_the_format_cannot_hold_is_not_written(value):
    """A blank would become another assignment."""
    slot = replace(PLAN.slots[0], variables=(Assignment("NAME", value),))
    with pytest.raises(ValueError, match="cannot hold"):
        plan_text.render(replace(PLAN, slots=(slot,)))
    with pytest.raises(ValueError, match="cannot hold"):
        plan_text.render(replace(PLAN, slots=(replace(PLAN.slots[0], mps_directory=value),)))


def test_the_drivers_words_fit_into_a_note_and_a_name():
    """A sentence may quote text that is not ours: it is flattened, made ASCII and cut."""
    theirs = "a\nb\x1b[31m é " + "x" * 10_000
    text = plan_text.render(Refusal(1, 2, "n", theirs))
    assert plan_text.parse(text).sentence.startswith("a b?[31m ?")
    assert max(map(len, text.splitlines())) < names.PLAN_MAX_LINE
    gpu = replace(GPU, name=theirs)
    plan = plain_plan(gpus=(gpu,), slots=(Slot(0, gpu, 0),), notes=(theirs,))
    found = plan_text.parse(plan_text.render(plan))
    assert found.gpus[0].name.startswith("a b?[31m ?")
    assert found.notes[0].startswith("a b?[31m ?")

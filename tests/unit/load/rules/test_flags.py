"""Which nodes deserve a look."""

from __future__ import annotations

import llload_surveys
import pytest
from llload_surveys import gpu
from msgspec.structs import replace

from slurm_share.load.rules import flags
from slurm_share.load.snapshot import GpuLoad, HeldGpu, JobLoad, NodeLoad
from slurm_share.load.text import mark


def node(*, load=20.0, gpu_loads=(), memory_used=10, gpus=None, **more):
    """A node that answers: 40 CPUs, 100 GB, GPUs with these loads."""
    gpus = [gpu(at, load=one) for at, one in enumerate(gpu_loads)] if gpus is None else gpus
    return llload_surveys.node(load=load, memory=100, memory_used=memory_used, gpus=gpus, **more)


def codes(one):
    return tuple(dict.fromkeys(flag.code for flag in flags.flags(one)))


@pytest.mark.parametrize(
    ("load", "expected"),
    [(19.0, ("cL",)), (19.9, ()), (20.0, ()), (60.0, ()), (60.1, ()), (61.0, ("cH",)), (0.0, ("cL",))],
)
def test_llscs_band_of_cpu_load(load, expected):
    assert codes(node(load=load)) == expected


@pytest.mark.parametrize(
    ("loads", "expected"),
    [((40.0, 40.0), ("gL",)), ((50.0, 50.0), ()), ((100.0, 0.0), ()), ((100.0, 100.0), ()), ((100.0, None), ())],
)
def test_llscs_band_of_gpu_load(loads, expected):
    assert codes(node(gpu_loads=loads)) == expected
    assert codes(node(gpu_loads=(40.0,))) == ("gL",)


def test_a_high_load_is_told_with_the_cpu_time():
    """Tasks that wait for storage count in the load average."""
    seen = node(load=130.0)
    seen = replace(seen, snapshot=replace(seen.snapshot, cpu_cores=3.0))
    (flag,) = flags.flags(seen)
    assert (flag.code, "CPU time now 3.0 cores" in flag.why) == ("cH", True)
    (low,) = flags.flags(replace(seen, snapshot=replace(seen.snapshot, load=(1.0, 1.0, 1.0))))
    assert "CPU time" not in low.why


def test_what_is_in_use_is_what_counts():
    assert codes(node(load=10.0, used=10)) == ()
    assert codes(node(load=30.0, used=10)) == ("cH",)
    assert codes(node(gpu_loads=(100.0, 100.0), gpus_used=1)) == ("gH",)


def test_an_idle_node_is_not_too_low():
    assert codes(node(load=0.0, used=0, gpu_loads=(0.0,), gpus_used=0)) == ()


def test_what_is_unknown_is_no_reason():
    assert codes(node(gpu_loads=(None,))) == ()
    assert codes(NodeLoad(name="n1", why="down")) == ("n!",)


def test_memory_problems_and_kills():
    assert codes(node(memory_used=96)) == ("m!",)
    killed = JobLoad(job=1, uid=1, user="a", memory_kills=2)
    assert codes(node(jobs=(killed, killed))) == ("mH",)
    full = GpuLoad(uuid="G", index=0, name="x", memory_total_mib=100, memory_used_mib=99)
    assert codes(node(gpus=(full,))) == ("v!",)
    lost = GpuLoad(uuid="G", index=0, name="x", problem="GPU is lost")
    assert codes(node(gpus=(lost,), problems=("no cgroup",))) == ("n!",)


def test_a_node_without_gpus_needs_no_driver():
    problem = "this node has no NVIDIA driver, or it is not loaded"
    assert codes(node(problems=(problem,))) == ()
    assert codes(node(gpu_loads=(80.0,), problems=(problem,))) == ("n!",)


def test_a_gpu_that_a_job_leaves_idle_is_flagged():
    held = tuple(
        HeldGpu(uuid=f"GPU-{at}", index=at, job=7, user="alice", idle=idle)
        for at, idle in enumerate((True, False, None))
    )
    one = replace(node(gpu_loads=(100.0, 60.0, 60.0)), held_gpus=held)
    assert [(flag.code, flag.uuid, flag.why) for flag in flags.flags(one)] == [
        ("iL", "GPU-0", "GPU 0: idle, job 7 of alice holds it (below 5 % for 10 min)")
    ]


def test_every_letter_has_a_meaning():
    assert {one + letter for one in "cg" for letter in "LH"} | {"iL", "m!", "mH", "v!", "n!"} == set(flags.MEANINGS)


def test_every_code_has_a_severity_and_dead_is_above_full_above_waste_above_hints():
    found = {code: flags.severity((code,)) for code in flags.MEANINGS}
    assert {code for code, severity in found.items() if severity == "dead"} == {"n!"}
    assert {code for code, severity in found.items() if severity == "full"} == {"m!", "mH", "v!"}
    assert {code for code, severity in found.items() if severity == "waste"} == {"iL"}
    assert {code for code, severity in found.items() if severity == "hint"} == {"cL", "cH", "gL", "gH"}
    assert flags.severity(("cL", "iL", "v!")) == "full"
    assert flags.severity(()) == ""


def test_hints_need_no_attention_and_waste_does():
    assert [flags.needs_attention(codes) for codes in ((), ("cL", "gH"), ("cL", "iL"), ("v!",), ("n!",))] == [
        False, False, True, True, True
    ]  # fmt: skip


@pytest.mark.parametrize("why", ["the job is suspended", "the job is starting", "the job is ending", "powered down"])
def test_silence_that_is_expected_is_no_flag(why):
    assert codes(NodeLoad(name="n1", why=why)) == ()


def test_only_what_is_wrong_now_is_marked_red():
    """Use, even full use, and what is over are not."""
    assert {code for code in flags.MEANINGS if mark(code) == "!"} == {"n!", "m!"}
    assert {code for code in flags.MEANINGS if mark(code) == "H"} == {"mH", "v!", "iL"}

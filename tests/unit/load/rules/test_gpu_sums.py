"""A line per node from the sums over its GPUs is the line from the GPUs themselves."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_share.load.rules.figures import figures
from slurm_share.load.rules.flags import flags
from slurm_share.load.snapshot import GpuLoad, Means, NodeLoad, Snapshot


def gpu(index, used=100, load=50.0, *, sm=True, **more):
    means = None if load is None else Means(m1=load, m5=load, m15=load, over_s=600.0)
    return GpuLoad(
        uuid=f"GPU-{index}",
        index=index,
        name="Fake",
        memory_total_mib=1000,
        memory_used_mib=used,
        **{"sm_percent_windows" if sm else "utilization_percent_windows": means},
        **more,
    )


NODES = {
    "busy": (gpu(0), gpu(1, load=70.0)),
    "idle": (gpu(0, 0, 0.0),),
    "without GPUs": (),
    "one of each counter": (gpu(0), gpu(1, sm=False)),
    "one silent": (gpu(0), gpu(1, None, None)),
    "all silent": (gpu(0, None, None),),
    "instances": (gpu(0, None, None, mig_parent=True), gpu(1, mig_of="GPU-0"), gpu(2, mig_of="GPU-0")),
}


@pytest.mark.parametrize("gpus", NODES.values(), ids=NODES)
def test_the_line_is_the_same(gpus):
    whole = Snapshot(node="n1", taken=1.0, measured_s=600.0, cpus=16, cores=8, gpus=gpus)
    line = replace(whole, gpus=(), gpu_sums=whole.sums)
    assert figures(NodeLoad(name="n1", snapshot=line)) == figures(NodeLoad(name="n1", snapshot=whole))


def test_a_gpu_that_is_full_or_lost_is_flagged():
    whole = Snapshot(node="n1", taken=1.0, cpus=16, cores=8, gpus=(gpu(0, 990), gpu(1, problem="GPU is lost")))
    line = replace(whole, gpus=(), gpu_sums=whole.sums)
    for one in (whole, line):
        found = flags(NodeLoad(name="n1", snapshot=one))
        assert {flag.code for flag in found if flag.letter == "!"} == {"v!", "n!"}
    words = [flag.why for flag in flags(NodeLoad(name="n1", snapshot=line))]
    assert "1 of 2 GPUs cannot be used" in words
    assert "the fullest GPU has 99 % of its memory in use" in words

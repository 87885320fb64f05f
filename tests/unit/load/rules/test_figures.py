"""The sums of a node's line."""

from __future__ import annotations

import llload_surveys
import pytest
from msgspec.structs import replace

from slurm_share.load.rules import figures
from slurm_share.load.rules.flags import flags
from slurm_share.load.snapshot import GpuLoad, Means, NodeLoad, Snapshot
from slurm_share.slurm.records import SlurmNode


def node(name="n1", gpus=(), *, load=None, cpus=8, states=("ALLOCATED",), slurm_gpus=None, hidden=0):
    slurm = SlurmNode(
        name=name,
        states=states,
        cpus=cpus,
        cpus_allocated=4,
        memory_mib=1000,
        gpus=len(gpus) if slurm_gpus is None else slurm_gpus,
        gpus_allocated=1,
        load5=3.0,
    )
    snapshot = Snapshot(
        node=name, taken=0.0, cpus=cpus, cores=cpus, load=load, gpus=tuple(gpus), hidden_gpus=hidden, memory_used_mib=7
    )
    return NodeLoad(name=name, slurm=slurm, snapshot=snapshot)


def gpu(m5=None, *, sm=None, now=None, over=900.0, total=100, used=50, **more):
    """A GPU by its 5-minute means."""
    return GpuLoad(
        uuid="GPU-1",
        index=0,
        name="x",
        memory_total_mib=total,
        memory_used_mib=used,
        utilization_percent=now,
        utilization_percent_windows=None if m5 is None else Means(0.0, m5, 0.0, over),
        sm_percent_windows=None if sm is None else Means(0.0, sm, 0.0, over),
        **more,
    )


def test_gpu_load_is_the_sum_over_the_gpus():
    """2.0 is two fully busy; SM activity where it is known, utilisation elsewhere, and what it is by."""
    assert figures.figures(node(gpus=(gpu(100.0), gpu(100.0)))).gpu_load == 2.0
    both = figures.figures(node(gpus=(gpu(90.0, sm=50.0), gpu(25.0))))
    assert (both.gpu_load, both.gpu_load_by) == (0.75, "both")
    assert figures.figures(node(gpus=(gpu(90.0, sm=50.0),))).gpu_load_by == "sm"


def test_what_is_not_measured_over_five_minutes_says_how_long_it_is():
    assert figures.figures(node(gpus=(gpu(1.0), gpu(1.0, over=20.0)))).gpu_load_over_s == 20.0
    now = figures.figures(node(gpus=(gpu(now=70.0),)))
    assert (now.gpu_load, now.gpu_load_over_s) == (0.7, 0.0)
    assert figures.figures(node(gpus=(gpu(1.0),))).gpu_load_over_s == 300.0


def test_a_mig_gpu_is_not_counted_twice():
    one = figures.figures(node(gpus=(gpu(mig_parent=True), gpu(sm=50.0, mig_of="GPU-1"), gpu(sm=25.0, mig_of="GPU-1"))))
    assert (one.gpu_load, one.gpu_memory_mib, one.gpu_memory_used_mib) == (0.75, 200, 100)


def test_a_gpu_that_does_not_say_makes_the_sum_partial():
    one = figures.figures(node(gpus=(gpu(50.0), gpu(used=None))))
    assert (one.gpu_load, one.partial_gpu_load) == (0.5, True)
    assert (one.gpu_memory_used_mib, one.partial_gpu_memory) == (50, True)
    none = figures.figures(node(gpus=(gpu(used=None),)))
    assert (none.gpu_load, none.gpu_memory_used_mib, none.partial_gpu_load) == (None, None, False)


def test_no_gpus_is_0_and_a_silent_driver_is_unknown():
    assert (figures.figures(node()).gpu_load, figures.figures(node()).gpu_memory_mib) == (0.0, 0)
    silent = figures.figures(node(slurm_gpus=2))
    assert (silent.gpus, silent.gpu_load, silent.gpu_memory_mib) == (2, None, None)
    hidden = NodeLoad(name="n1", snapshot=node(hidden=2).snapshot)
    assert (figures.figures(hidden).gpus, figures.figures(hidden).gpu_load) == (2, None)


def test_load_is_the_nodes_own_else_slurms():
    assert figures.figures(node(load=(1.0, 2.0, 4.0))).load == 2.0
    assert figures.figures(node()).load == 3.0
    quiet = node()
    assert figures.figures(NodeLoad(name="n1", slurm=quiet.slurm)).load == 3.0
    assert figures.figures(NodeLoad(name="n1", slurm=node(states=("DOWN",)).slurm)).load is None


@pytest.mark.parametrize("states", [("DOWN",), ("IDLE", "DRAIN"), ("MIXED", "NOT_RESPONDING"), ("IDLE", "RESERVED")])
def test_nothing_is_free_where_no_job_starts(states):
    assert figures.figures(node(states=states)).cpus_free is None
    assert figures.figures(node()).cpus_free == 4


def test_unknown_comes_last_in_every_order():
    nodes = (NodeLoad(name="n3"), node("n10", load=(0, 9.0, 0)), node("n2", load=(0, 1.0, 0)))
    assert [one.name for one in figures.in_order(nodes, "load", down=False)] == ["n2", "n10", "n3"]
    assert [one.name for one in figures.in_order(nodes, "load", down=True)] == ["n10", "n2", "n3"]
    assert [one.name for one in figures.in_order(nodes, "hostname", down=False)] == ["n2", "n3", "n10"]
    for column in figures.COLUMNS:
        assert figures.in_order(nodes, column, down=True)[-1].name == "n3"


def test_the_busiest_node_is_the_fullest_for_its_size():
    small, large = node("small", load=(0, 8.0, 0)), node("large", load=(0, 20.0, 0), cpus=96)
    assert [one.name for one in figures.busiest((NodeLoad(name="x"), large, small), 2)] == ["small", "large"]


# ---- A line per node from the sums over its GPUs is the line from the GPUs themselves ----


def summed_gpu(index, used=100, load=50.0, *, sm=True, **more):
    return llload_surveys.gpu(index, total=1000, used=used, load=load, sm=sm, **more)


NODES = {
    "busy": (summed_gpu(0), summed_gpu(1, load=70.0)),
    "idle": (summed_gpu(0, 0, 0.0),),
    "without GPUs": (),
    "one of each counter": (summed_gpu(0), summed_gpu(1, sm=False)),
    "one silent": (summed_gpu(0), summed_gpu(1, None, None)),
    "all silent": (summed_gpu(0, None, None),),
    "instances": (
        summed_gpu(0, None, None, mig_parent=True),
        summed_gpu(1, mig_of="GPU-0"),
        summed_gpu(2, mig_of="GPU-0"),
    ),
}


@pytest.mark.parametrize("gpus", NODES.values(), ids=NODES)
def test_the_line_is_the_same(gpus):
    whole = Snapshot(node="n1", taken=1.0, measured_s=600.0, cpus=16, cores=8, gpus=gpus)
    line = replace(whole, gpus=(), gpu_sums=whole.sums)
    assert figures.figures(NodeLoad(name="n1", snapshot=line)) == figures.figures(NodeLoad(name="n1", snapshot=whole))


def test_a_gpu_that_is_full_or_lost_is_flagged():
    whole = Snapshot(
        node="n1", taken=1.0, cpus=16, cores=8, gpus=(summed_gpu(0, 990), summed_gpu(1, problem="GPU is lost"))
    )
    line = replace(whole, gpus=(), gpu_sums=whole.sums)
    for one in (whole, line):
        found = flags(NodeLoad(name="n1", snapshot=one))
        assert {flag.code for flag in found if flag.letter == "!"} == {"v!", "n!"}
    words = [flag.why for flag in flags(NodeLoad(name="n1", snapshot=line))]
    assert "1 of 2 GPUs cannot be used" in words
    assert "the fullest GPU has 99 % of its memory in use" in words

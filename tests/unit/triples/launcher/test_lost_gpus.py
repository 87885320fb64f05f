"""GPUs for which the driver does not answer, or reports no memory, in a launcher that has no plan."""

from __future__ import annotations

import pytest

from slurm_share.core.errors import LaunchError
from slurm_share.node.records import Gpu
from slurm_share.share import visible_gpus
from slurm_share.triples.launcher.pack_gpus import size_notes
from slurm_share.triples.launcher.slot_assignment import LauncherJob, without_lost

HERE = LauncherJob(node="n1", index=0, count=1, job="local-1")
WELL = tuple(Gpu(f"GPU-{index}", index, index, "H100", 81920) for index in (0, 2))
LOST = Gpu("GPU-unknown-1", 1, None, "unknown", None, problem="GPU is lost")
ALL = (WELL[0], LOST, WELL[1])


@pytest.mark.parametrize("visible", [None, "0,1,2", "GPU-0,GPU-1,GPU-2"])
def test_the_other_gpus_are_used_and_the_lost_one_is_named(visible):
    gpus, notes = without_lost(visible_gpus(visible, ALL), HERE)
    assert gpus == WELL
    assert notes == (
        "n1 has GPU 1, which does not answer (the driver: GPU is lost): the processes use the other 2 GPUs",
    )


def test_a_run_with_no_other_gpu_ends_with_the_reason():
    with pytest.raises(LaunchError, match="n1 cannot run its processes: n1 has GPU 1, which does not answer"):
        without_lost(visible_gpus("1", ALL), HERE)


def test_packing_names_gpus_without_a_size_of_their_own():
    unknown = Gpu("GPU-3", 3, 3, "H100", None)
    unified = Gpu("GPU-4", 4, 4, "GB10", 122880, is_host_memory=True)
    assert size_notes(HERE, WELL) == []
    first, second = size_notes(HERE, [*WELL, unknown, unified])
    assert first == "the driver does not say how much memory GPU 3 of n1 has: it takes one task at a time"
    assert second.startswith("GPU 4 of n1 uses the node's memory: its 122880 MiB (MemTotal) are booked")

"""GPUs for which the driver does not answer, in a launcher that has no plan."""

from __future__ import annotations

import pytest

from slurm_share.core.errors import LaunchError
from slurm_share.node.records import Gpu
from slurm_share.share import visible_gpus
from slurm_share.triples.launcher.slot_assignment import Here, without_lost

HERE = Here(node="n1", index=0, count=1, job="local-1")
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

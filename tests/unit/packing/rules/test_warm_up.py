"""The policies that read free memory wait until a new task has taken its own."""

from __future__ import annotations

import pytest

from slurm_share.packing.records import GpuFacts, PackSettings, TaskAsk
from slurm_share.packing.rules.board import Board
from slurm_share.packing.rules.estimate.estimator import Estimator


@pytest.mark.parametrize(("policy", "starts_s"), [("booked", 6.0), ("lug", 36.0), ("magm", 36.0)])
def test_a_gpu_opens_after_the_first_memory_and_for_policies_that_read_it_after_the_warm_up(policy, starts_s):
    """Two tasks of unknown size; the memory of the first is seen after 6 s."""
    facts = (GpuFacts(uuid="GPU-a", index=0, model="A100", total_mib=40960, is_mps=True),)
    board = Board(facts, 8, PackSettings(policy=policy, smact_max=None, warm_up_s=30.0), Estimator())
    board.add(TaskAsk(task=0), 0.0)
    board.decide(0.0)
    board.add(TaskAsk(task=1), 1.0)
    assert board.decide(1.0)[1].actions == ()
    board.sample_task(0, {"GPU-a": 400}, 1, 6.0)
    board.sample_gpu("GPU-a", 6.0, used_mib=400, sm_ratio=0.1)
    now = 6.0
    while not board.decide(now)[1].actions:
        now = board.next_s(now)
        assert now is not None
    assert now == starts_s

"""A journal is decided again."""

from __future__ import annotations

from msgspec.structs import replace

from slurm_share.packing.records import GpuFacts, PackSettings, TaskAsk
from slurm_share.packing.rules.board import Board
from slurm_share.packing.rules.estimate.chain import Estimator
from slurm_share.packing.simulator.replay import replay


def journal():
    """Return two decisions of a board: two starts, and none."""
    facts = (GpuFacts(uuid="GPU-a", index=0, model="A100", total_mib=40960, is_mps=True),)
    board = Board(facts, 8, PackSettings(), Estimator())
    for number in range(2):
        board.add(TaskAsk(task=number, gpu_mem_mib=5000), 0.0)
    first = board.decide(0.0)
    return [(view, decision.actions) for view, decision in (first, board.decide(1.0))]


def test_the_same_views_give_the_same_decisions():
    """Byte for byte."""
    decisions = journal()
    assert decisions[0][1]
    assert replay(decisions) is None
    assert replay([]) is None


def test_the_first_decision_that_differs_is_named():
    """With its time, then and now."""
    (view, actions), second = journal()
    other = (replace(actions[0], reserve_mib=1), *actions[1:])
    found = replay([second, (view, other), second])
    assert found is not None
    assert (found.index, found.then) == (1, other)
    assert str(found).startswith("decision 1, at 0.0 s: then [")

"""A minute of chaos; twenty are `python tests/chaos.py`."""

from __future__ import annotations

import pytest
from chaos_runs import plan
from chaos_runs.run import run
from conftest import name_for

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("chaos")]

SEED = 1254
"""One with which, in so short a time, nearly everything that can happen does: 26 of 28 things."""
EVENTS_S = 70.0
NODES = 4


@pytest.mark.timeout(1500)
def test_a_minute_of_chaos_loses_nothing_and_leaves_nothing(can_make_clusters: None) -> None:
    """Daemons, hooks, slurmd, slurmctld and nodes are killed, networks cut, disks filled, while two users work: no job
    is lost or runs twice by slurm-share, no node is drained by it, and nothing is left on any. Nothing befalls the last
    node: what runs there is not excused by a fault of it."""
    told: list[str] = []
    chaos, found = run(name_for("chaos"), SEED, EVENTS_S, NODES, say=told.append)
    assert found.wrong == [], "\n".join(told)
    assert (found.lost, found.twice, found.mixed, found.drained, found.left) == (0, 0, 0, 0, 0)
    assert {one.event.actor for one in chaos.done} == {*plan.USERS, *plan.hit_nodes(chaos.cluster.compute_nodes), "ctl"}
    assert found.counts["COMPLETED"] > 0

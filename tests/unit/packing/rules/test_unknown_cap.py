"""The limit of a task of unknown size."""

from __future__ import annotations

import pytest
from packing_values import gpu, running, view, waiting

from slurm_share.packing.rules import place


@pytest.mark.parametrize(("guard", "beside", "cap"), [("soft", 0, 40141), ("soft", 15_000, 25_141), ("hard", 0, 20070)])
def test_a_task_of_unknown_size_may_take_all_that_is_free_except_under_the_hard_guard(guard, beside, cap):
    runs = [running(0, 0, beside, memory=beside)] if beside else []
    decision = place.decide(view([gpu()], [waiting(1)], runs, guard=guard))
    (start,) = decision.actions
    assert (start.reserve_mib, start.cap_mib) == (20070, cap)


@pytest.mark.parametrize("guard", ["soft", "hard"])
def test_the_users_own_number_is_the_limit_as_it_stands(guard):
    (start,) = place.decide(view([gpu()], [waiting(1, word=6144)], guard=guard)).actions
    assert (start.reserve_mib, start.cap_mib) == (6144, 6144)

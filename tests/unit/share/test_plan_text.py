"""The plan's text is the same plan again, and a damaged one is refused by line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.core import names
from slurm_share.core.errors import StateError
from slurm_share.core.records import ShareRequest
from slurm_share.share import plan as share_plan
from slurm_share.share.records import Assignment, PlanFile, PlanSlot

PLAN = PlanFile(
    job_id=4711,
    uid=2001,
    node="n2",
    share=ShareRequest(2, mem_mib=8192),
    gpus=1,
    cores=((0, 8), (1, 9)),
    notes=("shared without MPS: no binary",),
    slots=(
        PlanSlot(0, 0, (Assignment("CUDA_VISIBLE_DEVICES", "GPU-1"), Assignment("X_FRACTION", "0.4", True))),
        PlanSlot(1, 1, (Assignment("CUDA_VISIBLE_DEVICES", "GPU-1"),)),
    ),
)
REFUSED = PlanFile(4711, 2001, "n2", refused="job 4711 has no GPU here")


@pytest.mark.parametrize("plan", [PLAN, REFUSED])
def test_a_plan_survives_being_written_and_read(plan):
    """Both kinds of plan: one that is carried out, one that refuses."""
    assert share_plan.parse(share_plan.render(plan)) == plan


def test_the_text_is_the_documented_one():
    """What stands in names.py is what the C side reads."""
    assert share_plan.render(PLAN).splitlines() == [
        "slurm-share-plan 1",
        "job 4711",
        "uid 2001",
        "node n2",
        "share 2,mem=8192M",
        "gpus 1",
        "slots 2",
        "cores 0,8 1,9",
        "note shared without MPS: no binary",
        "slot 0 part=0/2 CUDA_VISIBLE_DEVICES=GPU-1 X_FRACTION?=0.4",
        "slot 1 part=1/2 CUDA_VISIBLE_DEVICES=GPU-1",
        "end",
    ]


@given(st.integers(0, len(share_plan.render(PLAN)) - 1))
def test_a_torn_plan_is_never_read_as_a_plan(length):
    """However much of the file arrived, without its last line it does not count."""
    with pytest.raises(StateError):
        share_plan.parse(share_plan.render(PLAN)[:length])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("slurm-share-plan 1", "slurm-share-plan 2"),
        ("job 4711", "job x"),
        ("uid 2001\n", ""),
        ("slots 2", "slots 3"),
        ("slot 1", "slot 2"),
        ("part=1/2", "part=1/3"),
        ("slot 1 part=1/2 CUDA_VISIBLE_DEVICES=GPU-1", "slot 1"),
        ("X_FRACTION?=0.4", "X_FRACTION"),
        ("share 2,mem=8192M", "share off"),
        ("share 2,mem=8192M", "share lots"),
        ("end\n", "more\nend\n"),
    ],
)
def test_a_damaged_plan_is_refused_with_its_file_and_line(old, new):
    """The error names the place, for whoever looks at the node."""
    with pytest.raises(StateError, match=r"^/x/plan: line \d+: "):
        share_plan.parse(share_plan.render(PLAN).replace(old, new, 1), "/x/plan")


@pytest.mark.parametrize("value", ["a b", "a\n", "é", "\0"])
def test_a_value_that_the_format_cannot_hold_is_not_written(value):
    """A blank would become another assignment."""
    slot = PlanSlot(0, 0, (Assignment("NAME", value),))
    with pytest.raises(ValueError, match="cannot hold"):
        share_plan.render(PlanFile(1, 1, "n", share=ShareRequest(1), gpus=1, cores=((0,),), slots=(slot,)))


def test_the_drivers_words_fit_into_a_note():
    """A sentence may quote text that is not ours: it is flattened, made ASCII and cut."""
    plan = PlanFile(1, 2, "n", refused="a\nb\x1b[31m é " + "x" * 10_000)
    text = share_plan.render(plan)
    assert share_plan.parse(text).refused.startswith("a b?[31m ?")
    assert max(map(len, text.splitlines())) < names.PLAN_MAX_LINE

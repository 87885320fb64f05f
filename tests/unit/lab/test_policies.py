from __future__ import annotations

import pytest

from slurm_share.core.errors import UsageError
from slurm_share.lab import policies


def test_a_policy_of_the_thesis_keeps_the_order_and_recovers_alone():
    lug, booked = policies.parse("lug"), policies.parse("booked")
    assert (lug.settings.backfills, lug.settings.recovery) == (False, "exclusive")
    assert (lug.settings.smact_max, lug.settings.free_min_mib) == (0.80, 5120)
    assert (booked.settings.backfills, booked.settings.recovery) == (True, "roomier")
    assert policies.parse("rr").settings.smact_max is None


def test_modifiers_change_what_they_say():
    magm = policies.parse("magm,smact_max=none,free_min=2G,book")
    assert (magm.settings.smact_max, magm.settings.free_min_mib, magm.settings.uses_booking) == (None, 2048, True)
    assert policies.parse("booked,sm_guard=none").settings.sm_guard is None
    second = policies.parse("booked,long,history,max_per_gpu=3")
    assert (second.settings.order, second.has_history, second.settings.max_per_gpu) == ("long", True, 3)


def test_only_oracles_know_sizes():
    knowing = {name for name in policies.NAMES if policies.parse(name).knows_sizes}
    assert knowing == {"first-fit", "best-fit", "worst-fit", "oracle-lug"}
    assert policies.parse("booked,oracle").knows_sizes


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("worstfit", "did you mean worst-fit"),
        ("", "there is no policy ''"),
        ("lug,fast", "'fast' is not known"),
        ("lug,smact_max=80", "'80' is not a part from 0 to 1"),
        ("lug,smact_max=nan", "'nan' is not a part"),
        ("lug,free_min=x", "'x' is not a size"),
        ("booked,undo=off", "undo= is for gain, and has no effect with booked"),
        ("gain,undo=ban", "'undo=ban' is not known"),
        ("gain,\x1b[31m", r"--policy 'gain,\\x1b"),
        ("booked,max_per_gpu=0", "'max_per_gpu=0' is not known"),
    ],
)
def test_a_policy_that_is_none_is_answered_with_the_way_out(text, why):
    with pytest.raises(UsageError, match=why):
        policies.parse(text)


@pytest.mark.parametrize(
    ("value", "mib"), [("40G", 40960), ("512M", 512), ("5120", 5120), ("1.5g", 1536), ("2T", 2097152)]
)
def test_sizes_have_units(value, mib):
    assert policies.mib("--gpu-memory", value) == mib

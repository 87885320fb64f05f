"""The smallest MIG instance that a job would have fitted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_share.report.rules import mig_fit
from slurm_share.usage import GpuUse

H100 = GpuUse(
    uuid="GPU-1", name="NVIDIA H100 80GB HBM3", measured_s=600.0, memory_total_mib=81559, memory_peak_mib=6000,
    sm_percent=8.0, was_shared=False,
)  # fmt: skip


@pytest.mark.parametrize(
    ("peak_mib", "sm_percent", "profile"),
    [
        (6000, 8.0, "1g.10gb"),
        (9600, 14.0, "1g.10gb"),
        (9800, 8.0, "2g.20gb"),
        (6000, 15.0, "2g.20gb"),
        (30_000, 8.0, "3g.40gb"),
        (6000, 42.0, "3g.40gb"),
        (6000, 43.0, None),
        (40_000, 8.0, None),
    ],
)
def test_memory_and_sm_activity_both_have_to_fit(peak_mib, sm_percent, profile):
    said = mig_fit.sentence([replace(H100, memory_peak_mib=peak_mib, sm_percent=sm_percent)])
    assert said.partition(":")[0] == ("" if profile is None else f"would have fitted {profile}")


def test_the_sentence_has_what_was_used_and_what_the_instance_has():
    assert mig_fit.sentence([H100]) == (
        "would have fitted 1g.10gb: at most 5.9 of 9.5 GiB, and 8 % of the SM, of which it has 14 %"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"memory_peak_mib": None},
        {"sm_percent": None},
        {"memory_total_mib": None},
        {"measured_s": 10.0},
        {"was_shared": True},
        {"uuid": "MIG-1"},
        {"name": "NVIDIA L4"},
        {"name": "Tesla V100-SXM2-32GB", "memory_total_mib": 32768},
        {"memory_total_mib": 65536},
    ],
    ids=str,
)
def test_what_is_not_known_is_not_said(change):
    assert mig_fit.sentence([replace(H100, **change)]) == ""
    assert mig_fit.sentence([H100, replace(H100, **change)]) == ""


def test_the_largest_need_of_several_gpus_decides():
    large = replace(H100, uuid="GPU-2", memory_peak_mib=30_000)
    assert mig_fit.sentence([H100, large]).startswith("would have fitted 3g.40gb")
    assert mig_fit.sentence([H100, replace(large, memory_peak_mib=60_000)]) == ""
    assert mig_fit.sentence([]) == ""


@pytest.mark.parametrize(
    ("name", "total_mib", "profile"),
    [
        ("NVIDIA A100-SXM4-40GB", 40960, "1g.5gb"),
        ("NVIDIA A100 80GB PCIe", 81920, "1g.10gb"),
        ("NVIDIA A30", 24576, "1g.6gb"),
        ("NVIDIA H200", 143771, "1g.18gb"),
        ("NVIDIA GH200 96GB HBM3", 97871, "1g.12gb"),
        ("NVIDIA B200", 183359, "1g.23gb"),
        ("Simulated H100 80GB", 81920, "1g.10gb"),
    ],
)
def test_each_model_has_its_own_profiles(name, total_mib, profile):
    use = replace(H100, name=name, memory_total_mib=total_mib, memory_peak_mib=3000, sm_percent=5.0)
    assert mig_fit.sentence([use]).startswith(f"would have fitted {profile}:")

"""A task's caps."""

from __future__ import annotations

import pytest

from slurm_share.core.records import ShareRequest
from slurm_share.core.settings import Settings
from slurm_share.node.records import Gpu
from slurm_share.share.rules import limits, mps

GPU = Gpu("GPU-0", 0, 0, "H100", 81920)


@pytest.mark.parametrize(
    ("share", "cap_mib", "fraction"),
    [
        (ShareRequest(1), None, None),
        (ShareRequest(2), 39884, "0.486"),
        (ShareRequest(4), 19942, "0.243"),
        (ShareRequest(60), 1329, "0.016"),
        (ShareRequest(1, mem_mib=8192), 8192, "0.100"),
        (ShareRequest(4, mem_mib=8192), 8192, "0.100"),
        (ShareRequest(4, mem_mib=999999), 999999, "1.000"),
    ],
)
def test_the_cap_of_a_task(share, cap_mib, fraction):
    """(81920 less 2 % less 512 for the server) / N, or what the user asked."""
    assert limits.memory_cap_mib(GPU, share, Settings()) == cap_mib
    assert limits.memory_ratio(GPU, cap_mib) == fraction


def test_caps_of_all_tasks_fit_on_the_gpu():
    for per_gpu in range(2, 61):
        cap = limits.memory_cap_mib(GPU, ShareRequest(per_gpu), Settings())
        assert cap * per_gpu + 512 + 0.02 * 81920 <= 81920


@pytest.mark.parametrize(
    ("site", "asked", "percent"),
    [
        ("free", None, None),
        ("free", "even", 25.0),
        ("free", 40, 40.0),
        ("even", None, 25.0),
        ("even", "free", 25.0),
        ("even", 10, 10.0),
        ("even", 90, 25.0),
        ("50", None, 50.0),
        ("50%", "even", 25.0),
    ],
)
def test_the_multiprocessor_share_is_the_users_within_the_sites(site, asked, percent):
    assert limits.sm_percent(ShareRequest(4, sm=asked), Settings(sm=site)) == percent


def test_an_even_share_never_adds_up_to_more_than_the_gpu():
    """100/3 is 33.3, which is how MPS keeps it."""
    for per_gpu in range(1, 61):
        assert limits.sm_percent(ShareRequest(per_gpu, sm="even"), Settings()) * per_gpu <= 100


@pytest.mark.parametrize(
    ("version", "clients"),
    [
        ("535.261.03", 48),
        ("580.1", 48),
        ("590.44.01", 60),
        ("615.71.09", 60),
        ("550.0-simulated", 48),
        (None, 48),
        ("?", 48),
    ],
)
def test_the_number_of_clients_follows_the_driver(version, clients):
    """60 since CUDA 13.1, which is 590."""
    assert mps.clients(version) == clients


def test_what_the_tasks_of_a_gpu_have_together():
    """81920 less 2 % less 512 for the server; unknown stays unknown, and what is all reserved is no size."""
    assert limits.usable_mib(GPU, Settings()) == 79769
    assert limits.usable_mib(Gpu("GPU-0", 0, 0, "?", None), Settings()) is None
    tiny = Gpu("GPU-0", 0, 0, "tiny", 523)
    assert limits.usable_mib(tiny, Settings()) is None
    assert limits.memory_cap_mib(tiny, ShareRequest(2), Settings()) is None
    assert limits.usable_mib(tiny, Settings(mps_server_memory_mib=500)) == 12
    assert limits.memory_cap_mib(tiny, ShareRequest(13), Settings(mps_server_memory_mib=500)) is None
    assert limits.memory_cap_mib(tiny, ShareRequest(12), Settings(mps_server_memory_mib=500)) == 1

"""The CPUs that a user may have, in sacctmgr's words (24.11 and 26.05: `-nP show assoc`, an association a line)."""

from __future__ import annotations

import pytest

from slurm_share.slurm import account_limits


@pytest.mark.parametrize(
    ("text", "partition", "expected"),
    [
        ("", "gpu", None),
        ("||\n", "gpu", None),
        ("|cpu=6|\n", "gpu", 6),
        ("|cpu=6,gres/gpu=2|cpu=4\n", "gpu", 4),
        ("|gres/gpu=2,node=3|\n", "gpu", None),
        ("|cpu=6|\n|cpu=9|\n", "gpu", 9),
        ("|cpu=6|\n||\n", "gpu", None),
        ("plain|cpu=2|\ngpu|cpu=5|\n", "gpu", 5),
        ("plain|cpu=2|\n", "gpu", None),
    ],
)
def test_the_largest_of_the_associations_that_hold(text: str, partition: str, expected: int | None) -> None:
    assert account_limits.parse_cpu_limit(text, partition) == expected


def test_without_accounting_there_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert account_limits.read_cpu_limit("gpu") is None

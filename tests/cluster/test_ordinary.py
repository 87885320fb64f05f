"""Ordinary jobs cannot tell that slurm-share is there: the quick cases of tests/ordinary.sh."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from clusters import WANTED, name_for

from localcluster import RELEASES
from localcluster.records import CURRENT

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ordinary import Site, differing, normalise, read_cases, sites

pytestmark = pytest.mark.cluster

QUICK = read_cases()[1]


@pytest.fixture(scope="module")
def three(can_make_clusters: None) -> Iterator[Sequence[Site]]:
    """Yield three clusters: without slurm-share, observing, and on."""
    release = WANTED if WANTED in RELEASES else CURRENT
    with sites(name_for("ordinary"), release, accounting=False) as made:
        yield made


@pytest.mark.xdist_group("ordinary")
@pytest.mark.parametrize("case", list(QUICK))
def test_an_ordinary_case_is_the_same_with_and_without(three: Sequence[Site], case: str) -> None:
    """Output, exit code, environment and files; a difference is repeated three times before it counts."""
    found = differing(three, lambda site: site.run(QUICK[case]))
    assert found == {}, "\n".join(found.values())


@pytest.mark.xdist_group("ordinary")
def test_a_difference_is_seen(three: Sequence[Site]) -> None:
    found = differing(three, lambda site: site.run("srun -w n2 ls /etc/slurm/job_submit.lua"))
    assert set(found) == {"observe", "on"}


def test_only_what_varies_is_named() -> None:
    """A job's number, moments, and the folder; a task's number, a code and a count stay."""
    text = "Submitted batch job 17\nSLURM_JOB_ID=17\nSLURM_JOBID=17 n=117 17.0\nStartTime=2026-01-01T00:00:00 a /f/x\n"
    assert normalise(text, "/f") == (
        "Submitted batch job JOB0\nSLURM_JOB_ID=JOB0\nSLURM_JOBID=JOB0 n=117 JOB0.0\nStartTime=TIME a FOLDER/x\n"
    )
    assert normalise("SLURM_PROCID=1\ncode 3\n", "/f") == "SLURM_PROCID=1\ncode 3\n"

"""Slurm's reasons in words."""

from __future__ import annotations

import pytest

from slurm_share.load.columns.job_request import in_words


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "the nodes, CPUs, GPUs or memory that it asks for are in use"),
        ("ReqNodeNotAvail, UnavailableNodes:n[4,10]", "a node that it needs is not available"),
        ("QOSMaxGRESPerUser", "the limit of its QOS on GPUs of its user is reached"),
        ("QOSMaxJobsPerUserLimit", "the limit of its QOS on jobs of its user is reached"),
        ("AssocGrpCpuLimit", "the limit of its account on CPUs is reached"),
        ("AssocGrpGRES", "the limit of its account on GPUs is reached"),
        ("AssocMaxNodePerJobLimit", "the limit of its account on nodes is reached"),
        (
            "QOSMinGRES",
            "its QOS demands more GPUs, of which a part of a GPU (--share-gpu with -n1) is none: it never starts",
        ),
        ("QOSMinCpu", "it asks for less CPUs than its QOS demands"),
        ("MaxMemPerLimit", "it asks for more memory for a CPU or node than is allowed"),
        ("Nodes required for job are DOWN, DRAINED or reserved", ""),
        ("", ""),
        ("SomethingNew", ""),
    ],
)
def test_a_reason_is_said_in_words_or_left_as_it_is(reason: str, words: str) -> None:
    assert in_words(reason) == words

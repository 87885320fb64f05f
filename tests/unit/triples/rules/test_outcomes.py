"""The sentences about tasks that ran out of memory of the host or of a GPU."""

from typing import get_args

import pytest

from slurm_share.node.records import MemoryLimit
from slurm_share.packing import Budget, EndKind
from slurm_share.triples.rules.outcomes import (
    OUTCOMES,
    MemoryFailure,
    gpu_memory_advice,
    gpu_memory_text,
    host_memory_advice,
    host_memory_text,
)

GPU = Budget(3323, 79769, 24, is_whole=True)
"""24 slots of 80 GiB: [1,48] on two of them."""
JOB, NODE = MemoryLimit(1000), MemoryLimit(2000, is_machine=True)


def test_every_way_in_which_an_attempt_ends_has_an_outcome():
    assert OUTCOMES.keys() == set(get_args(EndKind))


@pytest.mark.parametrize(
    ("limit", "peak", "expected"),
    [
        (JOB, 600, "; the limit of the job on the node was 1000 MiB; its largest process used up to 600 MiB"),
        (NODE, None, "; the node has 2000 MiB"),
        (None, 600, "; its largest process used up to 600 MiB"),
        (None, None, ""),
    ],
)
def test_a_kill_for_host_memory_names_limit_and_peak(limit, peak, expected):
    assert host_memory_text(limit, peak) == expected


@pytest.mark.parametrize(
    ("limit", "peak", "processes", "retries", "can_ask_more", "expected"),
    [
        (JOB, 300, 8, 0, True,
         "3 tasks ran out of host memory under the job's limit of 1000 MiB, the largest process used up to 300 MiB; "
         "write at most 3 processes on a node or --retries 1, which runs them when the node has enough free memory or "
         "--options=--mem=0 for all memory of the node"),
        (NODE, 300, 8, 1, True,
         "3 tasks ran out of host memory on a node with 2000 MiB, the largest process used up to 300 MiB; write at "
         "most 6 processes on a node"),
        (JOB, 990, 1, 0, True, "3 tasks ran out of host memory under the job's limit of 1000 MiB, the largest process "
         "used up to 990 MiB; write --options=--mem=0 for all memory of the node"),
        (JOB, None, 1, 0, False, "3 tasks ran out of host memory under the job's limit of 1000 MiB; make tasks "
         "smaller, or use larger nodes"),
        (None, None, 2, 1, True, "3 tasks ran out of host memory; write at most 1 process on a node"),
    ],
)  # fmt: skip
def test_the_advice_after_host_memory_is_what_can_help(limit, peak, processes, retries, can_ask_more, expected):
    assert host_memory_advice(3, limit, peak, processes, retries, can_ask_more=can_ask_more) == expected


def test_the_reason_names_the_cap_and_the_need():
    assert gpu_memory_text(3323, 3000, 2700, is_alone=False) == (
        "its memory cap was 3323 MiB, it used up to 3000 MiB, it asked for 2700 MiB more"
    )
    assert gpu_memory_text(3323, None, 6000, is_alone=False) == "its memory cap was 3323 MiB, it asked for 6000 MiB"
    assert gpu_memory_text(None, None, None, is_alone=True) == "it was alone on its GPU, without a cap"
    assert gpu_memory_text(None, 10, None, is_alone=False) == "it had no memory cap, it used up to 10 MiB"


RETRIES = "--retries 2, which runs them with a larger cap and then alone on a GPU"
ALONE = "alone on a GPU, where tasks can have 79769 MiB; make tasks smaller (for example the batch size)"


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        (
            [MemoryFailure(3323, 6000)] * 48,
            "48 tasks ran out of GPU memory under a cap of 3323 MiB and need at least 6000 MiB; write "
            f"--share-gpu=mem=6G and at most 24 processes on a node, or {RETRIES}",
        ),
        (
            [MemoryFailure(3323)],
            "1 task ran out of GPU memory under a cap of 3323 MiB; write fewer processes on a node, "
            f"--share-gpu=mem=SIZE with more than 3323M, or {RETRIES}",
        ),
        (
            [MemoryFailure(3323, 90_000)],
            "1 task ran out of GPU memory under a cap of 3323 MiB and needs at least 90000 MiB, more than the 79769 "
            "MiB that a GPU of this node has for tasks",
        ),
        (
            [MemoryFailure(6646, was_alone=True)],
            f"1 task ran out of GPU memory under a cap of 6646 MiB, and {ALONE}",
        ),
        # Tasks that began alone, since those before them had shown that the caps are too small
        ([MemoryFailure(None, 90_000, was_alone=True)] * 2, f"2 tasks ran out of GPU memory {ALONE}"),
        (
            [MemoryFailure(1_048_576), MemoryFailure(None, was_alone=True), MemoryFailure(3323, was_alone=True)],
            "1 task ran out of GPU memory under a cap of 1048576 MiB; write fewer processes on a node or "
            f"{RETRIES}; 2 more ran out of GPU memory {ALONE}",
        ),
        # --share-gpu=mem=1T: there is no larger cap
        (
            [MemoryFailure(1_048_576)],
            "1 task ran out of GPU memory under a cap of 1048576 MiB; write fewer processes on a node or " + RETRIES,
        ),
    ],
)
def test_the_way_out_is_a_line_to_write(lost, expected):
    assert gpu_memory_advice(lost, [GPU, GPU], 0) == expected


def test_where_all_fit_with_the_right_cap_the_line_is_that_cap():
    budget = Budget(500, 79769, 8, is_whole=True)
    assert "; write --share-gpu=mem=900M, or --retries 2" in gpu_memory_advice([MemoryFailure(500, 900)], [budget], 0)


PART = Budget(19942, 19942, 1, is_whole=False)
"""One of the four slots of a GPU, which is all that the job holds."""


@pytest.mark.parametrize(
    ("budget", "lost", "options", "words"),
    [
        # --share-gpu=2 and one process on each GPU: fewer processes would change nothing.
        (Budget(39884, 79769, 1, is_whole=True), MemoryFailure(39884), {"is_number_fixed": True},
         f"write a smaller number in --share-gpu=N, --share-gpu=mem=SIZE with more than 39884M, or {RETRIES}"),
        (Budget(39884, 79769, 1, is_whole=True), MemoryFailure(39884, 60_000), {"is_number_fixed": True},
         f"write --share-gpu=mem=59G, or {RETRIES}"),
        # After two retries a task has had all; one that had not (--max-failures) needs no third.
        (GPU, MemoryFailure(3323), {"retries": 2},
         "write fewer processes on a node or --share-gpu=mem=SIZE with more than 3323M"),
        (PART, MemoryFailure(19942), {"is_number_fixed": True},
         "all that the job's part of a GPU gives; write a smaller number in --share-gpu=N, or make tasks smaller"),
        (PART, MemoryFailure(19942), {},
         "all that the job's part of a GPU gives; write fewer processes on a node, or make tasks smaller"),
    ],
)  # fmt: skip
def test_no_advice_is_given_that_cannot_help(budget, lost, options, words):
    said = gpu_memory_advice([lost], [budget], **{"retries": 0, **options})
    assert said.endswith(words), said

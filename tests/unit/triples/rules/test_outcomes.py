"""The room for a further attempt, and the advice after host memory."""

import pytest

from slurm_share.node.records import MemoryLimit, MemoryUse
from slurm_share.packing import asked_mib
from slurm_share.triples.rules.outcomes import has_room, host_memory_advice, host_memory_text, need_mib


def test_the_need_is_the_largest_that_was_seen():
    assert need_mib(100, [200, 2400]) == 2400
    assert need_mib(None, [0, 0]) is None
    assert need_mib(None, []) is None


@pytest.mark.parametrize(
    ("log", "mib"),
    [
        (b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total", 2048),
        (b"Tried to allocate 20.50 MiB", 21),
        (b"RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4294967296 bytes.", 4096),
        (b"Failed to allocate request for 2.0GiB (2147483648B) on device ordinal 0", 2048),
        (b"cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 1,073,741,824 bytes (allocated so far", 1024),
        (b"Tried to allocate 1.00 GiB\nTried to allocate 3.00 GiB", 3072),
        (b"CUDA out of memory", None),
        (b"Tried to allocate 0 bytes", None),
    ],
)
def test_what_a_program_asked_for_in_vain(log, mib):
    assert asked_mib(log) == mib


@pytest.mark.parametrize(
    ("need", "room", "running", "expected"),
    [
        # An empty GPU has room for anything.
        (None, None, 0, True),
        (99_999, MemoryUse(32_768, 32_000), 0, True),
        (2400, MemoryUse(32_768, 29_000, ()), 0, True),
        # Without figures, one waits for an empty GPU.
        (None, MemoryUse(32_768, 0), 1, False),
        (2400, None, 1, False),
        # 32,768 less 2 % is 32,112; 13 x 2,400 = 31,200.
        (2400, MemoryUse(32_768, 12 * 2400, (2400,) * 12), 12, True),
        (2400, MemoryUse(32_768, 13 * 2400, (2400,) * 13), 13, False),
        # A task that has just begun counts with what it will want.
        (2400, MemoryUse(32_768, 0, (0,) * 13), 13, False),
        (2400, MemoryUse(32_768, 0, ()), 13, False),
        # Others on the GPU count with what they have.
        (2400, MemoryUse(32_768, 29_000 + 1000, (1000,)), 1, False),
    ],
)
def test_room_on_a_gpu_of_32_gib(need, room, running, expected):
    assert has_room(need, room, running) is expected


JOB, NODE = MemoryLimit(1000), MemoryLimit(2000, is_machine=True)


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

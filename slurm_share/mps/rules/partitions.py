"""Read what the control program (protocol 2) says about static partitions of a GPU's multiprocessors (SM), and divide.

A partition has a whole number of chunks. How many SM a chunk has, and how many chunks a GPU, differs by GPU: 8 SM from
Hopper on and 4 before, but an H200 with 132 SM has 15 chunks and not 16. So both are read from the daemon. SM that fill
no chunk belong to no partition.

The manual and the program differ (docs.nvidia.com/deploy/mps, release 615; printed by releases 595 and 610). The table
of `lspart` has 7 columns in the manual, with `-` in empty ones, and 5 in the program:

    GPU-74d43ed3 -      3 7 24 56 -      the GPU: free and used chunks, free and used SM
    GPU-74d43ed3 Dx4AAA - 7 - 56 -       a partition
    GPU-f6 15 0 132 0
    GPU-f6 D/79e/Dg+ADAA 10 80 Yes       the last word: whether it has clients

The first word is the shortest unique beginning of the UUID; a daemon of ours has one GPU. A partition's id may contain
`/` and `+`. `sm_partition add` answers `GPU-UUID/ID` in the manual, and `Partition GPU-UUID/ID created` in the program.
Failures have exit code 0 as well, so only the table proves that a partition exists.
"""

from __future__ import annotations

from ...core import numbers
from ...core.patterns import pattern
from ..records import Partition, PartitionTable

_NUMBER_MOST = 10**6
"""More chunks or SM than any GPU has. An id of digits only is longer."""
_GPU = pattern(r"(GPU|MIG)-[0-9A-Za-z-]{0,80}")
_ID = pattern(r"[0-9A-Za-z+/=_-]{1,128}")
_ADDED = pattern(r"(?:Partition )?((?:GPU|MIG)-[0-9A-Za-z-]{1,80})/([0-9A-Za-z+/=_-]{1,128})(?: created)?")
IDLE_RATIO = 0.15
"""If more than this part of a GPU's SM is in no partition, another number of tasks is named."""


def parse_table(text: str, gpu: str) -> PartitionTable | None:
    """Return the partitions of a GPU from the answer of `lspart`; None: the answer has no row of that GPU."""
    free: tuple[int, ...] = ()
    partitions = []
    has_row = False
    for line in text.splitlines():
        words = line.split()
        if len(words) < 2 or not _GPU.fullmatch(words[0]) or not gpu.startswith(words[0]):
            continue
        found = tuple(
            number for number in (numbers.whole(word, _NUMBER_MOST) for word in words[1:]) if number is not None
        )
        if words[1] == "-" or numbers.whole(words[1], _NUMBER_MOST) is not None:
            free, has_row = found[:4], has_row or len(found) >= 4
        elif _ID.fullmatch(words[1]) and len(found) == 2:
            clients = {"Yes": True, "No": False}.get(words[-1])
            partitions.append(Partition(words[1], found[0], found[1], clients))
            has_row = True
    if not has_row:
        return None
    free_chunks, free_sms = (free[0], free[2]) if len(free) == 4 else (0, 0)
    return PartitionTable(free_chunks, free_sms, tuple(sorted(partitions, key=lambda one: one.id)))


def parse_added(text: str, gpu: str) -> tuple[str, ...]:
    """Return the ids of the partitions of a GPU that the answers of `sm_partition add` name."""
    found = (_ADDED.fullmatch(line.strip()) for line in text.splitlines())
    return tuple(match[2] for match in found if match and match[1] == gpu)


def with_whole_ids(table: PartitionTable, ids: tuple[str, ...]) -> PartitionTable:
    """Return the table with ids that it has cut completed by those of `sm_partition add`."""
    partitions = []
    for one in table.partitions:
        longer = [known for known in ids if known.startswith(one.id)]
        whole = longer[0] if len(longer) == 1 else one.id
        partitions.append(Partition(whole, one.chunks, one.sm_count, one.has_clients))
    return PartitionTable(table.free_chunks, table.free_sms, tuple(sorted(partitions, key=lambda one: one.id)))


def chunks_each(total_chunks: int, parts: int) -> int:
    """Return the chunks of each of so many equal partitions; 0: the GPU has too few."""
    return total_chunks // parts


def idle_sms(total_sms: int, total_chunks: int, chunk_sms: int, parts: int) -> int:
    """Return the SM of a GPU that are in no partition, if it has so many equal ones."""
    return total_sms - parts * chunks_each(total_chunks, parts) * chunk_sms


def full_counts(total_sms: int, total_chunks: int, chunk_sms: int) -> tuple[int, ...]:
    """Return the numbers of equal partitions that leave the fewest SM idle, in rising order."""
    idle = {parts: idle_sms(total_sms, total_chunks, chunk_sms, parts) for parts in range(1, total_chunks + 1)}
    return tuple(parts for parts, sms in idle.items() if sms == min(idle.values()))


def better_counts(total_sms: int, total_chunks: int, chunk_sms: int, parts: int) -> tuple[int, ...]:
    """Return the next smaller and larger number of partitions that leave few SM idle; empty: so do `parts`.

    Few: IDLE_RATIO of the GPU at most, or as few as any number on a GPU on which more fill no chunk.
    """
    idle = {count: idle_sms(total_sms, total_chunks, chunk_sms, count) for count in range(1, total_chunks + 1)}
    few = max(min(idle.values(), default=0), IDLE_RATIO * total_sms)
    if parts not in idle or idle[parts] <= few:
        return ()
    below = [count for count in idle if 1 < count < parts and idle[count] <= few]
    above = [count for count in idle if count > parts and idle[count] <= few]
    return (*below[-1:], *above[:1])

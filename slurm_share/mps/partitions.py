"""Create the equal static partitions of a daemon's GPU (driver 590 or newer), and read them back.

The daemon was started with `-S`, for its whole life: each of its clients needs a partition and gets CUDA error 915
without one, and no percentage applies to it. Partitions end with the daemon. The control program's exit code is 0 also
after a failure (rules/partitions.py), so what exists is read with `lspart`. The daemon is the user's, so his other
programs can change what it has; the caller holds its lock against our own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ..core import files, names
from ..core.errors import MpsPartitionError, StateError, shown
from ..core.process import Deadline
from . import control
from .records import EqualPartitions, GpuChunks, MpsPlace, PartitionTable
from .rules import partitions as rules

LIST = "lspart"
KNOWN = "gpu-chunks"
"""The file in the state folder with the chunks of the GPUs that have been divided since the last boot."""
_KNOWN_MOST_BYTES = 64 * 1024


def ensure(place: MpsPlace, deadline: Deadline, *, is_new: bool = False) -> EqualPartitions:
    """Return the `place.partitions` equal partitions of a daemon's GPU, each as large as possible; create those that
    are missing.

    is_new: the daemon has just been started, so it has no partitions; with `place.chunks`, one call of the control
    program creates and lists them all.

    Raises MpsPartitionError if the GPU has too few chunks, if it is divided otherwise, or if the daemon creates none;
    and as control.ask does.
    """
    count = place.partitions
    table, answer, ids = _divided_at_once(place, deadline) if is_new else (None, "", ())
    if table is None:
        table = _probe(place, deadline)
    total = table.total_chunks
    chunks = rules.chunks_each(total, count)
    if chunks == 0:
        raise MpsPartitionError(place.pipe, f"it can have {total} at most (--{names.OPTION}={total} or less)")
    before = -1
    while True:
        equal = [one for one in table.partitions if one.chunks == chunks]
        if len(equal) < len(table.partitions) or len(equal) > count:
            raise MpsPartitionError(place.pipe, _divided_otherwise(table))
        if len(equal) == count:
            break
        # An answer can get lost, and the daemon may have carried out only some commands (control.py).
        is_refused = len(equal) == before and answer != ""
        if is_refused or deadline.left() <= control.RETRY_S:
            raise MpsPartitionError(place.pipe, _not_created(len(equal), count, answer))
        before = len(equal)
        read, answer, made = _add(place, count - len(equal), chunks, deadline)
        ids = (*ids, *made)
        table = table if read is None else rules.with_whole_ids(read, ids)
    sm_count = min(one.sm_count for one in table.partitions)
    of_clients = tuple(f"{place.gpu}/{one.id}" for one in table.partitions)
    return EqualPartitions(of_clients, sm_count, GpuChunks(place.gpu, total, sm_count // chunks, table.total_sms))


def _divided_at_once(place: MpsPlace, deadline: Deadline) -> tuple[PartitionTable | None, str, tuple[str, ...]]:
    """Divide the GPU of a new daemon by the chunks that it had before, and return what `_add` does. None for the table:
    they are not known, or this driver divides the GPU into another number; then there are no partitions."""
    chunks = rules.chunks_each(place.chunks, place.partitions)
    if chunks == 0:
        return None, "", ()
    table, answer, ids = _add(place, place.partitions, chunks, deadline)
    if table is None:
        return None, "", ()
    table = rules.with_whole_ids(table, ids)
    if table.total_chunks == place.chunks:
        return table, answer, ids
    commands = [f"sm_partition rm {place.gpu} {one.id}" for one in table.partitions if one.id in ids]
    if commands:
        control.ask_for_all(place, commands, deadline)
    return None, "", ()


def _add(
    place: MpsPlace, count: int, chunks: int, deadline: Deadline
) -> tuple[PartitionTable | None, str, tuple[str, ...]]:
    """Create partitions; return those that there are now (None: the program lists no such GPU), its answers, and the
    ids in them. If the list got lost with an answer, it is asked for again."""
    answer = control.ask_for_all(place, [*[f"sm_partition add {place.gpu} {chunks}"] * count, LIST], deadline)
    table = rules.parse_table(answer, place.gpu)
    said = "\n".join(answer.splitlines()[:count])  # without the list
    return _read(place, deadline) if table is None else table, said, rules.parse_added(answer, place.gpu)


def _probe(place: MpsPlace, deadline: Deadline) -> PartitionTable:
    """Return the partitions of the daemon's GPU. If the control program lists no GPU without a partition, create one of
    one chunk and remove it."""
    table = _read(place, deadline)
    if table is not None:
        return table
    answer = control.ask_for_all(place, [f"sm_partition add {place.gpu} 1"], deadline)
    table = _read(place, deadline)
    if table is None:
        raise MpsPartitionError(place.pipe, _not_created(0, place.partitions, answer))
    for one in rules.with_whole_ids(table, rules.parse_added(answer, place.gpu)).partitions:
        control.ask_for_all(place, [f"sm_partition rm {place.gpu} {one.id}"], deadline)
    after = _read(place, deadline)
    return PartitionTable(table.total_chunks, table.total_sms) if after is None else after


def _read(place: MpsPlace, deadline: Deadline) -> PartitionTable | None:
    return rules.parse_table(control.ask(place, LIST, deadline), place.gpu)


def _divided_otherwise(table: PartitionTable) -> str:
    found = ", ".join(str(one.chunks) for one in table.partitions)
    return f"it is divided into other partitions already (of {found} chunks)"


def _not_created(found: int, wanted: int, answer: str) -> str:
    last = answer.strip().rpartition("\n")[2]
    why = f": {shown(last, 200)}" if last else ""
    return f"its daemon created {found} of {wanted} partitions{why}"


def read_known(folder: Path) -> tuple[GpuChunks, ...]:
    """Return the chunks of the GPUs that hooks have divided since the last boot. Another driver may have others, so
    each start of a daemon compares them with what the daemon lists."""
    try:
        text = files.read(folder / KNOWN, _KNOWN_MOST_BYTES)
        return () if text is None else msgspec.json.decode(text, type=tuple[GpuChunks, ...])
    except (StateError, msgspec.MsgspecError):
        return ()


def write_known(folder: Path, found: Iterable[GpuChunks]) -> None:
    """Add GPUs to those of `read_known`. Two hooks that write at the same time may lose one of them until the next
    start. Raises OSError."""
    before = read_known(folder)
    known = {one.gpu: one for one in (*before, *found)}
    after = tuple(known[gpu] for gpu in sorted(known))
    if after != before:
        files.write(folder / KNOWN, msgspec.json.encode(after), finish=lambda fd: os.fchmod(fd, 0o644))

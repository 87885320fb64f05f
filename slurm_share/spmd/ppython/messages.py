"""pPython's functions for messages, and its helper functions that need no other rank.

A tag is part of a file name in pPython, so 7 and "7" are the same tag. Messages of one source, destination and tag are
received in the order of sending. No send waits for its receiver.
"""

from __future__ import annotations

import math
import operator
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..envelope import Tag
from ..errors import UsageError
from .world import world

VERSION = "0.10.4"
"""Release of pPython whose names this package offers."""
_MULTICAST = "\0multicast"
_TREE = "\0tree"
_GATHER = "\0gagg"
"""Tags of this module's own messages, which probes do not show. One each suffices, because messages keep order."""
_LARGEST = (1 << 63) - 1


def read_tag(tag: Any) -> Tag:
    """Return a tag as it is sent: an integer if its text is one, else the text."""
    if isinstance(tag, int) and not isinstance(tag, bool) and 0 <= tag <= _LARGEST:
        return int(tag)
    text = str(tag)
    if text.isascii() and text.isdigit() and (text == "0" or text[0] != "0") and int(text) <= _LARGEST:
        return int(text)
    return text


def MPI_Send(dest: int, tag: Any, comm: Any, *values: Any) -> None:
    """Send values to a rank without waiting. They may be changed afterwards."""
    world().comm.send(values, int(dest), read_tag(tag))


def MPI_Recv(source: int, tag: Any, comm: Any) -> tuple[Any, ...]:
    """Wait for the next message of a rank with that tag, and return its tuple of values."""
    here = world()
    source, tag = int(source), read_tag(tag)
    described = comm if isinstance(comm, dict) else here.describe()
    if not described.get("save_message_flag"):
        return _values(here.comm.recv(source, tag))
    key = (source, tag)
    if key in here.saved and not here.comm.iprobe(source, tag):
        return _copied(here.saved[key])
    received = _values(here.comm.recv(source, tag))
    here.saved[key] = _copied(received)
    return received


def _values(received: Any) -> tuple[Any, ...]:
    """Return a received object as a tuple; objects that `Comm.send` sent are not tuples."""
    return received if isinstance(received, tuple) else (received,)


def _copied(values: tuple[Any, ...]) -> tuple[Any, ...]:
    from copy import deepcopy

    return tuple(map(deepcopy, values))


def SendMsg(dest: Any, tag: Any, *values: Any) -> None:
    """Send values to a rank, or to each of a sequence of ranks except this one, without waiting."""
    here = world()
    if type(dest) is int or np.ndim(dest) == 0:
        MPI_Send(dest, tag, None, values)
        return
    for rank in dest:
        if int(rank) != here.comm.rank:
            MPI_Send(rank, tag, None, values)


def RecvMsg(source: int, tag: Any) -> Any:
    """Wait for a message that a rank sent with SendMsg, and return its tuple of values."""
    values = MPI_Recv(source, tag, None)
    return values[0] if len(values) == 1 else values  # without the tuple that SendMsg puts around its values


def MPI_Bcast(source: int, tag: Any, comm: Any, *values: Any) -> tuple[Any, ...]:
    """Return the values of rank `source` on every rank. Collective.

    Raises UsageError if the tags of ranks differ.
    """
    ranks = world().comm
    tag = read_tag(tag)
    sent_tag, sent = ranks.bcast((tag, values) if ranks.rank == int(source) else None, int(source))
    if sent_tag != tag:
        raise UsageError(
            f"rank {ranks.rank} is in a broadcast with tag {tag!r}, rank {source} in one with tag {sent_tag!r}; "
            "all ranks must broadcast in the same order"
        )
    return values if ranks.rank == int(source) else sent


def BcastMsg(source: int, tag: Any, *values: Any) -> Any:
    """Return the tuple of values of rank `source` on every rank. Collective."""
    return MPI_Bcast(source, tag, None, *values)


def MPI_Mcast(source: int, dest: Sequence[int], tag: Any, comm: Any, *values: Any) -> tuple[Any, ...]:
    """Send values from one rank to each of a sequence of ranks, and return them on all of these ranks."""
    if world().comm.rank != int(source):
        return MPI_Recv(source, tag, comm)
    for rank in dest:
        if int(rank) != int(source):
            MPI_Send(rank, tag, comm, *values)
    return values


def MPI_Tcast(source: int, dest: Sequence[int], tag: Any, comm: Any, *values: Any) -> tuple[Any, ...]:
    """Send values from one rank to a list of ranks along a binomial tree, and return them on all of these ranks."""
    others = [int(rank) for rank in dest if int(rank) != int(source)]
    return _along_tree([int(source), *others], f"{_TREE} {read_tag(tag)}", values)


def multicast(src: Any = None, dst: Any = None, data: Any = None) -> Any:
    """Send data from one rank to a list of ranks along a binomial tree, and return it on all of these ranks.

    `src` and `dst` are ranks or sequences of them. Ranks in neither get their own `data` back.
    """
    sources, others = _ranks(src), _ranks(dst)
    if not sources:
        raise UsageError("multicast needs a source and destinations; the source is missing")
    if set(sources) & set(others):
        raise UsageError(f"multicast: rank {min(set(sources) & set(others))} is source and destination at once")
    return _along_tree([sources[0], *others], _MULTICAST, (data,))[0]


def _ranks(given: Any) -> list[int]:
    return [] if given is None else [int(rank) for rank in np.asarray(given).reshape(-1)]


def _along_tree(members: list[int], tag: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Send the first member's values to the others along a binomial tree, and return them on all members."""
    ranks = world().comm
    if ranks.rank not in members:
        return values
    place = members.index(ranks.rank)
    distance = 1
    if place:
        while distance * 2 <= place:
            distance *= 2
        values = ranks.recv(members[place - distance], tag)
        distance *= 2
    while place + distance < len(members):
        ranks.send(values, members[place + distance], tag)
        distance *= 2
    return values


def MPI_Probe(source: Any, tag: Any, comm: Any, nargout: int = 2) -> tuple[list[Any], ...]:
    """Return the ranks and the numeric tags of the messages that can be received now.

    `source` and `tag` may be shell patterns such as "*". Messages with other than numeric tags are in neither list;
    with `nargout` 3, a third list has the text of all tags.
    """
    here = world()
    waiting = [(envelope.source, str(envelope.tag)) for envelope in here.comm.waiting()]
    if here.describe().get("save_message_flag"):
        waiting += [key for key in ((source, str(tag)) for source, tag in here.saved) if key not in waiting]
    found = [
        (rank, text)
        for rank, text in waiting
        if not text.startswith("\0") and fnmatchcase(str(rank), str(source)) and fnmatchcase(text, str(tag))
    ]
    numeric = [(rank, int(text)) for rank, text in found if text.isascii() and text.isdigit()]
    lists = [rank for rank, _ in numeric], [number for _, number in numeric]
    return lists if nargout == 2 else (*lists, [text for _, text in found])


def ProbeMsg(source: Any, tag: Any, nargout: int = 2) -> tuple[list[Any], ...]:
    """Return the ranks and the numeric tags of the messages that can be received now; see MPI_Probe."""
    return MPI_Probe(source, tag, None, nargout)


def gagg(m: Any, dest: int = 0, ops: str = "+", plist: Sequence[int] | None = None) -> Any:
    """Combine an object of each rank of `plist` (None: all) on rank `dest`, and return the result there.

    `ops`: "+" or "sum", "-", "min", "max". The order is that of the list, cyclically from `dest`. Other ranks get their
    own object back.
    """
    ranks = world().comm
    members = list(range(ranks.size)) if plist is None else [int(rank) for rank in plist]
    if dest not in members:
        raise UsageError(f"gagg: rank {dest}, which gets the result, is not among the ranks {members}")
    if ops not in _REDUCTIONS:
        raise UsageError(f"gagg: there is no operation {ops!r}; there are {', '.join(map(repr, _REDUCTIONS))}")
    if ranks.rank != dest:
        if ranks.rank in members:
            ranks.send((m,), dest, _GATHER)
        return m
    first = members.index(dest)
    parts = [m, *(ranks.recv(rank, _GATHER)[0] for rank in members[first + 1 :] + members[:first])]
    return combine_pairs(_REDUCTIONS[ops], parts)


_REDUCTIONS: dict[str, Any] = {
    "+": operator.add,
    "sum": operator.add,
    "-": operator.sub,
    "min": lambda one, other: np.minimum(one, other) if np.ndim(one) else min(one, other),
    "max": lambda one, other: np.maximum(one, other) if np.ndim(one) else max(one, other),
}


def MPI_Comm_rank(comm: dict[str, Any]) -> int:
    """Return the rank of this process."""
    return int(comm["rank"])


def MPI_Comm_size(comm: dict[str, Any]) -> int:
    """Return the number of ranks."""
    return int(comm["size"])


def MPI_Init() -> None:
    """Do nothing: the run exists before the program starts."""


pPython_init = MPI_Init


def MPI_Finalize() -> None:
    """End this process unless it is rank 0, as in pPython."""
    if world().comm.rank:
        raise SystemExit(0)


def MPI_Abort(*_: Any) -> NoReturn:
    """End the run with code 1."""
    world().comm.abort(1)


def pyMPI_Save_messages(old_comm: dict[str, Any], save_message_flag: int) -> dict[str, Any]:
    """Switch keeping of received messages, which can be received again, on or off; return the dictionary.

    A later message of the same source and tag replaces the kept one. Switching off drops all kept messages.
    """
    old_comm["save_message_flag"] = save_message_flag
    here = world()
    here.describe()["save_message_flag"] = save_message_flag
    if not save_message_flag:
        here.saved.clear()
    return old_comm


def Np() -> int:
    """Return the number of ranks."""
    return world().comm.size


def Pid() -> int:
    """Return the rank of this process."""
    return world().comm.rank


# ---- Helpers ----


def pyMPI_Sleep(sleepTime: float = 0.01) -> None:
    """Sleep for `sleepTime` seconds."""
    time.sleep(sleepTime)


def pyMPI_Delete_all() -> None:
    """Do nothing: there are no message files, and the logs of ranks are kept."""


def pyMPI_Host_rank(comm: dict[str, Any]) -> int:
    """Return the rank of the leading process."""
    return int(comm["host_rank"])


def pyMPI_Host_name(comm: dict[str, Any]) -> str:
    """Return the node of the leading process."""
    return str(comm["host_name"])


def pyMPI_Comm_dir(old_comm: dict[str, Any], dir: str) -> dict[str, Any]:
    """Return the dictionary with another folder for messages, which is not used."""
    folders = old_comm["machine_db"]["dir"]
    folders.update(dict.fromkeys(folders, dir))
    return old_comm


def pPython_ver(default_display: Any = None) -> str:
    """Return the release of pPython whose names this package offers; print it if `default_display` is true."""
    if default_display:
        sys.stdout.write(f"pPython version: {VERSION} (names; the messages are slurm-share's)\n")
    return VERSION


def pPython_finalize() -> None:
    """Do nothing: messages are delivered when the process ends."""


pyMPI_Ver = pPython_ver


def partition_1d(n: int, m: int) -> tuple[dict[int, dict[str, int]], NDArray[np.float64]]:
    """Divide `n` elements among `m` ranks: return each rank's first and last index, and the counts."""
    size, larger = divmod(int(n), int(m))
    sizes = np.array([size + (rank < larger) for rank in range(m)], dtype=float)
    starts = [rank * size + min(rank, larger) for rank in range(m + 1)]
    return {rank: {"beg": starts[rank], "end": starts[rank + 1] - 1} for rank in range(m)}, sizes


def tup2ary(x: Iterable[Iterable[int]]) -> NDArray[Any]:
    """Return the elements of ranges as one array."""
    return np.array([item for one in x for item in one])


def lcm(a: int, b: int) -> int:
    """Return the least common multiple."""
    return math.lcm(int(a), int(b))


def combine_pairs(combine: Callable[[Any, Any], Any], parts: Sequence[Any]) -> Any:
    """Return all parts combined as pPython does: neighbours in pairs, then their results, until one is left."""
    while len(parts) > 1:
        pairs = [combine(*parts[at : at + 2]) for at in range(0, len(parts) - 1, 2)]
        parts = [*pairs, parts[-1]] if len(parts) % 2 else pairs
    return parts[0]


def factorint(n: int, multiple: bool = False) -> Any:
    """Return the prime factors of a positive integer, {prime: exponent}, or with `multiple` a list of them."""
    factors: list[int] = []
    rest, divisor = int(n), 2
    while divisor * divisor <= rest:
        while rest % divisor == 0:
            factors.append(divisor)
            rest //= divisor
        divisor += 1
    if rest > 1:
        factors.append(rest)
    return factors if multiple else {prime: factors.count(prime) for prime in factors}

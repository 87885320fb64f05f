"""pPython's names for messages.

A tag is part of a file name in pPython, so 7 and "7" are one tag. Messages of one source, destination and tag are
received in the order in which they were sent. No send waits for its receiver.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, NoReturn

import numpy as np

from ..errors import UsageError
from ..transport import Tag
from .world import world

_MULTICAST = "\0multicast"
_TREE = "\0tree"
_GATHER = "\0gagg"
"""Tags of this package's own messages. FIFO makes one for each enough. Probes do not show them."""
_LARGEST = (1 << 63) - 1


def read_tag(tag: Any) -> Tag:
    """Return the tag of a message as it is sent: a whole number where it reads as one, else its text."""
    if isinstance(tag, int) and not isinstance(tag, bool) and 0 <= tag <= _LARGEST:
        return int(tag)
    text = str(tag)
    if text.isascii() and text.isdigit() and (text == "0" or text[0] != "0") and int(text) <= _LARGEST:
        return int(text)
    return text


def MPI_Send(dest: int, tag: Any, comm: Any, *values: Any) -> None:
    """Send values to a rank; returns at once. They may be changed afterwards."""
    world().comm.send(values, int(dest), read_tag(tag))


def MPI_Recv(source: int, tag: Any, comm: Any) -> tuple[Any, ...]:
    """Return the tuple of values of the next message of a rank with that tag; waits for it."""
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
    """Return what was received as a tuple: what other functions of this package sent may be another object."""
    return received if isinstance(received, tuple) else (received,)


def _copied(values: tuple[Any, ...]) -> tuple[Any, ...]:
    from copy import deepcopy

    return tuple(map(deepcopy, values))


def SendMsg(dest: Any, tag: Any, *values: Any) -> None:
    """Send values to a rank, or to each of a sequence of ranks but this one; returns at once."""
    here = world()
    if np.ndim(dest) == 0:
        MPI_Send(dest, tag, None, values)
        return
    for rank in dest:
        if int(rank) != here.comm.rank:
            MPI_Send(rank, tag, None, values)


def RecvMsg(source: int, tag: Any) -> Any:
    """Return the tuple of values that a rank sent with SendMsg; waits for it."""
    return _unwrapped(MPI_Recv(source, tag, None))


def _unwrapped(values: tuple[Any, ...]) -> Any:
    """Take off the tuple that SendMsg puts around its values; what MPI_Send sent stays as it is."""
    return values[0] if len(values) == 1 else values


def MPI_Bcast(source: int, tag: Any, comm: Any, *values: Any) -> tuple[Any, ...]:
    """Return on every rank the values of rank `source`; all ranks call it.

    Raises UsageError where a rank is in a broadcast with another tag.
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
    """Return on every rank the tuple of values of rank `source`; all ranks call it."""
    return MPI_Bcast(source, tag, None, *values)


def MPI_Mcast(source: int, dest: Sequence[int], tag: Any, comm: Any, *values: Any) -> tuple[Any, ...]:
    """Send values from one rank to each of a sequence of ranks; return them on all of these."""
    if world().comm.rank != int(source):
        return MPI_Recv(source, tag, comm)
    for rank in dest:
        if int(rank) != int(source):
            MPI_Send(rank, tag, comm, *values)
    return values


def MPI_Tcast(source: int, dest: Sequence[int], tag: Any, comm: Any, *values: Any) -> tuple[Any, ...]:
    """Send values from one rank to a list of ranks, along a binomial tree; return them on all of these."""
    others = [int(rank) for rank in dest if int(rank) != int(source)]
    return _along_tree([int(source), *others], f"{_TREE} {read_tag(tag)}", values)


def multicast(src: Any = None, dst: Any = None, data: Any = None) -> Any:
    """Send data from one rank to a list of ranks, along a binomial tree; return it on all of these.

    `src` and `dst` are ranks or sequences of them. Ranks that are in neither get their own `data` back.
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
    """Send the first member's values to the others: who has them passes them on to one that has not."""
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
    """Return the ranks and the numeric tags of messages that wait here; does not wait.

    "*" and shell patterns stand for any source or tag. Tags that are not all digits are in neither list; with
    `nargout` 3 a third list has the text of all tags.
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
    """Return the ranks and the numeric tags of messages that wait here; does not wait. See MPI_Probe."""
    return MPI_Probe(source, tag, None, nargout)


def gagg(m: Any, dest: int = 0, ops: str = "+", plist: Sequence[int] | None = None) -> Any:
    """Combine an object of each rank of `plist` (None: all) on rank `dest`; return the result there.

    `ops`: "+" or "sum", "-", "min", "max". Starts with the object of `dest` and goes round the list. Other ranks get
    their own object back.
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
    while len(parts) > 1:
        pairs = [_REDUCTIONS[ops](*parts[at : at + 2]) for at in range(0, len(parts) - 1, 2)]
        parts = pairs + ([parts[-1]] if len(parts) % 2 else [])
    return parts[0]


_REDUCTIONS: dict[str, Any] = {
    "+": lambda one, other: one + other,
    "sum": lambda one, other: one + other,
    "-": lambda one, other: one - other,
    "min": lambda one, other: np.minimum(one, other) if np.ndim(one) else min(one, other),
    "max": lambda one, other: np.maximum(one, other) if np.ndim(one) else max(one, other),
}


def MPI_Comm_rank(comm: dict[str, Any]) -> int:
    """Return the rank of this process."""
    return int(comm["rank"])


def MPI_Comm_size(comm: dict[str, Any]) -> int:
    """Return how many ranks there are."""
    return int(comm["size"])


def MPI_Init() -> None:
    """Do nothing: the run is there when the program starts."""


def MPI_Finalize() -> None:
    """End this process unless it is rank 0, as in pPython."""
    if world().comm.rank:
        raise SystemExit(0)


def MPI_Abort(*_: Any) -> NoReturn:
    """End the run."""
    world().comm.abort(1)
    raise SystemExit(1)


def pyMPI_Save_messages(old_comm: dict[str, Any], save_message_flag: int) -> dict[str, Any]:
    """Keep received messages, so that they can be received again, or stop; return the dictionary.

    A later message of the same source and tag takes the place of the kept one. What is kept is forgotten when it stops.
    """
    old_comm["save_message_flag"] = save_message_flag
    here = world()
    here.describe()["save_message_flag"] = save_message_flag
    if not save_message_flag:
        here.saved.clear()
    return old_comm


def Np() -> int:
    """Return how many ranks there are."""
    return world().comm.size


def Pid() -> int:
    """Return the rank of this process."""
    return world().comm.rank

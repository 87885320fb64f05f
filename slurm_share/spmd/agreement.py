"""Agreement of all ranks before an array is moved: on the call, its shapes and maps, and one dtype.

A rank with another map would send to ranks that do not expect it. So every collective operation on arrays begins with a
small allgather, which turns a difference into the same error on all ranks instead of an endless wait.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from . import collectives
from .comm import Comm
from .errors import CollectiveMismatch, UsageError
from .rules.maps import Map
from .transport import name_of

_Operation = TypeVar("_Operation", bound=Callable[..., Any])
_SHOWN = 300
"""Limit of characters of the description in an error."""


class Distributed(Protocol):
    """Interface of `dmat.Dmat` for modules that `dmat` imports."""

    comm: Comm
    shape: tuple[int, ...]
    map: Map

    @property
    def ndim(self) -> int: ...

    @property
    def local(self) -> NDArray[Any]: ...

    @property
    def owned(self) -> NDArray[Any]: ...


def agree(comm: Comm, call: str, arrays: Sequence[Distributed], *maps: Map, extra: Any = None) -> list[Any]:
    """Return the common dtype of each array, and as the last element the list of all ranks' `extra`.

    The dtype is NumPy's result_type of the local parts that are not empty. Collective. Raises on all ranks:
    CollectiveMismatch if calls, shapes or maps differ, UsageError if there is no common dtype.
    """
    description = _description(call, tuple(one.shape for one in arrays), tuple(one.map for one in arrays), maps)
    dtypes = tuple((one.local.dtype, one.local.size > 0) for one in arrays)
    # The tag leaves out the arguments: if only these differ, the answers show it on all ranks.
    answers = collectives.allgather(comm.group, (description, dtypes, extra), _without_arguments(call))
    expected, first = answers[0][0]
    for rank, ((digest, text), _, _) in enumerate(answers):
        if digest != expected:
            members, communicator = comm.transport.members, comm.group.communicator
            where = name_of(communicator, members) if communicator else ""
            raise CollectiveMismatch(comm.group.number, members[0], first, members[rank], text, where)
    agreed: list[Any] = [common_dtype(answer[1][place] for answer in answers) for place in range(len(arrays))]
    return [*agreed, [answer[2] for answer in answers]]


def collective(name: str) -> Callable[[_Operation], _Operation]:
    """Make an error that an operation raises on one rank, outside of its messages, raise on all ranks.

    `name`: the operation in their messages. One of its arguments is a distributed array; without one, nothing is told.
    """

    def wrapper(operation: _Operation) -> _Operation:
        @functools.wraps(operation)
        def told(*args: Any, **options: Any) -> Any:
            comm = next((one.comm for one in args if isinstance(getattr(one, "comm", None), Comm)), None)
            if comm is None:
                return operation(*args, **options)
            group = comm.group
            number = group.number
            try:
                return operation(*args, **options)
            except Exception as error:
                if group.number == number or group.failed != group.number:
                    group.refuse(name, error)
                raise

        return told  # type: ignore[return-value]

    return wrapper


@functools.lru_cache(maxsize=256)
def _without_arguments(call: str) -> str:
    return re.sub(r"\[.*", "[...]", re.sub(r"\(.*", "(...)", call))


@functools.lru_cache(maxsize=256)
def _description(
    call: str, shapes: tuple[tuple[int, ...], ...], maps: tuple[Map, ...], goals: tuple[Map, ...]
) -> tuple[bytes, str]:
    """Return a digest of a call and its arguments, and a readable description."""
    arrays = " and ".join(f"{shape} by {map!r}" for shape, map in zip(shapes, maps, strict=True))
    text = call + (f" of {arrays}" if maps else "") + "".join(f" to {goal!r}" for goal in goals)
    digest = hashlib.blake2b(repr((call, shapes)).encode(), digest_size=16)
    for one in (*maps, *goals):
        digest.update(one.digest())
    return digest.digest(), text[:_SHOWN]


def common_dtype(dtypes: Iterable[tuple[np.dtype[Any], bool]]) -> np.dtype[Any]:
    """Return the dtype that holds all. False marks an empty part, whose dtype counts only if all parts are empty."""
    pairs = list(dtypes)
    different = list(dict.fromkeys(one for one, filled in pairs if filled)) or list(dict.fromkeys(p[0] for p in pairs))
    if len(different) == 1:
        (one,) = different
        return np.dtype(one.str) if one.kind in "mM" else one  # NumPy 1.26 adds metadata to pickled dates
    try:
        return np.result_type(*different)
    except TypeError:
        names = ", ".join(map(str, different))
        raise UsageError(f"the ranks' parts of one array have dtypes without a common one: {names}") from None

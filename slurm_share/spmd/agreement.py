"""What all ranks compare before an array moves: the same call, the same shape and map, one dtype.

A rank that has another map sends to others than those who wait for it. So every collective operation on arrays begins
with one small allgather, and a difference is an error on all ranks, with the same sentence, instead of a wait for ever.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from . import collectives
from .comm import Comm
from .errors import CollectiveMismatch, UsageError
from .parts import Spread
from .rules.maps import Map

_SHOWN = 300
"""Characters of a description that go along for the error's sentence."""


def agree(comm: Comm, call: str, arrays: Sequence[Spread], *maps: Map, extra: Any = None) -> list[Any]:
    """Return each array's dtype, on which all ranks have agreed, and, last, the list of what ranks gave as `extra`.

    The dtype is NumPy's result_type of the local parts; a rank without a part has no say in it. Collective.
    Raises on all ranks CollectiveMismatch where calls, shapes or maps differ, UsageError where dtypes have nothing in
    common.
    """
    description = _description(call, tuple(one.shape for one in arrays), tuple(one.map for one in arrays), maps)
    dtypes = tuple((one.local.dtype, one.local.size > 0) for one in arrays)
    # Not the arguments: where only these differ, all ranks learn it from the answers.
    answers = collectives.allgather(comm.group, (description, dtypes, extra), _without_arguments(call))
    _compare(comm.group.number, [answer[0] for answer in answers])
    agreed: list[Any] = [common_dtype(answer[1][place] for answer in answers) for place in range(len(arrays))]
    return [*agreed, [answer[2] for answer in answers]]


@functools.lru_cache(maxsize=256)
def _without_arguments(call: str) -> str:
    return re.sub(r"\[.*", "[...]", re.sub(r"\(.*", "(...)", call))


@functools.lru_cache(maxsize=256)
def _description(
    call: str, shapes: tuple[tuple[int, ...], ...], maps: tuple[Map, ...], goals: tuple[Map, ...]
) -> tuple[bytes, str]:
    """Return a digest of a call and its arguments, and a description for people."""
    arrays = " and ".join(f"{shape} by {map!r}" for shape, map in zip(shapes, maps, strict=True))
    text = call + (f" of {arrays}" if maps else "") + "".join(f" to {goal!r}" for goal in goals)
    digest = hashlib.blake2b(repr((call, shapes)).encode(), digest_size=16)
    for one in (*maps, *goals):
        digest.update(one.digest())
    return digest.digest(), text[:_SHOWN]


def _compare(number: int, said: Sequence[tuple[bytes, str]]) -> None:
    """Raise CollectiveMismatch where ranks said different things; the same error on all ranks."""
    for rank, (digest, text) in enumerate(said):
        if digest != said[0][0]:
            raise CollectiveMismatch(number, 0, said[0][1], rank, text)


def common_dtype(dtypes: Iterable[tuple[np.dtype[Any], bool]]) -> np.dtype[Any]:
    """Return the dtype that holds all; False marks the dtype of an empty part, which counts if all parts are empty."""
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

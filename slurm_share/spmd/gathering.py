"""Bring a distributed array to one rank, or to all of them.

On one node every rank sends its part, with its dtype, in a single message: the root knows the parts' places from the
map. The call's name holds shape and map, so that another map is seen at the first frame. Where parts are large and
scattered over the array, all ranks agree first and write them in place by way of a window (`blocks`); from node to node
they agree first, too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import codec, collectives, host
from .agreement import agree, common_dtype
from .blocks import SHARED_BYTES, gather_blocks
from .bulk import Item, spread
from .calls import Call, Group, short
from .errors import UsageError
from .parts import Spread
from .rules import plans
from .rules.maps import Map
from .rules.positions import Positions, count, put
from .transport import Message
from .windows import as_bytes, room

_FEW = SHARED_BYTES // 8
"""Arrays of fewer elements go as messages whatever their map is. Elements, because dtypes may differ between ranks."""


def gather_array(array: Spread, root: int | None) -> NDArray[Any] | None:
    """Return the whole array on `root`, None elsewhere; `root` None: on every rank. Collective.

    Its dtype is the one that holds those of all parts. Raises CollectiveMismatch where ranks have other shapes or maps
    and UsageError where dtypes have nothing in common: on the root. Other ranks that have gone on by then get
    CollectiveMismatch in their next call.
    """
    group = array.comm.group
    part = host.of(array.owned)
    has_node = len(group.nodes) == 1
    if has_node and (_is_small_or_whole(array.shape, array.map) or not group.transport.has_windows):
        return _in_one_round(group, array.shape, array.map, part, root)
    dtype, _ = agree(array.comm, _call(root), [array])
    place = plans.block(array.shape, array.map, group.rank)
    where = None if place is None else place.axes
    return gather_blocks(group, array.shape, dtype, part.astype(dtype, copy=False), where, root)


def _call(root: int | None) -> str:
    return "gather_all()" if root is None else f"gather(root={root})"


@functools.lru_cache(maxsize=256)
def _name(root: int | None, shape: tuple[int, ...], map: Map) -> str:
    return short(f"{_call(root)} of {shape} by {map!r}")


@functools.lru_cache(maxsize=256)
def _is_small_or_whole(shape: tuple[int, ...], map: Map) -> bool:
    """Return whether the array is small, or each rank's part lies in one piece in it."""
    return math.prod(shape) < _FEW or all(lies_in_one_piece(shape, one.axes) for one in plans.blocks(shape, map))


def lies_in_one_piece(shape: Sequence[int], where: Sequence[Positions]) -> bool:
    """Return whether a block of an array in C order is contiguous there. `where`: its places per dimension."""
    is_part = False
    for length, places in zip(reversed(shape), reversed(where), strict=True):
        if not isinstance(places, slice) or (places.step != 1 and count(places) > 1):
            return False
        if is_part and count(places) != 1:
            return False
        is_part = is_part or count(places) != length
    return True


def _in_one_round(
    group: Group, shape: tuple[int, ...], map: Map, part: NDArray[Any], root: int | None
) -> NDArray[Any] | None:
    to = 0 if root is None else root
    with group.call(_name(root, shape, map)) as call:
        whole: NDArray[Any] | None = None
        if group.rank != to:
            form, meta, buffers = codec.encode(part)
            call.send(to, meta, buffers, form)
        else:
            try:
                whole = _Whole(group, shape, map, part).received(call)
            except UsageError as error:
                call.fail(str(error))
                raise
        if root is None:
            item = spread(group, call, to, None if whole is None else Item(*codec.encode(whole)))
            whole = collectives.decoded(item) if whole is None else whole
    return whole


class _Whole:
    """The array that the root puts together."""

    def __init__(self, group: Group, shape: tuple[int, ...], map: Map, part: NDArray[Any]) -> None:
        self._group, self._shape = group, shape
        self._places = {one.rank: one.axes for one in plans.blocks(shape, map)}
        self._part = part
        self._dtypes: list[tuple[np.dtype[Any], bool]] = []
        self._whole: NDArray[Any] | None = None

    def received(self, call: Call) -> NDArray[Any]:
        """Return the array once all parts have come."""
        mine = self._places.get(self._group.rank)
        if self._knows(self._part.dtype, mine):
            assert mine is not None
            put(self._fitting(), mine, self._part)  # while the others copy theirs
        for rank in range(self._group.size):
            if rank != self._group.rank:
                self._take(call.receive(rank))
        return self._fitting()

    def _knows(self, dtype: np.dtype[Any], where: Sequence[Positions] | None) -> bool:
        """Take note of the dtype of a part; return whether there is something in the part."""
        is_filled = where is not None and all(map(count, where))
        if (dtype, is_filled) not in self._dtypes:
            self._dtypes.append((dtype, is_filled))
        return is_filled

    def _fitting(self) -> NDArray[Any]:
        """Return the array in a dtype that holds all parts that have come, with those that were put there."""
        dtype = common_dtype(self._dtypes)
        if self._whole is None:
            self._whole = room(self._shape, dtype)
        elif self._whole.dtype != dtype:
            self._whole = self._whole.astype(dtype)
        return self._whole

    def _take(self, message: Message) -> None:
        envelope = message.envelope
        dtype, _, order = codec.array_of(envelope.meta)
        where = self._places.get(envelope.source)
        if not self._knows(dtype, where):
            message.take()
            return
        assert where is not None
        whole = self._fitting()
        if dtype == whole.dtype and order == "C" and lies_in_one_piece(self._shape, where):
            place = whole[tuple(one for one in where if isinstance(one, slice))]
            message.take_into(as_bytes(place.reshape(-1)).data)
        else:
            put(whole, where, codec.decode(envelope.form, envelope.meta, message.take()))

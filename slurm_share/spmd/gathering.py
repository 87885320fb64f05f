"""Gathering of a distributed array on one rank or on all ranks.

On one node every rank sends its part, with its dtype, in one message; the root knows the positions of the parts from
the map. The name of the call contains shape and map, so the first frame reveals a different map. If parts are large and
scattered over the array, all ranks agree first and write them in place through a window (`blocks`). Between nodes they
also agree first.
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
from .bulk import Item, broadcast
from .calls import Call, Group, tag_of_name
from .distributed_array import Distributed
from .errors import UsageError
from .rules import plans
from .rules.maps import Map
from .rules.positions import Positions, count, put
from .transport import Message
from .windows import as_bytes, room

_FEW = SHARED_BYTES // 8
"""Number of elements below which arrays of any map go as messages; ranks may differ in dtype, not in elements."""


def gather_array(array: Distributed, root: int | None) -> NDArray[Any] | None:
    """Return the whole array on `root` (None: on every rank), None elsewhere. Collective.

    Its dtype holds those of all parts. The root raises CollectiveMismatch if shapes or maps of ranks differ, UsageError
    if there is no common dtype. Ranks that have finished the call by then raise CollectiveMismatch in their next one.
    """
    group = array.comm.group
    part = host.to_host(array.owned)
    has_node = len(group.nodes) == 1
    if has_node and (_is_small_or_contiguous(array.shape, array.map) or not group.transport.has_windows):
        return _in_one_round(group, array.shape, array.map, part, root)
    dtype, _ = agree(array.comm, _call(root), [array])
    place = plans.block(array.shape, array.map, group.rank)
    where = None if place is None else place.axes
    return gather_blocks(group, array.shape, dtype, part.astype(dtype, copy=False), where, root)


def _call(root: int | None) -> str:
    return "gather_all()" if root is None else f"gather(root={root})"


@functools.lru_cache(maxsize=256)
def _name(root: int | None, shape: tuple[int, ...], map: Map) -> str:
    return tag_of_name(f"{_call(root)} of {shape} by {map!r}")


@functools.lru_cache(maxsize=256)
def _is_small_or_contiguous(shape: tuple[int, ...], map: Map) -> bool:
    """Return whether the array is small, or each rank's part is contiguous in it."""
    return math.prod(shape) < _FEW or all(is_contiguous_block(shape, one.axes) for one in plans.blocks(shape, map))


def is_contiguous_block(shape: Sequence[int], where: Sequence[Positions]) -> bool:
    """Return whether a block is contiguous in an array in C order. `where`: its positions per dimension."""
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
                whole = _Assembly(group, shape, map, part).receive_all(call)
            except UsageError as error:
                call.fail(str(error))
                raise
        if root is None:
            item = broadcast(group, call, to, None if whole is None else Item(*codec.encode(whole)))
            whole = collectives.decode_item(item) if whole is None else whole
    return whole


class _Assembly:
    """The array that the root assembles."""

    def __init__(self, group: Group, shape: tuple[int, ...], map: Map, part: NDArray[Any]) -> None:
        self._group, self._shape = group, shape
        self._places = {one.rank: one.axes for one in plans.blocks(shape, map)}
        self._part = part
        self._dtypes: list[tuple[np.dtype[Any], bool]] = []
        self._whole: NDArray[Any] | None = None

    def receive_all(self, call: Call) -> NDArray[Any]:
        """Return the array after all parts have arrived."""
        mine = self._places.get(self._group.rank)
        if self._note_dtype(self._part.dtype, mine):
            assert mine is not None
            put(self._fitting(), mine, self._part)  # while the other ranks send theirs
        for rank in range(self._group.size):
            if rank != self._group.rank:
                self._take(call.receive(rank))
        return self._fitting()

    def _note_dtype(self, dtype: np.dtype[Any], where: Sequence[Positions] | None) -> bool:
        """Note the dtype of a part; return whether the part has elements."""
        is_filled = where is not None and all(map(count, where))
        if (dtype, is_filled) not in self._dtypes:
            self._dtypes.append((dtype, is_filled))
        return is_filled

    def _fitting(self) -> NDArray[Any]:
        """Return the array, in the dtype that holds all parts so far."""
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
        if not self._note_dtype(dtype, where):
            message.take()
            return
        assert where is not None
        whole = self._fitting()
        if dtype == whole.dtype and order == "C" and is_contiguous_block(self._shape, where):
            place = whole[tuple(one for one in where if isinstance(one, slice))]
            message.take_into(as_bytes(place.reshape(-1)).data)
        else:
            put(whole, where, codec.decode(envelope.form, envelope.meta, message.take()))

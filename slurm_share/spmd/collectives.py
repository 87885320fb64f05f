"""Collective calls with any objects, as `Comm` describes them. Those with buffers are in `buffers`.

Each rank encodes its value once; other ranks pass it on as bytes.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Sequence
from typing import Any

from . import codec, reductions
from .bulk import Item, broadcast
from .calls import STAR_RANKS, CollectiveCall, Group
from .envelope import RAW
from .errors import CollectiveMismatch, UsageError
from .names import INLINE_BYTES
from .operations import checked
from .rules import trees

_LENGTH = struct.Struct("<I")
_STRAIGHT = 255
"""Form that means: the item comes in a separate message."""
_ALIGNED = 64
"""Alignment in bytes of the items in a packed body, which suits arrays."""


def encode_item(value: Any) -> Item:
    return Item(*codec.encode(value))


def decode_item(item: Item) -> Any:
    """Return the value of an item. It shares the memory of the item's buffer if there is one, and that is writable."""
    buffers = item.buffers
    alone = len(buffers) == 1 and not buffers[0].readonly
    return codec.decode(item.form, item.meta, buffers[0] if alone else memoryview(bytearray().join(buffers)))


def not_aliased(result: Any, given: Any) -> Any:
    """Return the result, or a copy if it is the user's own object."""
    return decode_copy(encode_item(result), own=True) if result is given else result


def receive_item(call: CollectiveCall, source: int) -> Item:
    message = call.receive(source)
    return Item(message.envelope.form, message.envelope.meta, (message.take(),))


def pack(items: dict[int, Item]) -> list[memoryview]:
    """Return the buffers of a body that packs the items of several ranks."""
    sizes = [item.size() for item in items.values()]
    table = [(rank, item.form, item.meta, size) for (rank, item), size in zip(items.items(), sizes, strict=True)]
    header = pickle.dumps(table, pickle.HIGHEST_PROTOCOL)
    begin = _LENGTH.pack(len(header)) + header
    packed = [memoryview(begin + bytes(-len(begin) % _ALIGNED))]
    for item, size in zip(items.values(), sizes, strict=True):
        packed.extend(buffer for buffer in item.buffers if buffer.nbytes)
        if size % _ALIGNED:
            packed.append(memoryview(bytes(-size % _ALIGNED)))
    return packed


def unpack(body: memoryview) -> dict[int, Item]:
    """Return the items of a packed body, by rank; they share its memory."""
    (length,) = _LENGTH.unpack_from(body)
    end = _LENGTH.size + length
    start = end + -end % _ALIGNED
    items = {}
    for rank, form, meta, size in pickle.loads(body[_LENGTH.size : end]):
        items[rank] = Item(form, meta, (body[start : start + size],))
        start += size + -size % _ALIGNED
    return items


def barrier(group: Group) -> None:
    with group.call("barrier()") as call:
        leader = group.node_ranks[0]
        if group.rank != leader:
            call.send(leader)
            call.receive(leader)
        else:
            others = group.node_ranks[1:]
            for rank in others:
                call.receive(rank)
            for to, source in trees.dissemination(trees.leaders(group.nodes), group.rank):
                call.send(to)
                call.receive(source)
            for rank in others:
                call.send(rank)
    group.node_passed = call.number - 1


def bcast(group: Group, value: Any, root: int) -> Any:
    with group.call(f"bcast(root={root})") as call:
        item = encode_item(value) if group.rank == root else None
        item = broadcast(group, call, root, item)
    return value if group.rank == root else decode_item(item)


def collect(group: Group, call: CollectiveCall, item: Item, root: int, inside: bool = True) -> dict[int, Item] | None:
    """Return the items of all ranks, by rank, on the root within a call; None elsewhere.

    `inside`: False on the root's node if the root already has the items of that node.
    """
    leader = group.leader(root)
    items = {group.rank: item}
    if inside:
        branch = group.inside(leader)
        _take_packed(call, branch.children, items)
        if branch.parent is not None:
            # A large item does not go through other ranks.
            straight = branch.parent != leader and item.size() > INLINE_BYTES
            if straight:
                items[group.rank] = Item(_STRAIGHT, b"", ())
            call.send(branch.parent, b"", pack(items))
            if straight:
                call.send(leader, item.meta, item.buffers, item.form)
            return None
        for rank, other in items.items():
            if other.form == _STRAIGHT:
                items[rank] = receive_item(call, rank)
    elif group.rank != leader:
        return None
    between = trees.fan(trees.leaders(group.nodes, root), root, group.rank, STAR_RANKS)
    _take_packed(call, between.children, items)
    if between.parent is not None:
        call.send(between.parent, b"", pack(items))
        return None
    return items


def _take_packed(call: CollectiveCall, sources: Sequence[int], items: dict[int, Item]) -> None:
    for source in reversed(sources):
        items.update(unpack(call.receive(source).take()))


def gather(group: Group, value: Any, root: int) -> list[Any] | None:
    with group.call(f"gather(root={root})") as call:
        item = encode_item(value)
        items = collect(group, call, item, root)
    return None if items is None else [decode_copy(items[rank], rank == root) for rank in range(group.size)]


def decode_copy(item: Item, own: bool) -> Any:
    """Return the value of an item, as a copy if `own`: its buffers belong to the user's value."""
    if own:
        item = Item(item.form, item.meta, (memoryview(bytearray().join(item.buffers)),))
    return decode_item(item)


def allgather(group: Group, value: Any, name: str = "allgather()") -> list[Any]:
    """Return the values of all ranks on every rank. `name`: name of the call in messages."""
    with group.call(name) as call:
        item = encode_item(value)
        try:
            items = collect(group, call, item, 0)
        except CollectiveMismatch as error:
            if group.rank == 0 and not error.is_failure:  # that rank tells all itself
                call.fail(str(error))
            raise
        whole = None if items is None else Item(RAW, b"", pack(dict(sorted(items.items()))))
        whole = broadcast(group, call, 0, whole)
    group.node_passed = call.number - 1
    if items is None:
        items = unpack(whole.buffers[0])
    return [decode_copy(items[rank], rank == group.rank == 0) for rank in range(group.size)]


def scatter(group: Group, values: Sequence[Any] | None, root: int) -> Any:
    items = {}
    with group.call(f"scatter(root={root})") as call:
        leader = group.leader(root)
        if group.rank == root:
            items = dict(enumerate(map(encode_item, one_for_each(group, values, "scatter"))))
            for number, other in enumerate(trees.leaders(group.nodes, root)):
                if other != root:
                    call.send(other, b"", pack({rank: items[rank] for rank in group.nodes[number].ranks}))
        elif group.rank == leader:
            items = unpack(call.receive(root).take())
        if group.rank != leader:
            return decode_item(receive_item(call, leader))
        for rank in group.node_ranks:
            if rank != leader:
                call.send(rank, items[rank].meta, items[rank].buffers, items[rank].form)
    return decode_copy(items[group.rank], group.rank == root)


def alltoall(group: Group, values: Sequence[Any]) -> list[Any]:
    results: list[Any] = [None] * group.size
    others = trees.rotated(group.size, group.rank)
    with group.call("alltoall()") as call:
        items = [encode_item(value) for value in one_for_each(group, values, "alltoall")]
        for rank in others:
            call.send(rank, items[rank].meta, items[rank].buffers, items[rank].form)
        results[group.rank] = decode_copy(items[group.rank], True)
        for rank in reversed(others):
            results[rank] = call.receive_object(rank)
    group.node_passed = call.number - 1
    return results


def reduce(group: Group, value: Any, op: Any, root: int) -> Any:
    name, combine = checked(op)
    with group.call(f"reduce({name}, root={root})") as call:
        _, result = combined(group, call, value, combine)
        if root != 0:
            if group.rank == 0:
                call.send_object(root, result)
            elif group.rank == root:
                result = call.receive_object(0)
    return not_aliased(result, value) if group.rank == root else None


def allreduce(group: Group, value: Any, op: Any) -> Any:
    name, combine = checked(op)
    with group.call(f"allreduce({name})") as call:
        everywhere, result = combined(group, call, value, combine, everywhere=True)
        if not everywhere:
            item = broadcast(group, call, 0, encode_item(result) if group.rank == 0 else None)
            result = result if group.rank == 0 else decode_item(item)
    group.node_passed = call.number - 1
    return not_aliased(result, value)


def combined(
    group: Group, call: CollectiveCall, value: Any, combine: Callable[[Any, Any], Any], everywhere: bool = False
) -> tuple[bool, Any]:
    """Return whether all ranks have the result, and on rank 0 the combination of all ranks' values.

    Values are combined first on each node, then between nodes. With `everywhere`, ranks of a single node may all get
    the result.
    """
    everywhere = everywhere and len(group.nodes) == 1
    in_window, value = reductions.combine_node(group, call, value, combine, everywhere)
    if group.rank == group.node_ranks[0]:
        branch = group.between(0)
        for child in reversed(branch.children):
            value = combine(value, call.receive_object(child))
        if branch.parent is not None:
            call.send_object(branch.parent, value)
    return everywhere and in_window, value


def scan(group: Group, value: Any, op: Any) -> Any:
    name, combine = checked(op)
    with group.call(f"scan({name})") as call:
        result = combine(call.receive_object(group.rank - 1), value) if group.rank > 0 else value
        if group.rank + 1 < group.size:
            call.send_object(group.rank + 1, result)
    return not_aliased(result, value)


def exscan(group: Group, value: Any, op: Any) -> Any:
    name, combine = checked(op)
    with group.call(f"exscan({name})") as call:
        before = call.receive_object(group.rank - 1) if group.rank > 0 else None
        if group.rank + 1 < group.size:
            call.send_object(group.rank + 1, combine(before, value) if group.rank > 0 else value)
    return before


def one_for_each(group: Group, values: Sequence[Any] | None, call: str) -> list[Any]:
    """Return the values as a list. Raises UsageError unless there is one for each rank."""
    try:
        found = iter(values)  # type: ignore[arg-type]
    except TypeError:
        found = None
    given = [] if found is None else list(found)
    if found is None or len(given) != group.size:
        what = repr(values) if found is None else f"{len(given)} values"
        raise UsageError(f"{call} needs a sequence with one value for each of the {group.size} ranks, not {what}")
    return given

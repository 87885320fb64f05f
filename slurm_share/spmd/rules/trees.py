"""Communication patterns of collective calls: trees, chains and rounds over ranks, and the division of work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..transport import NodePlace


@dataclass(frozen=True, slots=True)
class Branch:
    """One rank's position in a tree."""

    parent: int | None
    """None: this rank is the root."""
    children: tuple[int, ...]
    """The largest subtree first."""


def binomial(ranks: Sequence[int], root: int, rank: int) -> Branch:
    """Return the position of `rank` in a binomial tree over `ranks`, which contain `root` and `rank`.

    Counted from the root, each subtree is a run of consecutive elements of `ranks`. If the root is the first of them, a
    rank combines values in the order of `ranks` by taking its children in reverse order.
    """
    count = len(ranks)
    start = ranks.index(root)
    position = (ranks.index(rank) - start) % count
    reach = position & -position or 1 << count.bit_length()
    children = []
    while reach > 1:
        reach >>= 1
        if position + reach < count:
            children.append(ranks[(start + position + reach) % count])
    parent = None if position == 0 else ranks[(start + (position & (position - 1))) % count]
    return Branch(parent, tuple(children))


def star(ranks: Sequence[int], root: int, rank: int) -> Branch:
    """Return the position of `rank` in a star, where every other rank is a child of the root."""
    if rank != root:
        return Branch(root, ())
    return Branch(None, tuple(other for other in reversed(ranks) if other != root))


def fan(ranks: Sequence[int], root: int, rank: int, star_up_to: int) -> Branch:
    """Return the position of `rank` in a star of up to `star_up_to` ranks, or in a binomial tree of more."""
    return (star if len(ranks) <= star_up_to else binomial)(ranks, root, rank)


def merges(count: int, star_up_to: int) -> tuple[tuple[int, int], ...]:
    """Return the steps (into, from) that combine `count` values in the same order as ranks along a `fan`."""
    if count <= star_up_to:
        return tuple((0, other) for other in range(1, count))
    steps = (1 << power for power in range((count - 1).bit_length()))
    return tuple((into, into + step) for step in steps for into in range(0, count - step, 2 * step))


def chain(ranks: Sequence[int], root: int, rank: int) -> tuple[int | None, int | None]:
    """Return the previous and the next rank of `rank` in a chain of all `ranks` that begins with the root."""
    row = [root, *(other for other in ranks if other != root)]
    place = row.index(rank)
    return row[place - 1] if place else None, row[place + 1] if place + 1 < len(row) else None


def dissemination(ranks: Sequence[int], rank: int) -> tuple[tuple[int, int], ...]:
    """Return the peers to send to and to receive from in each round of a dissemination barrier."""
    count, position = len(ranks), ranks.index(rank)
    rounds = []
    step = 1
    while step < count:
        rounds.append((ranks[(position + step) % count], ranks[(position - step) % count]))
        step *= 2
    return tuple(rounds)


def rotated(size: int, rank: int) -> tuple[int, ...]:
    """Return all other ranks, starting after `rank`: ranks that send in this order start with different ones."""
    return tuple((rank + step) % size for step in range(1, size))


def node_of(nodes: Sequence[NodePlace], rank: int) -> int:
    """Return the number of a rank's node. Raises LookupError if there is no such rank."""
    for number, node in enumerate(nodes):
        if rank in node.ranks:
            return number
    raise LookupError(f"rank {rank}")


def leaders(nodes: Sequence[NodePlace], root: int | None = None) -> tuple[int, ...]:
    """Return the leader of each node: its first rank, or `root` on the root's node."""
    return tuple(root if root is not None and root in node.ranks else node.first for node in nodes)


def pieces(size: int, piece: int) -> tuple[tuple[int, int], ...]:
    """Return start and stop of consecutive pieces of `size` elements, none longer than `piece`."""
    return tuple((start, min(start + piece, size)) for start in range(0, size, piece))


def equal_part(size: int, parts: int, part: int) -> tuple[int, int]:
    """Return start and stop of one of `parts` parts that are as equal as possible, the longer ones first."""
    short, longer = divmod(size, parts)
    start = part * short + min(part, longer)
    return start, start + short + (part < longer)

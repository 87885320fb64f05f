"""Who sends to whom in a collective call: trees, chains and rounds over ranks, and how work is split among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Place(Protocol):
    """One node: its ranks follow each other."""

    @property
    def first(self) -> int: ...

    @property
    def count(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Branch:
    """One rank's place in a tree."""

    parent: int | None
    """None: this rank is the root, or is not in the tree."""
    children: tuple[int, ...]
    """The largest subtree first."""


def binomial(ranks: Sequence[int], root: int, rank: int) -> Branch:
    """Return the place of `rank` in a binomial tree over `ranks`, which hold `root` and `rank`.

    Counted from the root, each subtree is a run of neighbours in `ranks`: where the root is the first of them, a rank
    and its children in reverse order combine values in the order of `ranks`.
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
    """Return the place of `rank` where every other rank is a child of the root."""
    if rank != root:
        return Branch(root, ())
    return Branch(None, tuple(other for other in reversed(ranks) if other != root))


def fan(ranks: Sequence[int], root: int, rank: int, star_up_to: int) -> Branch:
    """Return the place in a star of so many ranks, in a binomial tree of more."""
    return (star if len(ranks) <= star_up_to else binomial)(ranks, root, rank)


def merges(count: int, star_up_to: int) -> tuple[tuple[int, int], ...]:
    """Return which of so many values is combined into which, in turn, as ranks do that send along a `fan`."""
    if count <= star_up_to:
        return tuple((0, other) for other in range(1, count))
    steps = (1 << power for power in range((count - 1).bit_length()))
    return tuple((into, into + step) for step in steps for into in range(0, count - step, 2 * step))


def chain(ranks: Sequence[int], root: int, rank: int) -> tuple[int | None, int | None]:
    """Return whom `rank` hears from and whom it tells, where all of `ranks` stand in a row behind the root."""
    row = [root, *(other for other in ranks if other != root)]
    place = row.index(rank)
    return row[place - 1] if place else None, row[place + 1] if place + 1 < len(row) else None


def dissemination(ranks: Sequence[int], rank: int) -> tuple[tuple[int, int], ...]:
    """Return for each round whom `rank` tells and whom it hears from; after the last all have heard of all."""
    count, position = len(ranks), ranks.index(rank)
    rounds = []
    step = 1
    while step < count:
        rounds.append((ranks[(position + step) % count], ranks[(position - step) % count]))
        step *= 2
    return tuple(rounds)


def rotated(size: int, rank: int) -> tuple[int, ...]:
    """Return all other ranks, beginning behind `rank`: if all send in this order, they do not all begin with one."""
    return tuple((rank + step) % size for step in range(1, size))


def node_of(nodes: Sequence[Place], rank: int) -> int:
    """Return the number of the node on which a rank is. Raises LookupError where there is no such rank."""
    for number, node in enumerate(nodes):
        if node.first <= rank < node.first + node.count:
            return number
    raise LookupError(f"rank {rank}")


def ranks_of(node: Place) -> range:
    """Return the ranks of a node."""
    return range(node.first, node.first + node.count)


def speakers(nodes: Sequence[Place], root: int | None = None) -> tuple[int, ...]:
    """Return which rank speaks for each node: its first, `root` on the root's own."""
    return tuple(root if root is not None and root in ranks_of(node) else node.first for node in nodes)


def pieces(size: int, piece: int) -> tuple[tuple[int, int], ...]:
    """Return start and stop of the pieces of something that long, none longer than `piece`."""
    return tuple((start, min(start + piece, size)) for start in range(0, size, piece))


def share(size: int, parts: int, part: int) -> tuple[int, int]:
    """Return start and stop of one of so many parts, as equal as they can be, the longer ones first."""
    short, longer = divmod(size, parts)
    start = part * short + min(part, longer)
    return start, start + short + (part < longer)

"""Groups of ranks, with mpi4py's names: lists of ranks of the run from which communicators are made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from .arguments import whole
from .constants import IDENT, PROC_NULL, SIMILAR, UNDEFINED, UNEQUAL
from .errors import UsageError


class RankGroup:
    """Some ranks of the run in an order. mpi4py's name is Group. It cannot be changed."""

    rank: int
    """Number of this rank in the group; UNDEFINED if it is not in it."""
    size: int
    """Number of ranks in the group."""

    @property
    def members(self) -> Sequence[int]:
        """The rank in the run of each rank of the group."""
        raise NotImplementedError

    @property
    def _own(self) -> int:
        """This process's rank in the run."""
        raise NotImplementedError

    def Get_rank(self) -> int:
        """Return `rank`."""
        return self.rank

    def Get_size(self) -> int:
        """Return `size`."""
        return self.size

    def Dup(self) -> RankGroup:
        """Return an equal group."""
        return self._group(self.members)

    def Incl(self, ranks: Sequence[int]) -> RankGroup:
        """Return the group of these ranks of the group, in this order."""
        return self._group(self.members[rank] for rank in self._numbers(ranks, "Incl"))

    def Excl(self, ranks: Sequence[int]) -> RankGroup:
        """Return the group without these ranks of it."""
        gone = set(self._numbers(ranks, "Excl"))
        return self._group(member for rank, member in enumerate(self.members) if rank not in gone)

    def Range_incl(self, ranks: Sequence[tuple[int, int, int]]) -> RankGroup:
        """Return the group of ranges of ranks; each range is (first, last, step), with the last rank included."""
        return self.Incl(_ranges(ranks, "Range_incl"))

    def Range_excl(self, ranks: Sequence[tuple[int, int, int]]) -> RankGroup:
        """Return the group without ranges of ranks; see `Range_incl`."""
        return self.Excl(_ranges(ranks, "Range_excl"))

    # mpi4py's programs call these on the class with two groups, or on the first one: both work with methods.
    def Union(self, group: RankGroup) -> RankGroup:
        """Return the ranks of this group, then those of the other that are not in it."""
        _check(group, "Union")
        return self._group_with(group, dict.fromkeys((*self.members, *group.members)))

    def Intersection(self, group: RankGroup) -> RankGroup:
        """Return the ranks of this group that are in the other."""
        _check(group, "Intersection")
        others = set(group.members)
        return self._group_with(group, (one for one in self.members if one in others))

    def Difference(self, group: RankGroup) -> RankGroup:
        """Return the ranks of this group that are not in the other."""
        _check(group, "Difference")
        others = set(group.members)
        return self._group_with(group, (one for one in self.members if one not in others))

    def Compare(self, group: RankGroup) -> int:
        """Return IDENT for the same ranks in the same order, SIMILAR in another order, else UNEQUAL."""
        _check(group, "Compare")
        if tuple(self.members) == tuple(group.members):
            return IDENT
        return SIMILAR if sorted(self.members) == sorted(group.members) else UNEQUAL

    def Translate_ranks(self, ranks: Sequence[int] | None = None, group: RankGroup | None = None) -> list[int]:
        """Return the numbers in another group of ranks of this one (None: of all); UNDEFINED for one not in it.

        `group`: None means the group of all ranks of the run.
        """
        places = None if group is None else {member: rank for rank, member in enumerate(group.members)}
        found = []
        for one in range(self.size) if ranks is None else ranks:
            if one == PROC_NULL:
                found.append(PROC_NULL)
                continue
            (rank,) = self._numbers([one], "Translate_ranks")
            member = self.members[rank]
            found.append(member if places is None else places.get(member, UNDEFINED))
        return found

    def Free(self) -> None:
        """Do nothing: the communicator keeps its group."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RankGroup):
            return NotImplemented
        return self is other or not (self or other)

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> bool:
        return True

    def __reduce__(self) -> NoReturn:
        raise UsageError("a group cannot be pickled; send its list of ranks: Translate_ranks gives them")

    def __copy__(self) -> RankGroup:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> RankGroup:
        return self

    def _group(self, members: Iterable[int]) -> RankGroup:
        return make_group(members, self._own)

    def _group_with(self, other: RankGroup, members: Iterable[int]) -> RankGroup:
        return make_group(members, self._own if self.size else other._own)

    def _numbers(self, ranks: Iterable[Any], call: str) -> list[int]:
        """Return ranks of the group as integers. Raises UsageError for one that does not exist or comes twice."""
        found: dict[int, None] = {}
        if not isinstance(ranks, Iterable):
            raise UsageError(f"{call} needs a list of ranks, not {ranks!r}")
        for one in ranks:
            number = whole(one)
            if number is None or not 0 <= number < self.size:
                raise UsageError(f"{call}: there is no rank {one!r} in this group, which has {self.size} ranks")
            if number in found:
                raise UsageError(f"{call}: rank {number} is named twice")
            found[number] = None
        return list(found)


class _PlainGroup(RankGroup):
    """Group apart from a communicator."""

    _is_null = False

    def __init__(self, members: Iterable[int], own: int) -> None:
        self._ranks, self._self = tuple(members), own
        self.size = len(self._ranks)
        self.rank = self._ranks.index(own) if own in self._ranks else UNDEFINED

    @property
    def members(self) -> Sequence[int]:
        return self._ranks

    @property
    def _own(self) -> int:
        return self._self

    def Free(self) -> None:
        """Give the group up: it becomes equal to GROUP_NULL, and false. A group without ranks stays."""
        if self._ranks:
            self._ranks, self.size, self.rank, self._is_null = (), 0, UNDEFINED, True

    def __bool__(self) -> bool:
        return not self._is_null

    def _numbers(self, ranks: Iterable[Any], call: str) -> list[int]:
        if self._is_null:
            raise UsageError(f"{call}: this is GROUP_NULL, which is no group, or a group that has been freed")
        return super()._numbers(ranks, call)

    def __repr__(self) -> str:
        if self._is_null:
            return "<GROUP_NULL>"
        return f"<Group of ranks {list(self._ranks)} of the run>" if self._ranks else "<Group without ranks>"


class _NullGroup(_PlainGroup):
    """GROUP_NULL, which is no group."""

    _is_null = True


GROUP_EMPTY: RankGroup = _PlainGroup((), UNDEFINED)
"""Group without ranks."""
GROUP_NULL: RankGroup = _NullGroup((), UNDEFINED)
"""No group."""


def make_group(members: Iterable[int], own: int) -> RankGroup:
    """Return the group of these ranks of the run. `own`: this process's rank in the run."""
    ranks = tuple(members)
    return _PlainGroup(ranks, own) if ranks else GROUP_EMPTY


def _check(group: Any, call: str) -> None:
    if not isinstance(group, RankGroup):
        raise UsageError(f"{call} needs two groups, not {group!r}")


def _ranges(ranges: Sequence[tuple[int, int, int]], call: str) -> list[int]:
    found: list[int] = []
    for one in ranges:
        try:
            first, last, step = map(whole, one)
        except (TypeError, ValueError):
            first = last = step = None
        if first is None or last is None or not step:
            raise UsageError(f"{call}: a range is (first, last, step) with a step other than 0, not {one!r}")
        found += range(first, last + (1 if step > 0 else -1), step)
    return found

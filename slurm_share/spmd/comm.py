"""Public interface of messages: communicators, with mpi4py's names and order of arguments."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from . import codec, collectives, world
from .arguments import whole
from .calls import decode_message, tag_of_name
from .collective_calls import CollectiveCalls
from .constants import ANY_SOURCE as ANY_SOURCE
from .constants import ANY_TAG as ANY_TAG
from .constants import COMM_TYPE_SHARED, CONGRUENT, IDENT, UNDEFINED
from .errors import UsageError
from .gpus import GpuCalls
from .groups import RankGroup, make_group
from .left_out import LeftOutCalls
from .point_to_point import PointToPoint
from .reductions import MAX as MAX
from .reductions import MIN as MIN
from .reductions import PROD as PROD
from .reductions import SUM as SUM
from .reductions import Op as Op
from .status import Status as Status
from .subset_transport import SubsetTransport
from .transport import CREATION, ONE_RANK, Transport, name_of, user_context


class Comm(PointToPoint, CollectiveCalls, GpuCalls, LeftOutCalls):
    """Communicator of all ranks of a run, or of some."""

    def __init__(self, transport: Comm | Transport | Callable[[], Transport], *, name: str = "") -> None:
        """`transport`: see `CommBase`; of another communicator, this is a second name.

        `name`: of one that each rank has from the beginning.
        """
        self._origin: Comm = self
        self._predefined, self._name, self._is_null = name, name, False
        if isinstance(transport, Comm):
            self._origin = transport._origin
            super().__init__(lambda: self._origin.group)
        else:
            super().__init__(transport)

    def __repr__(self) -> str:
        if not self:
            return "<COMM_NULL>"
        if callable(self._origin._made) and "group" not in vars(self._origin):
            return "<Comm, not connected yet>"
        name = f" {self._name}" if self._name != self._predefined else ""
        where = f" of {self.size} on {self.node}"
        return f"<{type(self).__name__}{name}: rank {self.rank}{where}>"

    def __bool__(self) -> bool:
        return not self._origin._is_null

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Comm):
            return NotImplemented
        return self._origin is other._origin or not (self or other)

    def __hash__(self) -> int:
        return hash(id(self._origin))

    def __reduce__(self) -> Any:
        if self._predefined:
            return _predefined, (self._predefined,)
        raise UsageError("a communicator cannot be pickled or sent: each rank gets its own from Split, Dup or Create")

    def __copy__(self) -> Comm:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Comm:
        return self

    def abort(self, code: int = 1, why: str = "") -> NoReturn:
        """End the run: the current or next call of every rank raises Aborted, and this process exits with the code.

        On a communicator of some ranks too this ends all ranks of the run, and the reason says so.
        """
        self.transport.abort(int(code), why)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the reader is gone, or the stream is closed
                stream.flush()
        os._exit(int(code) & 0xFF or 1)

    Abort = abort
    """mpi4py's name of `abort`."""

    def Split(self, color: int = 0, key: int = 0) -> Comm:
        """Return the communicator of all ranks that give the same colour, in the order of `key`, then of rank.

        Returns COMM_NULL for the colour UNDEFINED. Collective.
        """
        chosen, place = _number(color), _number(key)
        if chosen is None or (chosen < 0 and chosen != UNDEFINED):
            raise UsageError(f"Split: a colour is an integer from 0 on, or UNDEFINED, not {color!r}")
        if place is None:
            raise UsageError(f"Split: a key is an integer, not {key!r}")
        number, told = self._agree("Split()", (chosen, place))
        if chosen == UNDEFINED:
            return COMM_NULL
        ordered = sorted((place, rank) for rank, (colour, place) in enumerate(told) if colour == chosen)
        return self._made_of([rank for _place, rank in ordered], number)

    def Split_type(self, split_type: int, key: int = 0, info: Any = None) -> Comm:
        """Return the communicator of this node's ranks for COMM_TYPE_SHARED, COMM_NULL for UNDEFINED; see `Split`."""
        if split_type not in (COMM_TYPE_SHARED, UNDEFINED):
            raise UsageError(f"Split_type: the type is COMM_TYPE_SHARED or UNDEFINED, not {split_type!r}")
        return self.Split(self.nodes.index(self.node) if split_type == COMM_TYPE_SHARED else UNDEFINED, key)

    def Dup(self, info: Any = None) -> Comm:
        """Return a communicator of the same ranks whose messages are apart from this one's. Collective."""
        number, _told = self._agree("Dup()", None)
        return self._made_of(range(self.size), number, self)

    Clone = Dup
    """mpi4py's other name of `Dup`."""
    Dup_with_info = Dup
    """mpi4py's name of a `Dup` with hints, of which there are none."""

    def Create(self, group: RankGroup) -> Comm:
        """Return the communicator of a group of this one's ranks; COMM_NULL on ranks that are not in it. Collective.

        Raises UsageError on all ranks if the members of a group give different groups.
        """
        ranks = self._ranks_of(group, "Create")
        number, told = self._agree("Create()", ranks)
        for rank, theirs in enumerate(told):
            other = next((one for one in theirs if told[one] != theirs), None) if rank in theirs else None
            if other is not None:
                raise UsageError(f"Create: rank {rank} gives the group of ranks {theirs}, rank {other} {told[other]}")
        return self._made_of(ranks, number) if self.rank in ranks else COMM_NULL

    def Create_group(self, group: RankGroup, tag: int = 0) -> Comm:
        """Return the communicator of a group of this one's ranks. Only the members of the group call this.

        `tag` tells calls apart that different threads make at the same time.
        """
        ranks = self._ranks_of(group, "Create_group")
        if self.rank not in ranks:
            return COMM_NULL
        run, members = self.transport.run, [self.transport.members[rank] for rank in ranks]
        context = user_context(CREATION)
        what = tag_of_name(f"tag {tag} in {self._told_name}: {name_of(0, members)} {members}")
        if self.rank == ranks[0]:
            number = run.new_number()
            for member in members[1:]:
                run.send(member, context, what, *codec.encode(number))
        else:
            number = decode_message(run.receive(members[0], context, what, "Create_group"))
        return self._made_of(ranks, number)

    def Free(self) -> None:
        """Give the communicator up. Later calls on it raise UsageError. One without references needs no `Free`."""
        if self._predefined or not self:
            raise UsageError(f"Free: {self._predefined or 'COMM_NULL'} cannot be freed")
        origin = self._origin
        origin._is_null, origin._made = True, _freed
        vars(origin).pop("group", None)
        vars(self).pop("group", None)

    Disconnect = Free
    """mpi4py's name for giving up a communicator with waiting for its messages; sends never wait here."""

    def Get_group(self) -> RankGroup:
        """Return the group of the ranks."""
        return make_group(self.group.members, self.transport.run.rank)

    def Compare(self, comm: Comm) -> int:
        """Return IDENT for the same communicator, CONGRUENT, SIMILAR or UNEQUAL, which compare the ranks."""
        if not isinstance(comm, Comm):
            raise UsageError(f"Compare needs two communicators, not {comm!r}")
        if self._origin is comm._origin:
            return IDENT
        found = self.group.Compare(comm.group)
        return CONGRUENT if found == IDENT else found

    def Get_name(self) -> str:
        """Return `name`."""
        return self._name

    def Set_name(self, name: str) -> None:
        """Set `name`."""
        self._name = str(name)

    name = property(Get_name, Set_name)
    """Name of the communicator, which only this rank knows."""

    def Is_inter(self) -> bool:
        """Return False: there are no intercommunicators."""
        return False

    def Is_intra(self) -> bool:
        """Return True."""
        return True

    def Get_topology(self) -> int:
        """Return CART for a grid (`Create_cart`), else UNDEFINED."""
        return UNDEFINED

    is_inter = property(Is_inter)
    """False; see `Is_inter`."""
    is_intra = property(Is_intra)
    """True."""
    topology = property(lambda self: self.Get_topology())
    """The kind of topology that `Get_topology` returns."""
    is_topo = property(lambda self: self.Get_topology() != UNDEFINED)
    """Whether the ranks form a grid."""

    @staticmethod
    def Get_parent() -> Comm:
        """Return COMM_NULL: no other run has started this one."""
        return COMM_NULL

    def Create_cart(self, dims: Any, periods: Any = None, reorder: bool = False) -> Any:
        """Return a communicator whose ranks form a grid, the last dimension first; COMM_NULL on ranks that are left.

        `dims`: the number of ranks in each dimension. `periods`: whether each dimension is a ring. `reorder` changes
        nothing: the ranks keep their order, which is that of the nodes. Collective.
        """
        topologies = importlib.import_module(f"{__package__}.topologies")  # which few programs need
        return topologies.create_cart(self, dims, periods)

    @property
    def _told_name(self) -> str:
        return name_of(self.group.communicator, self.group.members)

    def _agree(self, name: str, value: Any) -> tuple[int, list[Any]]:
        """Return a number for a new communicator, and all ranks' values. Collective."""
        number = self.transport.new_number() if self.rank == 0 else 0
        told = collectives.allgather(self.group, (number, value), name)
        return told[0][0], [theirs for _number, theirs in told]

    def _made_of(self, ranks: Sequence[int], number: int, pattern: Comm | None = None) -> Comm:
        """Return the communicator of that number of ranks of this one. `pattern`: one whose topology it has."""
        made = self._transport_of(ranks, number)
        return Comm(made) if pattern is None else pattern._alike(made)

    def _transport_of(self, ranks: Sequence[int], number: int) -> SubsetTransport:
        members = [self.transport.members[rank] for rank in ranks]
        return SubsetTransport(self.transport.run, members, number)

    def _alike(self, transport: Transport) -> Comm:
        return Comm(transport)

    def _ranks_of(self, group: RankGroup, call: str) -> tuple[int, ...]:
        """Return the ranks of a group in this communicator. Raises UsageError."""
        if not isinstance(group, RankGroup) or not group:
            raise UsageError(f"{call} needs a group, such as Get_group().Incl([0, 1]), not {group!r}")
        ranks = tuple(group.Translate_ranks(None, self.group))
        if UNDEFINED in ranks:
            member = group.members[ranks.index(UNDEFINED)]
            raise UsageError(f"{call}: rank {member} of the run is in the group, and not in this communicator")
        return ranks


def _number(value: Any) -> int | None:
    """Return a colour or key as an integer; programs also write conditions such as `rank == 0`."""
    return int(value) if type(value).__name__ in ("bool", "bool_") else whole(value)


def _nothing() -> NoReturn:
    raise UsageError("COMM_NULL is the communicator of ranks that are in none, and has no calls")


def _freed() -> NoReturn:
    raise UsageError("this communicator has been freed")


def _one_rank() -> Transport:
    run = world.transport()
    return SubsetTransport(run, (run.rank,), ONE_RANK)


def _predefined(name: str) -> Comm:
    return _PREDEFINED[name]


COMM_WORLD = Comm(world.transport, name="MPI_COMM_WORLD")
"""All ranks of the run."""
COMM_SELF = Comm(_one_rank, name="MPI_COMM_SELF")
"""This rank alone."""
COMM_NULL = Comm(_nothing, name="MPI_COMM_NULL")
"""No communicator."""
COMM_NULL._is_null = True
_PREDEFINED = {one._predefined: one for one in (COMM_WORLD, COMM_SELF, COMM_NULL)}

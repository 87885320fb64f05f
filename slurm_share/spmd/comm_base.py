"""Base class of communicators: ranks and nodes, and the checks of ranks and tags that all calls use."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from .arguments import is_any_tag, tag_of, whole
from .calls import Group
from .constants import ANY_SOURCE
from .envelope import Tag
from .errors import NoSuchRank, NoSuchRoot, UsageError
from .transport import Transport, user_context


class CommBase:
    """Ranks, nodes and state of a communicator, which its calls use."""

    def __init__(self, transport: Transport | Callable[[], Transport | Group]) -> None:
        """`transport`: a callable is called at the first use, so that an import makes no connection."""
        self._made = transport

    @cached_property
    def group(self) -> Group:
        """The ranks, and the state of their collective calls."""
        made = self._made() if callable(self._made) else self._made
        return made if isinstance(made, Group) else Group(made)

    @cached_property
    def _straight(self) -> Any:
        """The short way of small messages in a node; None: there is none."""
        return self.transport.straight(user_context(self.group.communicator))

    @property
    def transport(self) -> Transport:
        return self.group.transport

    @property
    def rank(self) -> int:
        """Number of this process in the communicator, from 0; in COMM_WORLD that in the run."""
        return self.group.rank

    @property
    def size(self) -> int:
        """Number of ranks in the communicator."""
        return self.group.size

    @property
    def node(self) -> str:
        """Name of this rank's node."""
        return self.group.nodes[self.group.node].name

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes, in the order of their ranks."""
        return tuple(dict.fromkeys(place.name for place in self.group.nodes))

    @property
    def node_rank(self) -> int:
        """Number of this rank on its node, from 0."""
        return self._node_ranks.index(self.group.rank)

    @property
    def node_size(self) -> int:
        """Number of ranks on this rank's node."""
        return len(self._node_ranks)

    @property
    def _node_ranks(self) -> list[int]:
        # Ranks of a node that are not consecutive are several of the group's nodes, with one name.
        return [rank for place in self.group.nodes if place.name == self.node for rank in place.ranks]

    def Get_rank(self) -> int:
        """Return `rank`; mpi4py's name."""
        return self.rank

    def Get_size(self) -> int:
        """Return `size`; mpi4py's name."""
        return self.size

    def _root(self, rank: Any, call: str) -> int:
        """Return the root of a collective call. Raises NoSuchRoot."""
        return self._rank(rank, call, NoSuchRoot)

    def _rank(self, rank: Any, call: str, error: type[UsageError] = NoSuchRank) -> int:
        number = whole(rank)
        if number is None or not 0 <= number < self.size:
            what = "this communicator" if self.group.communicator else "the run"
            raise error(f"{call}: there is no rank {rank!r}; {what} has ranks 0 to {self.size - 1}")
        return number

    def _wanted(self, source: Any, tag: Any) -> tuple[int | None, int, Tag | None]:
        number = None if source is None or whole(source) == ANY_SOURCE else self._rank(source, "recv")
        return number, user_context(self.group.communicator), None if is_any_tag(tag) else tag_of(tag)

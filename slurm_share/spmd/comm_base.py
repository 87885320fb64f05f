"""What all calls on a communicator use: its ranks and nodes, and the checks of ranks and tags."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from .arguments import tag_of, whole
from .calls import Group
from .constants import ANY_SOURCE, ANY_TAG
from .envelope import Tag
from .errors import UsageError
from .transport import Transport, user_context


class CommBase:
    """Ranks, nodes and state of a communicator, which its calls use."""

    def __init__(self, transport: Transport | Callable[[], Transport]) -> None:
        """`transport`: a callable is called at the first use, so that an import makes no connection."""
        self._made = transport

    @cached_property
    def group(self) -> Group:
        """State of the collective calls of all ranks."""
        return Group(self._made() if callable(self._made) else self._made)

    @cached_property
    def _straight(self) -> Any:
        """The short way of small messages in a node; None: there is none."""
        return self.transport.straight(user_context(self.group.communicator))

    @property
    def transport(self) -> Transport:
        return self.group.transport

    @property
    def rank(self) -> int:
        """Number of this process in the run, from 0."""
        return self.group.rank

    @property
    def size(self) -> int:
        """Number of ranks in the run."""
        return self.group.size

    @property
    def node(self) -> str:
        """Name of this rank's node."""
        return self.group.nodes[self.group.node].name

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes, in the order of their ranks."""
        return tuple(place.name for place in self.group.nodes)

    @property
    def node_rank(self) -> int:
        """Number of this rank on its node, from 0."""
        return self.group.rank - self.group.node_ranks[0]

    @property
    def node_size(self) -> int:
        """Number of ranks on this rank's node."""
        return len(self.group.node_ranks)

    def Get_rank(self) -> int:
        """Return `rank`; mpi4py's name."""
        return self.rank

    def Get_size(self) -> int:
        """Return `size`; mpi4py's name."""
        return self.size

    def _rank(self, rank: Any, call: str) -> int:
        number = whole(rank)
        if number is None or not 0 <= number < self.size:
            raise UsageError(f"{call}: there is no rank {rank!r}; the run has ranks 0 to {self.size - 1}")
        return number

    def _wanted(self, source: Any, tag: Any) -> tuple[int | None, int, Tag | None]:
        number = None if source is None or source == ANY_SOURCE else self._rank(source, "recv")
        return number, user_context(self.group.communicator), None if tag is None or tag == ANY_TAG else tag_of(tag)

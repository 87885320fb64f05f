"""The public face of messages: mpi4py's names and order of arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .transport import Envelope, Tag, Transport

ANY_SOURCE = -1
ANY_TAG: Any = None


class Op:
    """A reduction with a name; SUM, PROD, MIN, MAX."""


SUM = PROD = MIN = MAX = Op()


class Comm:
    """All ranks of a run."""

    def __init__(self, transport: Transport | Callable[[], Transport]) -> None:
        """A callable is called at the first use: importing connects to nobody."""
        raise NotImplementedError

    rank: int
    size: int
    node: str
    nodes: tuple[str, ...]
    node_rank: int
    """Number of this rank on its node, from 0."""
    node_size: int

    def send(self, obj: Any, dest: int, tag: Tag = 0) -> None:
        raise NotImplementedError

    def recv(
        self, source: int = ANY_SOURCE, tag: Any = ANY_TAG, *, timeout_s: float | None = None, status: Any = None
    ) -> Any:
        raise NotImplementedError

    def bcast(self, obj: Any, root: int = 0) -> Any:
        raise NotImplementedError

    def gather(self, obj: Any, root: int = 0) -> list[Any] | None:
        raise NotImplementedError

    def allgather(self, obj: Any) -> list[Any]:
        raise NotImplementedError

    def alltoall(self, objs: list[Any]) -> list[Any]:
        raise NotImplementedError

    def barrier(self) -> None:
        raise NotImplementedError

    def iprobe(self, source: int = ANY_SOURCE, tag: Any = ANY_TAG) -> bool:
        raise NotImplementedError

    def waiting(self) -> tuple[Envelope, ...]:
        raise NotImplementedError

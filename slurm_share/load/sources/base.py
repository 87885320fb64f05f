"""The interface of a source of snapshots, with its request and its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from ...slurm.records import QueuedJob
from ..snapshot import Snapshot, SourceName


class SourceRequest(Struct, frozen=True, kw_only=True):
    """A request for the snapshots of some nodes."""

    nodes: tuple[str, ...]
    addresses: Mapping[str, str] = {}
    """Node -> address, for nodes whose address is not their name."""
    jobs: tuple[QueuedJob, ...] = ()
    """Slurm's jobs on these nodes that the caller may see."""
    user: str = ""
    """The user whose load is wanted; empty: all users' (operators)."""
    details: bool = True
    """False: a line per node is enough. Then a source may leave out processes, jobs and users, and have `gpu_sums`
    instead of GPUs, which for thousands of nodes are most of the cost."""


class SourceAnswer(Struct, frozen=True, kw_only=True):
    """An answer: every node of the request is either in `snapshots` or in `silent`."""

    snapshots: Mapping[str, Snapshot]
    silent: Mapping[str, str]
    """Node -> why it has no snapshot, in a few words."""
    notes: Sequence[str] = ()
    """Sentences for the user, such as what to do about silent nodes."""


class Source(Protocol):
    """A source of snapshots. It is made once, read many times and closed at the end."""

    name: SourceName

    def get_ready(self, all_lines: bool, timeout_s: float) -> None:
        """Start what needs no names of nodes; called once, while Slurm is asked for these. Does not raise or wait.
        `all_lines`: the request will be for a line of every node, for all users. Default: nothing to start."""
        return

    def read(self, asked: SourceRequest, timeout_s: float) -> SourceAnswer:
        """Return the newest snapshots, after at most `timeout_s`. Raises SlurmShareError if no node can be read; a
        silent node is no error."""

    def ask_again(self) -> None:
        """Retry at the next survey what failed, without the usual pause. Default: there is no pause."""
        return

    def close(self) -> None:
        """End the steps and connections that were started. Default: there are none."""
        return

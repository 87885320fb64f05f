"""The interface of a source of snapshots: its request and its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from ...slurm.records import QueuedJob
from ..snapshot import Snapshot, SourceName


class Asked(Struct, frozen=True, kw_only=True):
    """A request: which nodes, and for whom."""

    nodes: tuple[str, ...]
    addresses: Mapping[str, str] = {}
    """Node -> where it is reached, of those that are not under their name."""
    jobs: tuple[QueuedJob, ...] = ()
    """Slurm's, that run on these nodes and that the caller may look into."""
    user: str = ""
    """User whose load is wanted; empty: all users' (operators)."""
    details: bool = True
    """False: a line per node is enough, and a source may leave out processes, jobs and users, and give the GPUs as
    `gpu_sums`: with thousands of nodes that is what it costs."""


class Answer(Struct, frozen=True, kw_only=True):
    """An answer: every node of the request is either in `snapshots` or in `silent`."""

    snapshots: Mapping[str, Snapshot]
    silent: Mapping[str, str]
    """Node -> why there is nothing of it, in a few words."""
    notes: Sequence[str] = ()
    """Sentences for the viewer, such as what to do about nodes that are silent."""


class Source(Protocol):
    """A way to the snapshots of nodes. Made once, asked many times, closed at the end; never raises for a node that is
    silent, SlurmShareError where nothing can be had from anybody."""

    name: SourceName

    def get_ready(self, all_lines: bool, timeout_s: float) -> None:
        """Start what needs no names of nodes; called once, while Slurm is asked for these. `all_lines`: it will be
        all nodes that there are, for everybody and without details. Raises nothing, and waits for nobody."""
        ...

    def read(self, asked: Asked, timeout_s: float) -> Answer:
        """Return the newest snapshots, after at most `timeout_s`."""
        ...

    def ask_again(self) -> None:
        """Try again at the next survey what failed and would otherwise be left alone for a while."""
        ...

    def close(self) -> None:
        """End what was started: steps, connections."""
        ...

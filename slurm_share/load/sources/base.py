"""What every source of snapshots is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from ...slurm.records import QueuedJob
from ..snapshot import Snapshot, SourceName


class Asked(Struct, frozen=True, kw_only=True):
    """Which nodes, and for whom."""

    nodes: tuple[str, ...]
    addresses: Mapping[str, str] = {}
    """Node -> where it is reached, of those that are not under their name."""
    jobs: tuple[QueuedJob, ...] = ()
    """Slurm's, that run on these nodes and that the caller may look into."""
    user: str = ""
    """Whose load is wanted; empty: everybody's (operators)."""
    details: bool = True
    """False: a line per node is enough, and a source may leave out processes, jobs and users, and give the GPUs as
    `gpu_sums`: with thousands of nodes that is what it costs."""


class Answer(Struct, frozen=True, kw_only=True):
    """What came back in time: every node that was asked for is in one of the two."""

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
        """Begin with what needs no names of nodes; called once, while Slurm is asked for these. `all_lines`: it will be
        all nodes that there are, for everybody and without details. Raises nothing, and waits for nobody."""
        ...

    def read(self, asked: Asked, timeout_s: float) -> Answer:
        """The newest snapshots, after at most `timeout_s`. A long-lived source answers what has come since."""
        ...

    def ask_again(self) -> None:
        """Somebody wants to know now: what failed, and is left alone for a while, is tried again at the next survey."""
        ...

    def close(self) -> None:
        """End what was started for it: steps, connections."""
        ...

"""SIMULATED GPUs, the driver's limits of the device memory of a cgroup, as a CUDA process meets them (memory_limits.c).

Only a process under a driver that has them pays for this import. Hard limits hold for every process, with or without
MPS: dmem's for all below their cgroup, misc's for the processes of that very cgroup. Soft limits are guarantees: where
the card has no room for a process within its own, the driver ends MPS clients of cgroups that are above theirs. Not
known from a real driver: which of these it ends first; here it is the one whose cgroup is furthest above.
"""

# ruff: noqa: PTH116, PTH120  (pathlib would take as long to import as all the rest of a task)
from __future__ import annotations

import os

from simdriver import DMEM
from simgpu import used_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from simgpu import Client

UNLIMITED = 2**64 - 1
MOST_CGROUPS = 16
CGROUP2 = "cgroup2"


class Limit:
    """The limits of one cgroup, in bytes."""

    __slots__ = ("cgroup", "hard", "soft")

    def __init__(self, cgroup: int, soft: int, hard: int) -> None:
        self.cgroup = cgroup
        self.soft = soft
        self.hard = hard


def own_cgroups() -> tuple[int, ...]:
    """Return the inode numbers of this process's cgroup of v2 and of those above it, the root of all left out;
    empty: it has none, or none that it can see."""
    with open("/proc/self/cgroup") as file:
        own = next((line[3:].rstrip("\n") for line in file if line.startswith("0::/")), None)
    with open("/proc/self/mounts") as file:
        mounted = next((words[1] for line in file if (words := line.split(" "))[2] == CGROUP2), None)
    if own is None or mounted is None:
        return ()
    path, found = mounted + own.rstrip("/"), []
    while len(path) >= len(mounted) and len(found) < MOST_CGROUPS:
        try:
            os.stat(f"{path}/cgroup.type")  # the root of all has none; that of a namespace is no such root
        except OSError:
            break
        found.append(os.stat(path).st_ino)
        path = os.path.dirname(path)
    return tuple(found)


class MemoryLimits:
    """The limits that concern this process on one GPU."""

    def __init__(self, state: str, gpu_index: int, back_end: str) -> None:
        self._prefix = f"{state}/memory_limits/{gpu_index}."
        self.nests = back_end == DMEM
        self.cgroups = own_cgroups()

    def refresh(self) -> None:
        """Read again in which cgroups this process is."""
        self.cgroups = own_cgroups()

    def read(self, cgroup: int) -> Limit:
        try:
            with open(f"{self._prefix}{cgroup}") as file:
                words = dict(word.split("=", 1) for word in file.read().split(" ", 2) if "=" in word)
            return Limit(cgroup, int(words["soft"]), int(words["hard"]))
        except (OSError, ValueError, KeyError):
            return Limit(cgroup, 0, UNLIMITED)

    def own(self) -> Limit | None:
        """Return the limits of this process's own cgroup; None: it has no cgroup of v2."""
        return self.read(self.cgroups[0]) if self.cgroups else None

    def hard(self) -> list[Limit]:
        """Return the hard limits that hold for this process, its own cgroup's first."""
        which = self.cgroups if self.nests else self.cgroups[:1]
        return [limit for limit in map(self.read, which) if limit.hard != UNLIMITED]

    def total(self, card_bytes: int) -> int:
        """Return the total memory that this process sees: its own cgroup's limit, but none that stands above."""
        own = self.own()
        return card_bytes if own is None else min(card_bytes, own.hard)

    def to_end(self, asked: int, used: int, others: Sequence[Client], room: int) -> list[Client]:
        """Return the MPS clients that the driver ends so that this process gets `asked` bytes more than the `room` that
        there is; empty: none, and it is out of memory.

        `used` is what this process holds. It gets nothing above its own guaranteed part, and nothing from clients whose
        cgroup is within its own.
        """
        own = self.own()
        if own is None or used_in(own.cgroup, others, nests=self.nests) + used + asked > own.soft:
            return []
        left = {client.pid: client for client in others}
        ended: list[Client] = []
        while room < asked:
            victim = self._furthest_above(left.values())
            if victim is None:
                return []
            room += left.pop(victim.pid).used_bytes
            ended.append(victim)
        return ended

    def _furthest_above(self, clients: Iterable[Client]) -> Client | None:
        clients = list(clients)

        def above(client: Client) -> int:
            cgroup = client.cgroups[0] if client.cgroups else 0
            return used_in(cgroup, clients, nests=self.nests) - self.read(cgroup).soft

        found = [one for one in clients if one.mps_server and one.used_bytes and one.cgroups and above(one) > 0]
        return max(found, key=lambda one: (above(one), one.used_bytes, -one.pid), default=None)

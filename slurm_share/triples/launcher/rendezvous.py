"""Start and control the rendezvous process of a node, from the launcher of a run of ranks (`llsub --spmd`).

The process is `slurm_share.spmd.rendezvous`. It is started before the ranks, in a session of its own. It ends by itself
when the ranks of its node have ended (on node 0: the ranks of all nodes), and at once when its standard input, which
only the loop holds, is closed.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from ...core import nodelist, numbers
from ...core.errors import CommandError, LaunchError, UsageError, shown
from ...core.process import Deadline, Stream, stream
from ...core.settings import Messages
from ...packing import RankWait
from ...spmd import checks, key_folder, names, wire
from ...spmd.errors import SpmdError, TransportError
from ...spmd.rules import ends
from .. import run_folder
from ..records import Run
from .node import Node

MODULE = "slurm_share.spmd.rendezvous"
READY_S = 30.0
"""Seconds for the process to start and listen, also on a busy node."""
KEY_S = 90.0
"""Seconds to wait for the key that node 0 makes at a later start: a network file system may show it late."""
KEY_PAUSE_S = 0.2
"""Seconds between two attempts to find the key."""
_SIOCGIFADDR = 0x8915
"""The ioctl for the IPv4 address of an interface (netdevice(7))."""


class RendezvousClient:
    """The launcher's end of the pipes to the process. Only `setup` and `close` wait."""

    def __init__(self, node: Node, process: Stream, say: Callable[[str], None]) -> None:
        self._node = node
        self._process = process
        self._say = say
        self._told: set[int] = set()
        self.ready: wire.Ready | None = None
        self.ending: wire.RunEnding | None = None
        """Why the run has to end; None: it goes on."""
        self.waits: dict[int, RankWait] = {}
        """Rank -> its wait, for ranks of this node that wait for messages."""
        self.has_lost_node = False
        """Whether a node of the run does not answer any more."""

    @property
    def is_alive(self) -> bool:
        """Return whether the outputs of the process were open at the last `read`."""
        return bool(self._process.files)

    @property
    def last_line(self) -> str:
        """Return the last line that the process wrote to standard error."""
        return shown(self._process.said.strip().rpartition("\n")[2], 300)

    def setup(self, setup: wire.Setup) -> wire.Ready:
        """Send the setup, and wait until the process accepts connections. Raises LaunchError."""
        self._process.say(wire.encode(setup))
        deadline = Deadline.after(READY_S)
        while self.ready is None and self.is_alive and deadline.left() > 0:
            poll = select.poll()
            for file in self._process.files:
                poll.register(file, select.POLLIN)
            poll.poll(deadline.left() * 1000)
            self.read()
        if self.ready is None:
            why = self.last_line or ("it ended" if not self.is_alive else f"it was not ready within {READY_S:g} s")
            self._process.kill()
            self._process.stop(Deadline.after(1.0))
            raise LaunchError(f"{self._node.name} cannot start the rendezvous process of its ranks: {why}")
        return self.ready

    def read(self) -> None:
        """Process all messages that have arrived, without waiting."""
        if not self.is_alive:
            return
        for line in self._process.take_lines():
            try:
                message = wire.decode(line)
            except TransportError as error:
                self._say(f"{self._node.name}: {error}")
                continue
            if isinstance(message, wire.Ready):
                self.ready = message
            elif isinstance(message, wire.RunEnding):
                self.ending = self.ending or message
            elif isinstance(message, wire.RankWaits):
                self.waits.pop(message.rank, None)
                if message.what:
                    since = round(time.time() - message.since_s, 3)
                    self.waits[message.rank] = RankWait(message.rank, message.what, since)
            elif isinstance(message, wire.NodeLoss):
                self.has_lost_node = True
            elif isinstance(message, wire.Note):
                self._say(f"{self._node.name}: {shown(message.text, 300)}")

    def sorted_waits(self) -> tuple[RankWait, ...]:
        """Return the ranks of this node that wait for messages."""
        return tuple(sorted(self.waits.values(), key=lambda one: one.rank))

    def tell_ended(self, rank: int, code: int | None, number: int | None, why: str) -> None:
        """Report the end of a rank of this node, once. `why`: a clause that follows "rank 5 on n2 "."""
        if rank not in self._told:
            self._told.add(rank)
            self.waits.pop(rank, None)
            self._process.say(wire.encode(wire.RankEnded(rank, self._node.name, code, number, why)))

    def was_told(self, rank: int) -> bool:
        return rank in self._told

    def close(self, patience_s: float) -> None:
        """End the process, by SIGKILL after `patience_s`."""
        self._process.stop(Deadline.after(patience_s))


def start(
    run: Run, node: Node, environ: Mapping[str, str], settings: Messages, say: Callable[[str], None]
) -> tuple[RendezvousClient, Node]:
    """Start the process for the ranks of this node; return it, and the node with its addresses. Raises LaunchError.

    Call it while the loop's signals are blocked, so that the process survives a signal to the whole step.
    """
    setup = setup_of(run, node, environ, settings)
    if node.rendezvous_folder is not None:
        _wait_for_key(node)
    argv = [sys.executable, "-I", "-X", "utf8", "-m", MODULE]
    try:
        process = stream(argv, line_most=names.CONTROL_BYTES)
    except CommandError as error:
        raise LaunchError(f"{node.name} cannot start a process: {error}") from error
    made = RendezvousClient(node, process, say)
    ready = made.setup(setup)
    ports = f"{setup.ports[0]}-{setup.ports[1]}" if setup.ports and ready.address else ""
    return made, replace(node, rendezvous=ready.name, address=ready.address, ports=ports)


def setup_of(run: Run, node: Node, environ: Mapping[str, str], settings: Messages) -> wire.Setup:
    """Return the setup message for the process.

    Raises LaunchError if the site or Slurm does not allow the run, or LLSUB_START_S is wrong.
    """
    if node.count > 1 and settings.between_nodes == "off":
        raise LaunchError(
            "this site does not allow messages between nodes (messages.between_nodes); use one node, or mpi4py with "
            "the site's MPI"
        )
    try:
        start_s = checks.start_s(environ)
    except SpmdError as error:
        raise LaunchError(f"{node.name} cannot start its ranks: {error}") from error
    return wire.Setup(
        run=node.job,
        node=node.index,
        nodes=_nodes(run, node, environ),
        folder="" if node.rendezvous_folder is None else str(node.rendezvous_folder),
        interface=_address_of(settings.interface) if settings.interface and node.count > 1 else "",
        ports=ports_of(settings, environ),
        keep_going=run.keep_going,
        start_s=start_s,
    )


def _nodes(run: Run, node: Node, environ: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """Return (name, number of ranks) of every node of the run."""
    if node.count == 1:
        return ((node.name, len(node.workers)),)
    assert run.triple is not None
    text = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    try:
        found = nodelist.unfold(text)
    except UsageError as error:
        raise LaunchError(f"Slurm does not say which nodes the run has: {error}") from error
    if len(found) != node.count or found[node.index] != node.name:
        raise LaunchError(
            f"{node.name} is node {node.index} of {node.count}, but Slurm's list of the step's nodes differs: "
            f"{shown(text)}"
        )
    return tuple((name, run.triple.per_node) for name in found)


def _wait_for_key(node: Node) -> None:
    """Wait for the folder with the key, and check it; node 0 makes that of a later start. Raises LaunchError."""
    place = node.rendezvous_folder
    assert place is not None
    is_restarted = place.name != run_folder.KEY_FOLDER
    try:
        if node.index == 0 and is_restarted:
            run_folder.make_key_anew(place)
        deadline = Deadline.after(KEY_S if is_restarted else 0)
        while place.name not in os.listdir(place.parent) and deadline.left() > 0:  # noqa: PTH208  # refreshes NFS
            time.sleep(KEY_PAUSE_S)
        key_folder.read_key(str(place))
    except (OSError, SpmdError, UsageError) as error:
        raise LaunchError(f"{node.name} cannot use the key of the run: {error}") from error


def _address_of(interface: str) -> str:
    """Return the IPv4 address of a network interface. Raises LaunchError if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            found = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError as error:
            raise LaunchError(
                f"the network interface {interface} (messages.interface) has no address here: {error.strerror}"
            ) from error
    return socket.inet_ntoa(found[20:24])


def ports_of(settings: Messages, environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the first and last port for ranks: from the settings, else as reserved by Slurm; None: any port."""
    begin, _, end = (settings.ports or environ.get("SLURM_STEP_RESV_PORTS", "")).partition(",")[0].partition("-")
    first, last = numbers.whole(begin, 65535), numbers.whole(end or begin, 65535)
    return None if first is None or last is None else (first, last)


def clause(code: int | None, number: int | None, outcome: str) -> str:
    """Return how a rank ended, as a clause that follows "rank 5 on n2 "."""
    cause = {"host memory": "out of host memory", "gpu memory": "out of GPU memory"}.get(outcome, "")
    if code is None and number is None:
        return "could not be started"
    if outcome == "host memory" and number is None:
        number = signal.SIGKILL
    return ends.reason(code, number, cause)

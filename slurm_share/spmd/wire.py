"""Messages to and from a node's rendezvous process: records and JSON lines. Standard library only.

A rank connects to the abstract Unix socket that LLSUB_RENDEZVOUS names. Each end asks the kernel for the other's uid.

A rank sends Hello, Waiting, Working, Bye, Aborted and Mismatch. The rendezvous process sends Welcome when all ranks of
all nodes have sent Hello, then Ended, Lost, Stuck, Mismatch and Aborted. Instead of Welcome it can send Refused or
Missing. Ended, Lost and Aborted also come before Welcome if the run can no longer begin. Ended of one rank can come
twice: when the rank has finished with messages, and when its process has ended with a code.

The parent (the launcher, or `local`) sends Setup, then Ended for each rank of the node. The rendezvous process sends
its parent Ready, then RankWaits, Ending and Note. Nodes exchange Joined, Beat, Ask, Answer and Left, and all messages
of the ranks.
"""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import Any, ClassVar, Self, dataclass_transform

from .errors import TransportError
from .names import CONTROL_BYTES, HEARTBEAT_S, LOST_S, START_S, VERSION
from .transport import NodePlace


@dataclass_transform(frozen_default=True)
class Record:
    """A frozen value whose fields are the annotated names of its class, in that order. A subclass has no subclasses.

    `dataclasses` would compile functions for each of the two dozen classes: 0.4 ms per class at the start of each rank.
    """

    fields: ClassVar[dict[str, str]] = {}
    """Annotation of each field, by name."""

    def __init_subclass__(cls) -> None:
        cls.fields = dict(cls.__annotations__)

    def __init__(self, *values: Any, **named: Any) -> None:
        names = self.fields
        given = dict(zip(names, values, strict=False))
        if len(values) > len(names) or not named.keys() <= names.keys() - given.keys():
            raise TypeError(f"{type(self).__name__} has the fields {', '.join(names)}, each is given once")
        given |= named
        for name in names:
            if name not in given and not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} needs a value for {name}")
        vars(self).update((name, given[name] if name in given else getattr(type(self), name)) for name in names)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed: {name}")

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def changed(self, **named: Any) -> Self:
        """Return a copy in which some fields have other values."""
        return type(self)(**{**vars(self), **named})


class Hello(Record):
    """The first message of a rank."""

    rank: int
    pid: int
    port: int
    """TCP port on which it accepts connections from ranks of other nodes; 0: the run has one node."""
    version: int = VERSION


class RankWaiting(Record):
    """Report of a call that has waited for WAITING_S, repeated when `sent` or `taken` changes.

    Only calls that nothing but a message of another rank can continue are reported, so none with a time limit.
    """

    call: str
    context: int
    source: int | None
    """None: any source."""
    tag: int | str | None
    since_s: float
    """Seconds for which the call has waited."""
    sent: int
    """Number of messages that this rank has sent to other ranks."""
    taken: int
    """Number of messages that have arrived from other ranks."""
    threads: int = 0
    """Number of other threads of the rank that could still send a message."""
    where: str = ""
    """The communicator with its ranks (`transport.name_of`); empty: that of all ranks."""


class RankWorking(Record):
    """End of the reported wait."""


class Bye(Record):
    """Orderly end of a rank."""

    untaken: int
    """Number of its messages that receivers never took."""
    sent: int = 0
    taken: int = 0
    """As in Waiting, at the end of the rank. The deadlock check needs them to balance all counts."""


class Welcome(Record):
    """Start of the run: all ranks have sent Hello."""

    size: int
    nodes: tuple[NodePlace, ...]
    ports: tuple[int, ...]
    """The TCP port of each rank."""
    sockets: str
    """Prefix of the abstract names of the Unix sockets of this node's ranks; the rank's number follows."""
    key: str
    """Hex of the run's secret; empty in a run of one node."""
    run: str
    """Name of the run in handshakes between nodes."""
    version: int = VERSION


class RankEnded(Record):
    """End of a rank; code 0 without a signal is an orderly end.

    Neither code nor signal: the rank ended with 0 but never sent the Hello for which others wait.
    """

    rank: int
    node: str
    code: int | None
    signal: int | None
    why: str
    """Clause that continues "rank 5 on n2 ", such as "was killed (out of host memory)"."""


class NodeLoss(Record):
    """Loss of a node that no longer answers."""

    node: str
    ranks: tuple[int, ...]


class RanksStuck(Record):
    """Deadlock: all ranks wait and no message is in transit."""

    waits: tuple[tuple[int, str], ...]


class CallMismatch(Record):
    """Two ranks that make different collective calls under the same number.

    Found when all ranks wait, or reported by a rank that ends after a message of a call that it had finished.
    """

    number: int
    here: tuple[int, str]
    """A rank and its call."""
    there: tuple[int, str]
    where: str = ""
    """As in RankWaiting."""


class RanksMissing(Record):
    """Sent instead of Welcome: these ranks have not sent Hello in time."""

    ranks: tuple[int, ...]
    after_s: float


class RunAborted(Record):
    """End of the run because a rank called abort()."""

    rank: int
    code: int
    why: str


class RankRefused(Record):
    """Sent instead of Welcome: this rank cannot take part."""

    why: str


class Setup(Record):
    """First line from the parent: the settings of a node's rendezvous process."""

    run: str
    """Name of the run in handshakes, in texts and in the folder: "<job>.<restart>"."""
    node: int
    """Number of this node; node 0 coordinates the run."""
    nodes: tuple[tuple[str, int], ...]
    """Name and number of ranks of each node; ranks are numbered in the order of nodes."""
    folder: str = ""
    """Folder with the run's key, made by `key_folder.make_folder`; empty in a run of one node."""
    interface: str = ""
    """Address or host name to listen on; empty: the address of this node's name."""
    ports: tuple[int, int] | None = None
    """First and last TCP port on which node 0 may listen; None: any port."""
    keep_going: bool = False
    """True: the failure of a rank does not end the run; the other ranks are told of it."""
    start_s: float = START_S
    lost_s: float = LOST_S
    heartbeat_s: float = HEARTBEAT_S


class Ready(Record):
    """Sign that the rendezvous process accepts connections, so that ranks can be started."""

    name: str
    """Value of LLSUB_RENDEZVOUS."""
    address: str
    """Value of LLSUB_ADDRESS; empty in a run of one node."""


class RankWaits(Record):
    """Text about what a rank of this node waits for."""

    rank: int
    what: str
    """Continues "rank 5 waits ", such as "in recv for (3, 'x')"; empty: the wait is over."""
    since_s: float


class RunEnding(Record):
    """End of the run. All ranks know of it; after a grace time the parent ends the remaining ones."""

    code: int
    """Exit code of the run."""
    why: str
    """Sentence without full stop: "rank 5 on n2 was killed (out of host memory); the other 95 were ended"."""
    ranks: tuple[int, ...] = ()
    """Ranks that are the reason."""


class Note(Record):
    """Line for the node's log, such as about a refused connection."""

    text: str


class NodeJoined(Record):
    """First message of a node to node 0, after the handshake: the node takes part."""

    address: str


class Heartbeat(Record):
    """Heartbeat between rendezvous processes."""


class DrainQuestion(Record):
    """Question of node 0: a node answers it after it has passed on all messages of its ranks."""

    number: int


class DrainAnswer(Record):
    """Answer to Ask: the node has passed on all messages that its ranks sent before it read the question."""

    number: int


class NodeLeft(Record):
    """Last message of a node: all its ranks have ended, and its rendezvous process ends now."""


_KINDS: dict[str, type[Record]] = {kind.__name__: kind for kind in Record.__subclasses__()}


def encode(message: Record) -> bytes:
    """Return the message as one line."""
    values = {"kind": type(message).__name__, **vars(message)}
    # A NodePlace is written without field names, so that 1,024 nodes fit into a line.
    return json.dumps(values, separators=(",", ":"), default=astuple).encode() + b"\n"


def decode(line: bytes) -> Record:
    """Return the message of a line. Raises TransportError if the line is no message of a known kind."""
    try:
        if len(line) > CONTROL_BYTES:
            raise ValueError("too long")
        data = json.loads(line)
        kind = _KINDS[data.pop("kind")]
        fields = kind.fields.items()
        values = {name: _checked(annotation, _frozen(data[name])) for name, annotation in fields if name in data}
        if kind is Welcome:
            values["nodes"] = tuple(NodePlace(*place) for place in values["nodes"])
        return kind(**values)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise TransportError(f"a message of the rendezvous process cannot be read: {line[:80]!r}") from error


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _checked(annotation: Any, value: Any) -> Any:
    """Return the value of a field. Raises TypeError for a wrong type; the elements of a tuple are not checked."""
    names = {name.partition("[")[0] for name in str(annotation).split(" | ")}
    if (
        type(value).__name__ in names
        or (value is None and "None" in names)
        or (type(value) is int and "float" in names)
    ):
        return value
    raise TypeError(f"{value!r} is not {annotation}")

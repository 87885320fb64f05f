"""Messages to and from a node's rendezvous process: records and JSON lines. Standard library only.

A rank connects to the abstract Unix socket that LLSUB_RENDEZVOUS names; each end asks the kernel for the other's uid.

A rank sends Hello, Waiting, Working, Bye, Abort and Mismatch. The rendezvous process sends Welcome once all ranks of
all nodes have said hello, then Ended, Lost, Stuck, Mismatch and Aborted; instead of Welcome, Refused or Missing. Ended,
Lost and Aborted may come before Welcome too, where the run cannot begin any more. A rank may be told of its end twice:
that it has finished with messages, and later that it ended with a code.

Its parent (the launcher, `local`) sends it Setup, then Ended of each rank of the node. It sends its parent Ready, then
RankWaits, Ending and Note. Between nodes go Joined, Beat, Ask, Answer and Left, and all of the ranks' messages.
"""

from __future__ import annotations

import json
from typing import Any, get_args

from .errors import TransportError
from .names import CONTROL_BYTES, HEARTBEAT_S, LOST_S, START_S, VERSION
from .records import Record


class Hello(Record):
    """The first message of a rank."""

    rank: int
    pid: int
    port: int
    """TCP port on which it takes connections of other nodes' ranks; 0: the run has one node."""
    version: int = VERSION


class Waiting(Record):
    """A call has waited for WAITING_S. Said again when `sent` or `taken` has changed since.

    Said only where nothing but a message of another rank lets the call go on: not in one with a time limit.
    """

    call: str
    context: int
    source: int | None
    """None: any."""
    tag: int | str | None
    since_s: float
    """How long it has waited."""
    sent: int
    """Messages that this rank ever sent to other ranks."""
    taken: int
    """Messages of other ranks that ever came."""


class Working(Record):
    """The call that waited has gone on."""


class Bye(Record):
    """The rank ends in good order."""

    untaken: int
    """Messages that receivers never took from it."""
    sent: int = 0
    taken: int = 0
    """As in Waiting, at its end: without them the messages of the others would not add up."""


class Abort(Record):
    """The rank called abort()."""

    code: int
    why: str


class Place(Record):
    """One node of the run."""

    name: str
    first: int
    count: int
    address: str
    """For TCP; empty in a run of one node."""


class Welcome(Record):
    """All ranks are there."""

    size: int
    nodes: tuple[Place, ...]
    ports: tuple[int, ...]
    """The TCP port of each rank."""
    sockets: str
    """Abstract name of a rank's own Unix socket on this node, with its number behind it."""
    key: str
    """Hex of the run's secret; empty in a run of one node."""
    run: str
    """Names the run in handshakes between nodes."""
    version: int = VERSION


class Ended(Record):
    """A rank has ended; with code 0 and no signal, in good order.

    With neither code nor signal it ended with 0, but without a hello that others wait for.
    """

    rank: int
    node: str
    code: int | None
    signal: int | None
    why: str
    """A clause behind "rank 5 on n2 ", such as "was killed (out of host memory)"."""


class Lost(Record):
    """A node does not answer any more."""

    node: str
    ranks: tuple[int, ...]


class Stuck(Record):
    """All ranks wait and no message is under way."""

    waits: tuple[tuple[int, str], ...]


class Mismatch(Record):
    """Two ranks are in different collective calls of the same number.

    Found where all ranks wait, or told by a rank that ends and has got a message of a call that it has finished.
    """

    number: int
    here: tuple[int, str]
    """A rank and its call."""
    there: tuple[int, str]


class Missing(Record):
    """Instead of Welcome: not all ranks said hello in time."""

    ranks: tuple[int, ...]
    after_s: float


class Aborted(Record):
    """A rank called abort()."""

    rank: int
    code: int
    why: str


class Refused(Record):
    """Instead of Welcome: this rank cannot take part."""

    why: str


class Setup(Record):
    """The first line from the parent: what the rendezvous process of a node must know."""

    run: str
    """Names the run in proofs, for people and in the folder: "<job>.<restart>"."""
    node: int
    """Number of this node; node 0 decides for the run."""
    nodes: tuple[tuple[str, int], ...]
    """Name and number of ranks of each node; ranks are numbered from node to node."""
    folder: str = ""
    """Folder with the run's key, made by `key_folder.make_folder`; empty in a run of one node."""
    interface: str = ""
    """Address or host name to listen on; empty: that of this node's name."""
    ports: tuple[int, int] | None = None
    """First and last TCP port that node 0 may listen on; None: any."""
    keep_going: bool = False
    """An end with a code does not end the run. The ranks are told of it all the same."""
    start_s: float = START_S
    lost_s: float = LOST_S
    heartbeat_s: float = HEARTBEAT_S


class Ready(Record):
    """The rendezvous process takes connections; ranks can be started."""

    name: str
    """Value of LLSUB_RENDEZVOUS."""
    address: str
    """Value of LLSUB_ADDRESS; empty in a run of one node."""


class RankWaits(Record):
    """What a rank of this node waits for, for people."""

    rank: int
    what: str
    """Such as "in recv for (3, 'x')", behind "rank 5 waits "; empty: it has gone on."""
    since_s: float


class Ending(Record):
    """The run has to end. All ranks have been told; after a grace time the parent ends those that are still there."""

    code: int
    """Exit code of the run."""
    why: str
    """Sentence without its full stop: "rank 5 on n2 was killed (out of host memory); the other 95 were ended"."""
    ranks: tuple[int, ...] = ()
    """Where the reason is."""


class Note(Record):
    """A line for the node's log, such as about a connection that was refused."""

    text: str


class Joined(Record):
    """To node 0, after the proof: a node takes part."""

    address: str


class Beat(Record):
    """The other end is there."""


class Ask(Record):
    """From node 0: answer once you have passed on all that your ranks have said."""

    number: int


class Answer(Record):
    """The node has passed on all that its ranks said before it read the question."""

    number: int


class Left(Record):
    """All ranks of the node have ended, and so does its rendezvous process."""


Control = (
    Hello
    | Waiting
    | Working
    | Bye
    | Abort
    | Welcome
    | Ended
    | Lost
    | Stuck
    | Mismatch
    | Missing
    | Aborted
    | Refused
    | Setup
    | Ready
    | RankWaits
    | Ending
    | Note
    | Joined
    | Beat
    | Ask
    | Answer
    | Left
)
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Control)}


def encode(message: Control) -> bytes:
    """Return the message as one line."""
    values = {"kind": type(message).__name__, **vars(message)}
    if isinstance(message, Welcome):  # a line has room for 1,024 nodes without the names of their fields
        values["nodes"] = [tuple(vars(place).values()) for place in message.nodes]
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Control:
    """Return the message of a line. Raises TransportError where it is none, or of a kind that is not known."""
    try:
        if len(line) > CONTROL_BYTES:
            raise ValueError("too long")
        data = json.loads(line)
        kind = _KINDS[data.pop("kind")]
        values = {}
        for name, annotation in kind.fields.items():
            if name in data:
                values[name] = _checked(annotation, _frozen(data[name]))
        if kind is Welcome:
            values["nodes"] = tuple(Place(*place) for place in data["nodes"])
        made: Control = kind(**values)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise TransportError(f"a message of the rendezvous process cannot be read: {line[:80]!r}") from error
    return made


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _checked(annotation: Any, value: Any) -> Any:
    """Return the value of a field. Raises TypeError where it has another type; what a tuple holds is not looked at."""
    names = {name.partition("[")[0] for name in str(annotation).split(" | ")}
    if (
        type(value).__name__ in names
        or (value is None and "None" in names)
        or (type(value) is int and "float" in names)
    ):
        return value
    raise TypeError(f"{value!r} is not {annotation}")

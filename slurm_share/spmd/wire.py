"""Messages between ranks and their node's rendezvous process: records and JSON lines. Standard library only.

A rank connects to the abstract Unix socket that LLSUB_RENDEZVOUS names; each end asks the kernel for the other's uid.

A rank sends Hello, Waiting, Working, Bye and Abort. The rendezvous process sends Welcome once all ranks of all nodes
have said hello, then Ended, Lost, Stuck, Mismatch and Aborted; instead of Welcome, Refused or Missing.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from .errors import TransportError
from .names import CONTROL_BYTES, VERSION


@dataclass(frozen=True)
class Hello:
    """The first message of a rank."""

    rank: int
    pid: int
    port: int
    """TCP port on which it takes connections of other nodes' ranks; 0: the run has one node."""
    version: int = VERSION


@dataclass(frozen=True)
class Waiting:
    """A call has waited for WAITING_S. Said again when `sent` or `taken` has changed since."""

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


@dataclass(frozen=True)
class Working:
    """The call that waited has gone on."""


@dataclass(frozen=True)
class Bye:
    """The rank ends in good order."""

    untaken: int
    """Messages that receivers never took from it."""


@dataclass(frozen=True)
class Abort:
    """The rank called abort()."""

    code: int
    why: str


@dataclass(frozen=True)
class Place:
    """One node of the run."""

    name: str
    first: int
    count: int
    address: str
    """For TCP; empty in a run of one node."""


@dataclass(frozen=True)
class Welcome:
    """All ranks are there."""

    size: int
    nodes: tuple[Place, ...]
    ports: tuple[int, ...]
    """Of each rank."""
    sockets: str
    """Abstract name of a rank's own Unix socket on this node, with its number behind it."""
    key: str
    """Hex of the run's secret; empty in a run of one node."""
    run: str
    """Names the run in handshakes between nodes."""
    version: int = VERSION


@dataclass(frozen=True)
class Ended:
    """A rank has ended; with code 0 and no signal, in good order."""

    rank: int
    node: str
    code: int | None
    signal: int | None
    why: str
    """A clause behind "rank 5 on n2 ", such as "was killed (out of host memory)"."""


@dataclass(frozen=True)
class Lost:
    """A node does not answer any more."""

    node: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Stuck:
    """All ranks wait and no message is under way."""

    waits: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Mismatch:
    """All ranks wait, and two of them in different collective calls of the same number."""

    number: int
    here: tuple[int, str]
    """A rank and its call."""
    there: tuple[int, str]


@dataclass(frozen=True)
class Missing:
    """Instead of Welcome: not all ranks said hello in time."""

    ranks: tuple[int, ...]
    after_s: float


@dataclass(frozen=True)
class Aborted:
    """A rank called abort()."""

    rank: int
    code: int
    why: str


@dataclass(frozen=True)
class Refused:
    """Instead of Welcome: this rank cannot take part."""

    why: str


Control = (
    Hello | Waiting | Working | Bye | Abort | Welcome | Ended | Lost | Stuck | Mismatch | Missing | Aborted | Refused
)
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        Hello,
        Waiting,
        Working,
        Bye,
        Abort,
        Welcome,
        Ended,
        Lost,
        Stuck,
        Mismatch,
        Missing,
        Aborted,
        Refused,
    )
}


def encode(message: Control) -> bytes:
    """Return the message as one line."""
    return json.dumps({"kind": type(message).__name__, **asdict(message)}, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Control:
    """Return the message of a line. Raises TransportError where it is none, or of a kind that is not known."""
    try:
        if len(line) > CONTROL_BYTES:
            raise ValueError("too long")
        data = json.loads(line)
        kind = _KINDS[data.pop("kind")]
        known = {field.name for field in fields(kind)}
        values = {name: _frozen(value) for name, value in data.items() if name in known}
        if kind is Welcome:
            values["nodes"] = tuple(Place(**place) for place in data["nodes"])
        made: Control = kind(**values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TransportError(f"a message of the rendezvous process cannot be read: {line[:80]!r}") from error
    return made


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value

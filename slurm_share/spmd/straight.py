"""The common case of sending and receiving a small message in a node: from the call to the ring in few statements.

`Straight` does what `Comm` and `sockets.SocketTransport` do for any message, if there is nothing else to do: the
receiver is awake and its ring has room; the message is the first in the ring and the wanted one. Otherwise it does
nothing and says so, and the general path follows, which also refuses wrong arguments. With two ranks on two cores
these statements are most of the time of a small message.

While the main thread holds the lock, handlers of signals wait (`interrupts`). One that raises an exception when they
run puts the received message back.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from . import codec
from .bodies import Received
from .channels import Incoming, Outgoing
from .constants import ANY_TAG
from .envelope import ARRAY, NOTHING, PICKLE5, RAW, Envelope, Tag
from .interrupts import GATE
from .names import TAG_BYTES
from .rings import AWAKE, DATA_AT, FRAME, FRAME_BYTES, HEAD, MASK, RING_BODY_BYTES, SELDOM, TAIL
from .waits import SOMETIMES_S

if TYPE_CHECKING:
    from .interrupts import TransportLock
    from .peers import Peers
    from .rules.ends import Ends
    from .transport import Queues
    from .waits import Waits

_WITHOUT_BUFFERS = frozenset((int, float, str, bool, complex, type(None)))
_MOST_METAS = 256
_SHORT = TAG_BYTES // 4
"""A text of as many characters is a tag, whatever they are."""
_dumps, _loads, _ident = pickle.dumps, pickle.loads, threading.get_ident
_unpack_from = FRAME.unpack_from
_view: Any = memoryview
_Taken = tuple[tuple[Tag, int, bytes], Any, int]
"""Tag, form and meta of a message; its body; its number in the order of arrival."""


class _Rings(Protocol):
    """The part of `sockets.SocketTransport` that `Straight` uses. A protocol, because that module imports this one."""

    sent: int

    @property
    def parts(self) -> tuple[Peers, Ends, Queues, Waits]: ...

    @property
    def lock(self) -> TransportLock: ...

    def put_back(self, message: Received) -> None: ...


class Straight:
    """The straight path of one communicator's messages."""

    __slots__ = ("_context", "_ends", "_lock", "_main", "_metas", "_peers", "_queues", "_transport", "_waits")

    def __init__(self, transport: _Rings, context: int) -> None:
        self._transport, self._context = transport, context
        self._peers, self._ends, self._queues, self._waits = transport.parts
        self._lock = transport.lock.lock
        self._main = threading.main_thread().ident
        self._metas: dict[tuple[np.dtype[Any], tuple[int, ...]], bytes] = {}
        """The meta of contiguous arrays in C order, by dtype and shape."""

    def send(self, value: Any, dest: Any, tag: Any) -> bool:
        """Send an object, and return whether that was possible here."""
        channel = self._peers.ringed.get(dest) if type(dest) is int else None
        if channel is None:
            return False
        kind = type(value)
        if kind in _WITHOUT_BUFFERS:
            data = _dumps(value, 5)
        elif kind is tuple or kind is list or kind is dict:
            buffers: list[Any] = []
            data = _dumps(value, protocol=5, buffer_callback=buffers.append)
            if buffers:
                try:
                    views = [buffer.raw() for buffer in buffers]
                except BufferError:
                    return False
                parts = (data, *views)
                size = sum(map(len, parts))
                return self._write(channel, tag, PICKLE5, codec.lengths_of(parts), parts, size)
        else:
            return kind is np.ndarray and self.send_array(value, dest, tag)
        return self._write(channel, tag, PICKLE5, b"", (data,), len(data))

    def send_array(self, array: Any, dest: Any, tag: Any) -> bool:
        """Send an array that is contiguous in C order, and return whether that was possible here."""
        channel = self._peers.ringed.get(dest) if type(dest) is int else None
        if channel is None or type(array) is not np.ndarray:
            return False
        meta = self._metas.get((array.dtype, array.shape)) or self._meta_of(array)
        try:
            body = _view(array)
        except ValueError:  # dates have no buffer
            return False
        return meta is not None and body.c_contiguous and self._write(channel, tag, ARRAY, meta, (body,), body.nbytes)

    def recv(self, source: Any, tag: Any) -> Any:
        """Return the object of the first message; NOTHING: it was not possible here. Waits as long as a rank spins."""
        incoming = self._peers.ringing.get(source) if type(source) is int else None
        if incoming is None:
            return NOTHING
        taken = None
        shuts = _ident() == self._main and not GATE.is_shut
        if shuts:
            GATE.is_shut = True
        try:
            taken = self._take(incoming, tag, None, None)
            if taken is None:
                value = NOTHING
            else:
                (_tag, form, meta), value, _arrival = taken
                if form != RAW:
                    is_plain = form == PICKLE5 and not meta
                    value = _loads(value) if is_plain else codec.decode(form, meta, memoryview(value))
            if shuts:
                GATE.is_shut = False
                if GATE.delayed:
                    GATE.is_shut = True
                    GATE.let_through()
            return value
        except BaseException as error:
            self._failed(incoming, taken, error, shuts)
            raise

    def recv_array(self, room: Any, source: Any, tag: Any) -> bool:
        """Copy the array of the first message, if it has the same dtype and shape, into `room`; return whether it is.

        Waits as long as a rank spins.
        """
        incoming = self._peers.ringing.get(source) if type(source) is int else None
        if incoming is None or type(room) is not np.ndarray or not room.nbytes:
            return False
        meta = self._metas.get((room.dtype, room.shape)) or self._meta_of(room)
        if meta is None:
            return False
        try:
            view = _view(room).cast("B")
        except (ValueError, TypeError):  # dates have no buffer; an array with gaps
            return False
        if view.readonly:
            return False
        taken = None
        shuts = _ident() == self._main and not GATE.is_shut
        if shuts:
            GATE.is_shut = True
        try:
            taken = self._take(incoming, tag, meta, view)
            if shuts:
                GATE.is_shut = False
                if GATE.delayed:
                    GATE.is_shut = True
                    GATE.let_through()
            return taken is not None
        except BaseException as error:
            self._failed(incoming, taken, error, shuts)
            raise

    def _write(self, channel: Outgoing, tag: Any, form: int, meta: bytes, parts: Sequence[Any], size: int) -> bool:
        ring = channel.ring
        if ring is None or size > RING_BODY_BYTES or not (type(tag) is int or type(tag) is str):
            return False
        description = ring.descriptions.get((tag, form, meta))
        if description is None:
            # Tags that need no further check: pPython's programs have a new one for each message.
            is_tag = 0 < len(tag) <= _SHORT if isinstance(tag, str) else 0 <= tag < 1 << 63
            if not is_tag or len(meta) > RING_BODY_BYTES:
                return False
            description = ring.describe(tag, form, meta)
        words = ring.words
        shuts = _ident() == self._main and not GATE.is_shut
        if shuts:
            GATE.is_shut = True
        try:
            with self._lock:
                if (
                    channel.backlog
                    or channel.broken is not None
                    or self._ends.is_disturbed
                    or self._peers.to_free
                    or monotonic() - self._waits.handled_at > SOMETIMES_S
                ):
                    return False
                sequence = channel.sequence
                head = ring.put(sequence, self._context, description, parts, size)
                if not head:
                    return False
                self._transport.sent += 1
                channel.sequence = sequence + 1
                words[HEAD] = head
            if not words[AWAKE]:  # after the lock, which is a memory barrier
                with self._lock:
                    channel.wake_reader()
            return True
        finally:
            if shuts:
                GATE.is_shut = False
                if GATE.delayed:
                    GATE.run_delayed()

    def _take(self, incoming: Incoming, tag: Any, wanted: bytes | None, room: memoryview | None) -> _Taken | None:
        """Return the first message with its number of arrival; None: it is not there, or not the wanted one.

        With `room` the body is copied there if it is an array with the meta `wanted`.
        """
        with self._lock:
            ring, sequence, queues = incoming.ring, incoming.sequence, self._queues
            if (
                ring is None
                or self._context in queues.by_context
                or self._waits.is_polling
                or incoming.body is not None
                or self._ends.is_disturbed
                or self._peers.to_free
                or not sequence & SELDOM
            ):
                return None
            words = ring.words
            if not words[AWAKE]:
                self._peers.expect(incoming)
            tail = words[TAIL]
            if words[HEAD] == tail and not self._waits.spin_for(words, tail):
                return None
            place = DATA_AT + FRAME_BYTES + (tail & MASK)
            number, context, length, size = _unpack_from(ring.map, place - FRAME_BYTES)
            at = place + length
            if not length:
                return None
            plain = ring.plain(ring.map[place:at])
            if number != sequence or context != self._context or plain is None or plain[1] > PICKLE5:
                return None
            if tag is not None:
                kind = type(tag)
                if (kind is not type(plain[0]) or tag != plain[0]) and not (kind is int and tag == ANY_TAG):
                    return None
            if room is None:
                body = bytearray(ring.view[at : at + size]) if plain[2] else ring.map[at : at + size]
                taken: _Taken = plain, body, queues.taken + 1
            elif plain[2] == wanted and plain[1] == ARRAY:
                room[:] = ring.view[at : at + size]
                taken = plain, room, queues.taken + 1
            else:
                return None
            incoming.sequence = sequence + 1
            queues.taken += 1
            words[TAIL] = tail + ((FRAME_BYTES + length + size + 7) & -8)
        return taken

    def _failed(self, incoming: Incoming, taken: _Taken | None, error: BaseException, shuts: bool) -> None:
        """Put the message back that an interrupted call has taken. No other handler runs before it is there."""
        if shuts:
            GATE.is_shut = True
        try:
            if taken is not None and (error is GATE.raised or not isinstance(error, Exception)):
                self._put_back(incoming, taken)
        finally:
            if shuts:
                GATE.open()

    def _put_back(self, incoming: Incoming, taken: _Taken) -> None:
        (tag, form, meta), body, arrival = taken
        assert incoming.rank is not None
        envelope = Envelope(incoming.rank, self._context, tag, form, len(body), meta)
        message = Received(envelope, [memoryview(bytearray(body))])
        message.arrival = arrival
        self._transport.put_back(message)

    def _meta_of(self, array: Any) -> bytes | None:
        if array.dtype.hasobject or not array.flags.c_contiguous:
            return None
        if len(self._metas) >= _MOST_METAS:
            self._metas.clear()
        meta = self._metas[array.dtype, array.shape] = codec.encode(array)[1]
        return meta

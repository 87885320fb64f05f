"""Transport over sockets: Unix sockets and shared memory in a node, TCP between nodes."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from . import checks, frames, memory, wire
from .bodies import Received, join_buffers, split_buffers
from .channels import Incoming, Outgoing
from .envelope import RAW, Envelope, Tag
from .errors import Aborted, NoRoom, ReceiveTimeout, SpmdError, TransportError, UsageError
from .interrupts import HANDED, TransportLock
from .joining import RankSockets
from .names import ENV_CHECK, ENV_LOCAL_SIZE, INLINE_BYTES, META_BYTES, PIECE_BYTES, WAITING_S
from .peers import Peers, note
from .rings import AWAKE, HEAD, RING_BODY_BYTES, RING_MESSAGES, SELDOM, TAIL
from .rules.ends import Ends
from .segments import Segment, SharedWindow
from .transport import Buffers, Posted, Queues, Transport, Window, communicator_of, wanted_text
from .waits import SOMETIMES_S, Wait, Waits

if TYPE_CHECKING:
    from .straight import Straight

_GROW = 2
"""Limit of segments that one send makes for later sends."""
_GONE_S = 10.0
"""Seconds after a rank has closed its connections in which the rendezvous process should report the reason."""
_END_S = 2.0
"""Seconds for which a failing rank tries to deliver its messages, and a send waits for the end of its receiver."""
_FAILED_S = 0.5
"""Seconds for which the other ranks of a collective call wait for the end of the rank on which it has failed."""
_MOST_PASSES = 100
_MOST_WHY = 1000
"""Limit of the characters of an abort's reason; the rendezvous process reads lines of up to RANK_LINE_BYTES."""


class SocketTransport(Transport):
    """One rank of a run whose messages go over sockets."""

    has_windows = True
    _lock: TransportLock

    def __init__(self, joined: RankSockets, environ: Mapping[str, str]) -> None:
        self.rank, self.size, self.nodes = joined.rank, joined.welcome.size, joined.welcome.nodes
        self._lock = TransportLock()
        self._queues = Queues(self.rank)
        self._ends = Ends(self.rank, self.nodes, self._queues.members)
        self._peers = Peers(joined, self._lock, self._ends, self._queues.put)
        self._refusal = "messages cannot be sent or received any more: the transport is closed"
        self.sent = 0
        self._sent_to_self = 0
        local = int(environ.get(ENV_LOCAL_SIZE, "1"))
        self._limit = checks.send_limit_bytes(environ) or memory.total_bytes() // 4 // max(local, 1)
        may_spin = len(os.sched_getaffinity(0)) >= local
        where = self._queues.where
        self._waits = Waits(self._lock, self._ends, self._peers, self._counts, where, may_spin=may_spin)
        self._checks = environ.get(ENV_CHECK) == "1"
        self._has_rings = not self._checks and self._limit >= RING_BODY_BYTES

    def send(
        self, dest: int, context: int, tag: Tag, form: int, meta: bytes, buffers: Buffers, window: Window | None = None
    ) -> None:
        """Send a message without waiting for the receiver, unless this rank already keeps LLSUB_SEND_LIMIT bytes."""
        ringed = self._peers.ringed.get(dest)
        if ringed is not None and window is None and self._put(ringed, context, tag, form, meta, buffers):
            return
        size = sum(buffer.nbytes for buffer in buffers)
        tag_bytes = frames.tag_to_bytes(tag)
        if len(meta) > META_BYTES - frames.CHECKSUM_BYTES:
            raise UsageError(f"the description of a message has {len(meta)} bytes, at most {META_BYTES} can be sent")
        segment = window.segment if isinstance(window, SharedWindow) else None
        if window is not None and segment is None:
            raise UsageError("this window has been released, or belongs to another transport")
        with self._lock:
            self._check_open()
            if dest == self.rank:
                self._send_to_self(Envelope(dest, context, tag, form, size, meta), buffers, segment)
                return
            self._check_receiver(dest, context)
            if size > self._limit:
                raise NoRoom(f"a message of {size} bytes is more than LLSUB_SEND_LIMIT, {self._limit} bytes")
            try:
                channel = self._peers.to(dest)
                # Before the first frame, because other threads may send during the wait.
                self._wait_for_room(channel, context, size)
                if segment is not None:
                    assert channel.in_node
                    channel.write(frames.WINDOW, body_bytes=segment.size, segment=segment)
                if self._checks:
                    form, meta = form | frames.CHECKED, meta + frames.checksum(buffers)
                # Again, because what made `_put` take this way, such as a segment to free, is done here. Otherwise a
                # body in a segment would be answered by one in a segment, and so on.
                if window is not None or not channel.put(context, tag, form, meta, buffers, size):
                    self._send_body(channel, context, tag_bytes, form, meta, buffers, size)
            except TransportError as error:
                self._raise_broken(dest, context, error)
            self.sent += 1
            if self._has_rings and channel.ring is None:
                self._count_message(channel)
            self._peers.keep_going()
            if self._peers.to_free:
                self._peers.answer_free()
            self._waits.handle_sometimes()
            if self._queues.to_answer:
                self._answer()

    def receive(
        self, source: int | None, context: int, tag: Tag | None, call: str, timeout_s: float | None = None
    ) -> Received:
        incoming = self._peers.ringing.get(source)  # type: ignore[arg-type]
        message: Received | None = None
        if incoming is not None and timeout_s is None:
            message = self._get(incoming, context, tag)
            if message is not None:
                if HANDED.is_wanted:
                    HANDED.message = message
                return message
        try:
            with self._lock:
                self._check_open()
                if self._peers.to_free:
                    self._peers.answer_free()
                message = self._queues.take(source, context, tag)
                has_spun, self._waits.has_spun = self._waits.has_spun, False
                if message is None:
                    wait = Wait(call, context, source, tag, time.monotonic(), timeout_s, spun=has_spun)
                    try:
                        message = self._wait_for(wait)
                    finally:
                        self._waits.finished(wait)
        except BaseException:  # of a delayed handler too
            if message is not None:
                self.put_back(message)
            raise
        if HANDED.is_wanted:
            HANDED.message = message
        return message

    def _put(self, channel: Outgoing, context: int, tag: Tag, form: int, meta: bytes, buffers: Buffers) -> bool:
        """Write a message into the receiver's ring, unless there is anything else to do; return whether that is done.

        An exception at any moment leaves the message whole: sent, or not.
        """
        size = buffers[0].nbytes if len(buffers) == 1 else sum(buffer.nbytes for buffer in buffers)
        ring = channel.ring
        if size > RING_BODY_BYTES or ring is None:
            return False
        words = ring.words
        is_shown = False
        try:
            with self._lock:
                if (
                    channel.backlog
                    or channel.broken is not None
                    or self._ends.is_disturbed
                    or self._peers.to_free
                    or time.monotonic() - self._waits.handled_at > SOMETIMES_S
                ):
                    return False
                sequence = channel.sequence
                head = ring.put(sequence, context, ring.describe(tag, form, meta), buffers, size)
                if not head or channel.ring is None:
                    return False
                is_shown = True
                self.sent += 1
                channel.sequence = sequence + 1
                words[HEAD] = head
        finally:  # after the lock, which is a memory barrier
            if is_shown and not words[AWAKE]:
                with self._lock:
                    channel.wake_reader()
        return True

    def _get(self, incoming: Incoming, context: int, tag: Tag | None) -> Received | None:
        """Return the first message in a ring if it is the wanted one; wait for it as long as a rank may spin.

        An exception at any moment leaves the message where it is, or puts it back.
        """
        message = None
        after = -1
        words = None
        try:
            with self._lock:
                ring = incoming.ring
                queues = self._queues
                waits = self._waits
                if (
                    ring is None
                    or context in queues.by_context
                    or waits.is_polling
                    or incoming.body is not None
                    or self._ends.is_disturbed
                    or self._peers.to_free
                    or not incoming.sequence & SELDOM
                ):
                    return None
                words = ring.words
                if not words[AWAKE]:
                    self._peers.expect(incoming)
                tail = words[TAIL]
                if words[HEAD] == tail and not waits.spin_for(words, tail):
                    return None
                first = ring.first()
                if first is None or first[0] != incoming.sequence or first[1] != context:
                    return None
                plain = ring.plain(first[2])
                if plain is None or (tag is not None and (plain[0] != tag or type(plain[0]) is not type(tag))):
                    return None
                size, after = first[4], first[5]
                envelope = Envelope(incoming.rank, context, plain[0], plain[1], size, plain[2])  # type: ignore[arg-type]
                message = Received(envelope, [ring.body(first[3], size)])
                incoming.sequence += 1
                queues.taken += 1
                message.arrival = queues.taken
                words[TAIL] = after
        except BaseException:
            if message is not None and words is not None and words[TAIL] == after:
                self.put_back(message)
            raise
        return message

    def _count_message(self, channel: Outgoing) -> None:
        channel.messages += 1
        if channel.messages >= RING_MESSAGES:
            channel.messages = 0
            self._peers.make_ring(channel)

    def wait(self, posted: Sequence[Posted], call: str, timeout_s: float | None = None) -> None:
        with self._lock:
            self._check_open()
            if self._peers.to_free:
                self._peers.answer_free()
            if any(one.is_done for one in posted):
                return
            first = posted[0]
            source = first.source if all(one.source == first.source for one in posted) else None
            tag = first.tag if all(one.tag == first.tag for one in posted) else None
            wait = Wait(call, first.context, source, tag, time.monotonic(), timeout_s)
            try:
                self._wait_for_posted(wait, posted)
            finally:
                self._waits.finished(wait)

    def probe(self, source: int | None, context: int, tag: Tag | None) -> Envelope | None:
        """Return the first message of that source and tag without removing it; None: there is none yet.

        Raises RunEnded if none can come.
        """
        with self._lock:
            self._poll()
            found = self._queues.find(source, context, tag)
            if found is None and not self._ends.quiet:
                self._raise_if_over(source, context)
                found = self._queues.find(source, context, tag)
            return found

    def straight(self, context: int) -> Straight:
        from .straight import Straight

        return Straight(self, context)

    @property
    def parts(self) -> tuple[Peers, Ends, Queues, Waits]:
        """The parts of this transport that `Straight` uses."""
        return self._peers, self._ends, self._queues, self._waits

    @property
    def lock(self) -> TransportLock:
        """The lock, which `Straight` takes."""
        return self._lock

    def window(self, size: int) -> SharedWindow:
        with self._lock:
            self._check_open()
            if not self._peers.kept.bytes:  # no frame that passes one waits to be sent
                self._peers.pool.drop_unused()
            segment = self._peers.pool.window(size)
            self._peers.tell_dropped()
            return SharedWindow(segment, self._release, self._peers.pool.unused.append)

    def _release(self, segment: Segment) -> None:
        """Take back the segment of a window."""
        with self._lock:
            if not self._waits.is_closed:
                self._peers.pool.give_back(segment)
                self._peers.tell_dropped()

    def abort(self, code: int, why: str) -> None:
        why = why if len(why) <= _MOST_WHY else why[: _MOST_WHY - 3] + "..."
        with self._lock:
            if self._waits.is_closed:
                return
            self._peers.say(wire.RunAborted(self.rank, code, why))
            self._ends.is_disturbed = True
            self._ends.fatal = self._ends.fatal or Aborted(self.rank, code, why)
            self._waits.wake_others()

    def close(self) -> None:
        """Deliver all sent messages, send BYE, and close."""
        with self._lock:
            if self._waits.is_closed:
                return
            try:
                self._deliver()
            finally:
                self._waits.is_closed = True
                self._waits.wake_others()
                self._peers.close()

    def leave(self, why: str) -> None:
        """Close a forked child's copies of all sockets; later calls raise UsageError with the reason `why`."""
        was_closed = self._waits.is_closed
        self._waits.is_closed, self._refusal = True, why
        self._lock = TransportLock()
        if not was_closed:
            self._peers.close(in_child=True)

    def await_end(self, rank: int) -> None:
        wait = Wait("recv", 0, rank, None, time.monotonic(), _FAILED_S)
        with self._lock:
            while not self._waits.is_closed and not self._ends.has_ended(rank) and self._waits.pause(wait):
                pass

    def _send_to_self(self, envelope: Envelope, buffers: Buffers, segment: Segment | None) -> None:
        body = join_buffers(buffers, envelope.size)
        self._sent_to_self += 1
        memory_of = segment.memory if segment is not None else None
        self._queues.put(Received(envelope, [body], memory_of))
        self._answer()
        self._waits.wake_others()

    def _send_body(
        self, channel: Outgoing, context: int, tag: bytes, form: int, meta: bytes, buffers: Buffers, size: int
    ) -> None:
        missing = 0
        while size > INLINE_BYTES and channel.in_node:
            piece = min(size, PIECE_BYTES)
            segment = self._free_segment(piece)
            if segment is None:
                missing = -(-size // PIECE_BYTES)
                break
            begun, buffers = split_buffers(buffers, piece) if piece < size else (buffers, ())
            segment.write(begun)
            segment.lent_to = channel.rank
            size -= piece
            if not size:
                channel.write(
                    frames.SEGMENT, form=form, tag=tag, meta=meta, body_bytes=piece, context=context, segment=segment
                )
                return
            channel.write(frames.PART, body_bytes=piece, segment=segment)
        channel.write(frames.DATA, buffers, form=form, tag=tag, meta=meta, body_bytes=size, context=context)
        if missing:
            self._peers.keep_going()  # sends on in another thread while pages are cleared here
            for _ in range(min(missing, _GROW)):
                self._peers.pool.grow(min(size, PIECE_BYTES))
            self._peers.tell_dropped()

    def _free_segment(self, size: int) -> Segment | None:
        pool = self._peers.pool
        segment = pool.take(size)
        if segment is None and pool.busy:
            self._waits.handle_now()
            segment = pool.take(size)
        return segment

    def _wait_for_room(self, channel: Outgoing, context: int, size: int) -> None:
        """Wait until the backlog has room for a message, and handle events meanwhile."""
        kept = self._peers.kept
        if not kept.bytes or kept.bytes + size <= self._limit:
            return
        began = time.monotonic()
        wait = Wait("send", 0, channel.rank, None, began, None)
        said = False
        try:
            while kept.bytes and kept.bytes + size > self._limit:
                self._waits.pause(wait)
                self._answer()
                self._check_open()
                self._check_receiver(channel.rank, context)
                if channel.broken is not None:
                    raise TransportError(channel.broken)
                if not said and time.monotonic() - began > WAITING_S:
                    said = True
                    note(
                        f"rank {self.rank} waits in send to rank {channel.rank}: {kept.bytes} bytes of its messages "
                        f"have not been taken, LLSUB_SEND_LIMIT is {self._limit}"
                    )
        finally:
            self._waits.finished(wait)

    def _check_receiver(self, dest: int, context: int) -> None:
        if not self._ends.quiet:
            error = self._ends.error_for_send(dest, context)
            if error is not None:
                raise error

    def _raise_broken(self, dest: int, context: int, error: TransportError) -> None:
        """Raise the reason why a rank's connection has broken: its end, as the rendezvous process reports it."""
        wait = Wait("send", 0, dest, None, time.monotonic(), _END_S)
        self._check_receiver(dest, context)
        while self._peers.control.end is None and self._waits.pause(wait):
            self._check_receiver(dest, context)
        if dest in self._peers.gone or self._peers.control.end is not None:
            self._ends.closed(dest, self._peers.gone.get(dest, (0.0, False))[1])
        self._check_receiver(dest, context)
        raise error

    def _wait_for(self, wait: Wait) -> Received:
        while True:
            if self._waits.is_closed:
                raise UsageError(self._refusal)
            if not self._ends.quiet or self._peers.gone:
                self._raise_if_over(wait.source, wait.context)
                message = self._queues.take(wait.source, wait.context, wait.tag)
                if message is not None:
                    return message
            in_time = self._waits.pause(wait)
            if not in_time:
                self._waits.handle_now()
            if self._queues.to_answer:
                self._answer()
            message = self._queues.take(wait.source, wait.context, wait.tag)
            if message is not None:
                return message
            if not in_time:
                waited_s = time.monotonic() - wait.began
                raise ReceiveTimeout(f"rank {self.rank} has waited {waited_s:.3g} s in {wait.call} for {wait.what}")

    def _wait_for_posted(self, wait: Wait, posted: Sequence[Posted]) -> None:
        while True:
            if self._waits.is_closed:
                raise UsageError(self._refusal)
            self._note_ends(posted)
            if any(one.is_done for one in posted):
                return
            in_time = self._waits.pause(wait)
            if not in_time:
                self._waits.handle_now()
            self._answer()
            if any(one.is_done for one in posted):
                return
            if not in_time:
                waited_s = time.monotonic() - wait.began
                raise ReceiveTimeout(
                    f"rank {self.rank} has waited {waited_s:.3g} s in {wait.call} for {wanted_text(posted)}"
                )

    def _note_ends(self, posted: Sequence[Posted]) -> None:
        if self._ends.quiet and not self._peers.gone:
            return
        for one in posted:
            try:
                self._raise_if_over(one.source, one.context)
            except SpmdError as error:
                if error is self._ends.fatal or error is self._ends.stuck:
                    raise
                if one.message is None:
                    self._fail(one, error)

    def _send_answer(self, dest: int, context: int, tag: Tag) -> None:
        if dest == self.rank:
            self._send_to_self(Envelope(dest, context, tag, RAW, 0), (), None)
            return
        if self._ends.has_ended(dest):
            return
        with contextlib.suppress(TransportError):  # its end will be reported
            self._peers.to(dest).write(frames.DATA, form=RAW, tag=frames.tag_to_bytes(tag), context=context)
            self.sent += 1
            self._peers.keep_going()

    def _counts(self) -> tuple[int, int]:
        return self.sent, self._queues.taken - self._sent_to_self

    def _raise_if_over(self, source: int | None, context: int) -> None:
        """Raise the reason why no message of that source can come any more, after all received data is read."""
        self._note_gone()
        if self._ends.quiet:
            return
        error = self._ends.error_for_receive(source, context)
        if error is None:
            return
        if self._ends.fatal is None:
            taken = self._queues.taken
            self._peers.read_all_from(source)
            # Data of a rank with an orderly end may still arrive, as over TCP.
            members = self._queues.members.get(communicator_of(context), range(self.size))
            sources = members if source is None else (source,)
            if self._queues.taken != taken or any(
                self._ends.is_orderly(one) and self._peers.is_open_from(one) for one in sources
            ):
                return
        raise error

    def _note_gone(self) -> None:
        """Treat closed connections as ends if the rendezvous process does not report them."""
        now = time.monotonic()
        for rank, (since, said_bye) in self._peers.gone.items():
            if not self._ends.has_ended(rank) and (self._peers.control.end is not None or now - since > _GONE_S):
                self._ends.closed(rank, said_bye)

    def _poll(self) -> None:
        self._check_open()
        self._waits.handle_now()

    def _check_open(self) -> None:
        """Raise if the transport is closed or the run has ended."""
        if self._waits.is_closed:
            raise UsageError(self._refusal)
        if self._ends.fatal is not None:
            raise self._ends.fatal

    def _deliver(self) -> None:
        """Send the backlogs, then BYE. Waits while the receivers are running; a failing rank waits for _END_S."""
        failing = self._ends.fatal is not None or getattr(sys, "last_value", None) is not None
        wait = Wait("exit", 0, None, None, time.monotonic(), _END_S if failing else None)
        try:
            self._empty_backlogs(wait)
            if not failing:
                for channel in self._peers.outgoing.values():
                    with contextlib.suppress(TransportError):  # its receiver has ended
                        channel.write(frames.BYE)
                self._empty_backlogs(wait)
        except SpmdError as error:
            note(f"rank {self.rank}: {error}")
        untaken = self._report_untaken()
        if self._queues.lost:
            note(
                f"rank {self.rank} has dropped requests of receives, and {self._queues.lost} messages to them are lost"
            )
        if not failing:
            self._report_mismatch()
            self._peers.say(wire.Bye(untaken, *self._counts()))
        for _ in range(20):
            self._peers.control.flush()
            if self._peers.control.is_flushed:
                break
            time.sleep(0.05)

    def _report_mismatch(self) -> None:
        """End the run if the last collective calls of ranks differ, as far as received messages show.

        Not after the end of another rank, which is the reason then.
        """
        if self._ends.first is not None:
            return
        for _ in range(_MOST_PASSES):
            if not self._peers.handle(self._peers.epoll.poll(0)):
                break
        late = self._queues.late
        if late is not None:
            note(f"rank {self.rank}: {late}")
            here, there = (late.rank, late.here), (late.peer, late.there)
            self._peers.say(wire.CallMismatch(late.number, here, there, late.where))

    def _empty_backlogs(self, wait: Wait) -> None:
        """Wait until the backlogs are empty or the receivers have ended."""
        self._peers.keep_going()
        while self._peers.kept.bytes:
            for channel in self._peers.outgoing.values():
                if channel.backlog_bytes and self._ends.has_ended(channel.rank):
                    channel.give_up("it has ended")
            if self._peers.kept.bytes and not self._waits.pause(wait):
                return

    def _report_untaken(self) -> int:
        kept = {one.rank: one.untaken + one.kept_messages for one in self._peers.outgoing.values()}
        untaken = {rank: count for rank, count in sorted(kept.items()) if count}
        if untaken:
            shown = ", ".join(f"{count} for rank {rank}" for rank, count in list(untaken.items())[:8])
            note(f"rank {self.rank} has sent messages that were never taken: {shown}")
        return sum(untaken.values())

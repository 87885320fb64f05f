"""The dispatcher of a node: the worker that reads the clients' calls, gives them to workers and writes the results.

The worker that holds the lock in the node's private folder is the dispatcher. If it ends, another one takes the lock:
it finds what the node has claimed, the others tell it what they hold, and the marks of the workers that have ended say
which calls they had begun. So no call is lost, and none that has begun runs again by itself.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import secrets
import selectors
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from . import frames, links, run_folder
from .frames import Call, Key, Result

DEPTH_MOST = 32
"""Most calls that a worker has at once: the one that runs, and those that follow it."""
FUNCTIONS_MOST = 64
"""Most functions whose times are known."""
AHEAD_S = 0.05
"""Seconds of work that a worker has at most while others may be idle."""
POLL_LEAST_S = 0.002
POLL_MOST_S = 0.25
"""Seconds between two looks at the files of clients on other machines: short after a change, then longer."""
BEAT_S = 2.0
"""Seconds between two signs of life for clients."""
CLIENT_S = 300.0
"""Seconds without a sign of life of a client on another machine, after which it counts as gone."""
CHECK_IN_S = 5.0
"""Seconds in which the workers of a node tell a new dispatcher what they hold."""
SHORT_BYTES = 1024
"""Results up to this size are kept as they are when there is no room."""
RESERVE_BYTES = 256 * 1024
"""Room on the disk that each dispatcher keeps for saying that the disk is full."""
STORE_S = 20.0
"""Seconds in which a result that cannot be written is tried again, before a short text takes its place."""
RETRIED = frozenset({frames.RAISED, frames.LOST, frames.TOO_LONG})
LOCK, MARKS = "executor.lock", "executor.marks"
_MARK = struct.Struct("<IQ")
_MARKS_MOST = 64
_MARK_BYTES = 16


class Marks:
    """The calls that a worker began last, in a file that outlives it."""

    def __init__(self, folder: str, rank: int) -> None:
        self.path = f"{folder}/{MARKS}.{rank}.{os.getpid()}.{process_start(os.getpid())}"
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.truncate(fd, _MARKS_MOST * _MARK_BYTES)
            self._map = mmap.mmap(fd, _MARKS_MOST * _MARK_BYTES)
        finally:
            os.close(fd)
        self._count = 0

    def begin(self, key: Key) -> None:
        """Note that a call begins now."""
        _MARK.pack_into(self._map, self._count % _MARKS_MOST * _MARK_BYTES, key[0], key[1] + 1)
        self._count += 1

    def remove(self) -> None:
        try:
            os.unlink(self.path)
        except OSError:
            pass


def read_marks(folder: str) -> Iterator[tuple[int, bool, set[Key]]]:
    """Yield for each worker that had marks here: its pid, whether it lives, and the calls that it began last."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    for name in names:
        if not name.startswith(f"{MARKS}."):
            continue
        _, pid, start = name[len(MARKS) + 1 :].split(".")
        try:
            data = frames.read_own(f"{folder}/{name}")
        except FileNotFoundError:
            continue  # it has ended in order
        keys = {
            (client, index - 1)
            for client, index in (_MARK.unpack_from(data, at) for at in range(0, len(data), _MARK_BYTES))
            if index
        }
        yield int(pid), process_start(int(pid)) == start, keys


def process_start(pid: int) -> str:
    """Return when a process began, in the kernel's ticks; "": there is none, or it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def own_place() -> str:
    """Return which processes this one can see: the machine since its start, and its namespace of pids."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


@dataclass(eq=False)
class Peer:
    """A worker of this node, as the dispatcher sees it."""

    link: links.Link
    rank: int = -1
    pid: int = 0
    calls: dict[Key, Call] = field(default_factory=dict)
    """The calls that the worker has been given and has not answered, in the order of their start."""
    unacknowledged: int = 0
    since: float = 0.0
    """When the first of its calls became the first (monotonic clock, seconds)."""
    is_asked: bool = False
    """True: it was asked to give back what it has not begun."""
    at: str = ""
    """Its GPU memory class (`gpu_mem`) now."""


@dataclass(eq=False)
class Client:
    """The file of one client, as the dispatcher reads it."""

    number: int
    reader: frames.Reader
    batches: deque[tuple[int, int]] = field(default_factory=deque)
    """Number and offset of each frame of calls that nobody here has claimed."""
    count: int = 0
    is_closed: bool = False
    changed_ns: int = 0
    seen: float = field(default_factory=time.monotonic)
    """When the last sign of life was seen (monotonic clock, seconds)."""
    process: tuple[str, int, str] | None = None
    """Place, pid and start of the client's process."""


class Dispatcher:
    """Gives the calls of an executor to the workers of this node."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        lock: int,
        node_folder: str,
        folder: str,
        node: str,
        start: str,
        say: Callable[[str], None],
    ) -> None:
        """Take over the node. `lock`: the descriptor that holds its lock. Raises OSError."""
        self.selector = selector
        self.lock = lock
        self.folder = folder
        self.node_folder = node_folder
        self.say = say
        self.claims = run_folder.Claims(folder, start, node)
        name = f"{node}.{start}.{os.getpid()}-{secrets.token_hex(2)}"
        self.results = frames.Appender(f"{folder}/{run_folder.RESULTS}/{name}")
        self.results.append(frames.frame(frames.STARTED, start.encode()))
        self.clients: dict[int, Client] = {}
        self.done: set[Key] = set()
        """Calls with a result of an earlier start, or of an earlier dispatcher."""
        self.cancelled: set[Key] = set()
        self.gone: set[int] = set()
        """Clients that have ended without a word, as another client on their host has seen."""
        self.queue: deque[Call] = deque()
        self.peers: dict[links.Link, Peer] = {}
        self.size = 1 << 30
        """Workers that may have calls: those with a lower rank."""
        self.out: list[tuple[Peer | None, Result | None]] = []
        self.used: list[str] = []
        """Files of arguments that no later start needs."""
        self.is_ending = False
        self.end_code = 0
        self.is_stopped = False
        """True: the job ends; nothing starts any more."""
        self.broken = ""
        self.seconds: dict[bytes, float] = {}
        """Function -> mean seconds of its calls, the last ones counting more."""
        self.last = b""
        """The function of the call that was given last."""
        self.delay = POLL_LEAST_S
        self.next_poll = 0.0
        self.next_listing = 0.0
        self.next_beat = 0.0
        self.store_since: float | None = None
        self.retry_store = 0.0
        self.reserve = f"{folder}/{run_folder.DATA}/reserve.{name}"
        self.has_reserve = False
        self.is_full = False
        """True: a result found no room for STORE_S, and none of more than SHORT_BYTES has found any since."""
        self.next_reserve = 0.0
        self.place = own_place()
        self.began = time.monotonic()
        self.waiting_for: set[int] = set()
        """Pids of the workers that have not told yet what they hold."""
        self.check_in = time.monotonic() + CHECK_IN_S
        self.unknown: dict[Key, Call] = {}
        """Claimed calls of which it is not known yet who has them."""
        self.begun_before: set[Key] = set()
        self.silent: dict[Key, Call] = {}
        """Calls that a worker has begun which does not answer."""
        self.events = links.FolderEvents()
        for part in (run_folder.CALLS,):
            self.events.watch(f"{folder}/{part}")
        if self.events.fd >= 0:
            selector.register(self.events.fd, selectors.EVENT_READ, self._on_change)
        self._read_clients()
        self._read_results()
        self._take_over()
        self._reserve()
        self.listener = self._listen()
        selector.register(self.listener, selectors.EVENT_READ, self._on_connection)

    # ---- Beginning ----

    def _listen(self) -> socket.socket:
        path, fd = links.socket_path(self.node_folder)
        try:
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.setblocking(False)
            before = os.umask(0o077)
            try:
                listener.bind(path)
            finally:
                os.umask(before)
            listener.listen(1024)
        finally:
            if fd is not None:
                os.close(fd)
        return listener

    def _read_results(self) -> None:
        folder = f"{self.folder}/{run_folder.RESULTS}"
        for name in os.listdir(folder):
            path = f"{folder}/{name}"
            if path == self.results.path:
                continue
            try:
                for kind, content, _ in frames.Reader(path).read():
                    if kind == frames.RESULTS:
                        self.done.update(result.key for result in frames.unpack_results(content))
            except OSError as error:
                self.say(f"results in {path} are not read: {error.strerror}")

    def _take_over(self) -> None:
        """Find the calls that an earlier dispatcher of this node had claimed."""
        own = set(self.claims.own())
        for client in self.clients.values():
            mine = [batch for batch in client.batches if (client.number, batch[0]) in own]
            for _, offset in mine:
                for call in self._calls_at(client, offset):
                    self.unknown[call.key] = call
            client.batches = deque(batch for batch in client.batches if (client.number, batch[0]) not in own)
        for pid, lives, keys in read_marks(self.node_folder):
            if lives:
                self.waiting_for.add(pid)  # this process too: it has held calls as a worker
            else:
                self.begun_before |= keys
        self._settle_unknown()

    def _settle_unknown(self) -> None:
        """Decide about the claimed calls as soon as all workers have told what they hold."""
        if not self.unknown:
            self.waiting_for.clear()
            return
        if self.waiting_for:
            for pid, lives, keys in read_marks(self.node_folder):
                if pid in self.waiting_for and not lives:
                    self.waiting_for.discard(pid)
                    self.begun_before |= keys
            if self.waiting_for and time.monotonic() < self.check_in:
                return
        for pid, _, keys in read_marks(self.node_folder):
            if pid in self.waiting_for:  # stopped, perhaps: what it has begun stays with it until it tells
                for key in keys & self.unknown.keys():
                    self.silent[key] = self.unknown.pop(key)
        self.waiting_for.clear()
        for call in self.unknown.values():
            if call.key in self.begun_before:
                self._was_killed(call)
            else:
                self.queue.append(call)
        self.unknown.clear()

    def _settle_silent(self) -> None:
        """Decide about the calls of workers that never answered and have ended since."""
        for _, lives, keys in read_marks(self.node_folder):
            if not lives:
                for key in keys & self.silent.keys():
                    self._was_killed(self.silent.pop(key))

    def _was_killed(self, call: Call) -> None:
        text = "the process that ran it was killed, and its worker with it"
        self._judge(None, call, Result(call.client, call.index, frames.LOST, 0.0, text.encode(), 0, call.attempt))

    # ---- Reading ----

    def _read_clients(self) -> bool:
        """Read what clients have written; return whether there was anything."""
        found = False
        now = time.monotonic()
        if now >= self.next_listing:
            self.next_listing = now + 1.0
            for number in run_folder.clients(self.folder):
                if number not in self.clients:
                    path = f"{self.folder}/{run_folder.CALLS}/{number}"
                    self.clients[number] = Client(number, frames.Reader(path))
                    found = True
        for client in self.clients.values():
            try:
                for kind, content, offset in client.reader.read():
                    found = True
                    self._note(client, kind, content, offset)
            except frames.NotOwnFile as error:
                client.is_closed = True
                self.say(f"the calls in {client.reader.path} are not run: {error.strerror}")
            except OSError as error:
                self.say(f"{client.reader.path} cannot be read now: {error.strerror}")
        return found

    def _note(self, client: Client, kind: int, content: bytes, offset: int) -> None:
        client.seen = time.monotonic()
        if kind == frames.CALLS:
            client.batches.append((client.count, offset))
            client.count += 1
            client.is_closed = False
        elif kind == frames.CANCELLED:
            self.cancelled.update(frames.unpack_keys(content))
        elif kind == frames.CLOSED:
            client.is_closed = True
        elif kind == frames.OPENED:
            found = json.loads(content)
            client.process = (str(found["place"]), int(found["pid"]), str(found["start"]))
        elif kind == frames.GONE:
            self.gone.update(number for number, _ in frames.unpack_keys(content))
        elif kind == frames.RESIZED:
            self.size = int.from_bytes(content[:4], "little")

    def _calls_at(self, client: Client, offset: int) -> list[Call]:
        calls = frames.unpack_calls(frames.read_at(client.reader.path, offset), client.number)
        return [call for call in calls if call.key not in self.done and call.key not in self.cancelled]

    def _claim(self, wanted: int) -> None:
        """Claim calls until `wanted` wait here, or none are left."""
        busy = True
        skipped = False
        while len(self.queue) < wanted and busy:
            busy = False
            for client in self.clients.values():
                if not client.batches:
                    continue
                busy = True
                number, offset = client.batches[0]
                if self.claims.take(client.number, number):
                    client.batches.popleft()
                    self.queue.extend(self._calls_at(client, offset))
                elif skipped:
                    client.batches.popleft()
                else:
                    skipped = True
                    taken = self.claims.taken()
                    for one in self.clients.values():
                        while one.batches and (one.number, one.batches[0][0]) in taken:
                            one.batches.popleft()

    # ---- Workers ----

    def _on_connection(self, mask: int) -> None:
        try:
            sock, _ = self.listener.accept()
        except OSError:
            return
        link = links.Link(sock)
        peer = Peer(link)
        self.peers[link] = peer
        self.selector.register(link, selectors.EVENT_READ, lambda mask: self._on_peer(peer, mask))

    def _on_change(self, mask: int) -> None:
        self.events.clear()
        self.delay = POLL_LEAST_S
        self.next_poll = 0.0
        self.next_listing = min(self.next_listing, time.monotonic() + 0.01) if not self.clients else self.next_listing

    def _on_peer(self, peer: Peer, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            peer.link.flush()
        if mask & selectors.EVENT_READ:
            for kind, content in peer.link.receive():
                self._message(peer, kind, content)
            if not peer.link.is_open:
                self._lost(peer)
                return
        self._watch(peer)

    def _watch(self, peer: Peer) -> None:
        if peer.link in self.peers:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.link.is_waiting else 0)
            if self.selector.get_key(peer.link).events != wanted:
                self.selector.modify(peer.link, wanted, lambda mask: self._on_peer(peer, mask))

    def _message(self, peer: Peer, kind: int, content: bytes) -> None:
        if kind == links.DONE:
            (result,) = frames.unpack_results(content)
            call = peer.calls.pop(result.key, None)
            peer.since = time.monotonic()
            if call is None:
                self.out.append((peer, None))
                return
            before = self.seconds.pop(call.function, result.seconds)
            if len(self.seconds) >= FUNCTIONS_MOST:
                del self.seconds[next(iter(self.seconds))]
            self.seconds[call.function] = before + 0.1 * (result.seconds - before)
            self._judge(peer, call, result)
        elif kind == links.HELLO:
            said = json.loads(content)
            peer.rank, peer.pid = said["rank"], said["pid"]
            for client, index in said["held"]:
                held = self.unknown.pop((client, index), None) or self.silent.pop((client, index), None)
                if held is not None:
                    peer.calls[held.key] = held
            self.waiting_for.discard(peer.pid)
            self._settle_unknown()
            if self.is_ending:
                peer.link.send(links.END, bytes([self.end_code]))
        elif kind == links.RETURNED:
            peer.is_asked = False
            for key in reversed(frames.unpack_keys(content)):
                back = peer.calls.pop(key, None)
                if back is not None:
                    self.queue.appendleft(back)
        elif kind == links.BROKEN and not self.broken:
            self.broken = content.decode(errors="replace") or "it failed"
            self._write(frames.frame(frames.BROKEN, self.broken.encode()))
            self.end(1)

    def _judge(self, peer: Peer | None, call: Call, result: Result) -> None:
        """Write a result down, or let the call run again."""
        if result.kind in RETRIED and call.attempt <= options_of(call).get("retries", 0) and not self.is_stopped:
            call.attempt += 1
            self.queue.append(call)
            self.out.append((peer, None))
        elif result.kind == frames.LOST and self.is_stopped:
            self.out.append((peer, None))  # ended with the job: it runs again in the next one
        else:
            self.out.append((peer, result))
            if call.flags & frames.IN_FILE:
                self.used.append(call.arguments.decode())

    def _lost(self, peer: Peer) -> None:
        """Take back the calls of a worker that has ended."""
        self.selector.unregister(peer.link)
        del self.peers[peer.link]
        peer.link.close()
        begun: set[Key] = set()
        for pid, _, keys in read_marks(self.node_folder):
            if pid == peer.pid:
                begun |= keys
        for call in reversed(peer.calls.values()):
            if call.key in begun:
                text = f"its worker (process {peer.pid}) was killed"
                self._judge(
                    None, call, Result(call.client, call.index, frames.LOST, 0.0, text.encode(), 0, call.attempt)
                )
            else:
                self.queue.appendleft(call)

    def _give(self) -> None:
        """Give calls to workers that have room."""
        if self.is_stopped or self.is_ending or self.unknown:
            return
        peers = [peer for peer in self.peers.values() if 0 <= peer.rank < self.size and not peer.is_asked]
        try:
            if not self.queue and any(len(peer.calls) < self._depth(self.last) for peer in peers):
                self._claim(1)  # its function says how many are wanted
            depth = self._depth(self.queue[0].function if self.queue else self.last)
            room = sum(max(0, depth - len(peer.calls)) for peer in peers)
            if room > len(self.queue):
                self._claim(room)
        except OSError as error:
            depth = 1
            self.say(f"calls cannot be claimed now: {error}")
        level = 0
        while self.queue and level < depth:
            for peer in peers:
                if len(peer.calls) <= level and self.queue:
                    self._send(peer, self.queue.popleft())
            level += 1
        if not self.queue and any(not peer.calls for peer in peers):
            self._ask_back(peers)
        for peer in peers:
            self._watch(peer)

    def _depth(self, function: bytes) -> int:
        """Return how many calls of a function a worker may have: one until it is known how long they take.

        What a worker has can no longer be cancelled, nor run by a worker of another node.
        """
        seconds = self.seconds.get(function)
        return 1 if seconds is None else max(1, min(DEPTH_MOST, int(AHEAD_S / max(seconds, 1e-9))))

    def _ask_back(self, peers: list[Peer]) -> None:
        """Ask workers for calls that wait behind a long one while others are idle."""
        now = time.monotonic()
        for peer in peers:
            if len(peer.calls) > 1 and now - peer.since > AHEAD_S and not peer.is_asked:
                peer.is_asked = True
                peer.link.send(links.RETURN)

    def _send(self, peer: Peer, call: Call) -> None:
        if not peer.calls:
            peer.since = time.monotonic()
        peer.calls[call.key] = call
        self.last = call.function
        peer.link.send(links.WORK, call.client.to_bytes(4, "little") + frames.pack_calls([call]))

    # ---- Writing ----

    def _write(self, data: bytes) -> bool:
        """Append to the results; return False if that is not possible now."""
        try:
            self.results.append(data)
        except OSError as error:
            if self.store_since is None:
                # Waited for once, not for each result of a disk that stays full.
                self.store_since = time.monotonic() - (STORE_S if self.is_full else 0.0)
                self.say(f"results cannot be written into {self.results.path} now: {error.strerror}; trying again")
            self.retry_store = time.monotonic() + 0.5
            return False
        self.store_since = None
        return True

    def _store(self) -> None:
        """Write down the results that have come, and tell their workers."""
        if not self.out or (self.store_since is not None and time.monotonic() < self.retry_store):
            return
        if self.store_since is not None and time.monotonic() - self.store_since > STORE_S:
            self._shorten()
        content = b"".join(frames.pack_result(result) for _, result in self.out if result is not None)
        if content and not self._write(frames.frame(frames.RESULTS, content)):
            return
        if any(result is not None and len(result.content) > SHORT_BYTES for _, result in self.out):
            self.is_full = False
        self._reserve()
        for name in self.used:
            try:
                os.unlink(f"{self.folder}/{run_folder.DATA}/{name}")
            except OSError:
                pass  # it only takes room
        self.used.clear()
        counts: dict[Peer, int] = {}
        for peer, _ in self.out:
            if peer is not None:
                counts[peer] = counts.get(peer, 0) + 1
        self.out.clear()
        for peer, count in counts.items():
            peer.link.send(links.STORED, count.to_bytes(4, "little"))
            self._watch(peer)

    def _shorten(self) -> None:
        """Put short texts in the place of results that found no room for STORE_S, and use the reserve for them."""
        for _, result in self.out:
            if result is not None and len(result.content) > SHORT_BYTES:
                result.kind, result.flags = frames.UNSTORED, 0
                result.content = f"its result could not be written into {self.folder}: no room there".encode()
        self.has_reserve, self.is_full = False, True
        try:
            os.unlink(self.reserve)
        except OSError:
            pass

    def _reserve(self) -> None:
        """Keep room on the disk for texts that say that it is full."""
        if self.has_reserve or time.monotonic() < self.next_reserve:
            return
        self.next_reserve = time.monotonic() + 10.0
        try:
            frames.write_new(self.reserve, os.urandom(RESERVE_BYTES))  # random: a file system may compress others
            self.has_reserve = True
        except OSError:
            pass  # full now

    # ---- The loop ----

    def turn(self) -> float:
        """Do what is due; return the seconds until something is."""
        now = time.monotonic()
        if self.unknown:
            self._settle_unknown()
        elif self.silent and now >= self.next_beat:
            self._settle_silent()
        has_room = not self.is_stopped
        if has_room and now >= self.next_poll:
            if self._read_clients():
                self.delay = POLL_LEAST_S
            else:
                self.delay = min(self.delay * 1.5, POLL_MOST_S)
            self.next_poll = now + self.delay
        self._give()
        self._store()
        if now >= self.next_beat:
            self.next_beat = now + BEAT_S
            self.results.touch()
            if os.fstat(self.results.fd).st_nlink == 0:
                self.say(f"{self.folder} was removed: nothing more runs on this node")
                self.end(1)
        if not self.is_ending and self._is_through():
            self.end(0)
        return max(0.0, min(self.next_poll if has_room else now + 0.5, self.next_beat) - time.monotonic())

    def _is_through(self) -> bool:
        """Return whether nothing is left to do on this node, now and later."""
        if self.queue or self.unknown or self.silent or self.out or any(peer.calls for peer in self.peers.values()):
            return False
        if not self.clients:
            return time.monotonic() - self.began > CLIENT_S
        if not all(client.is_closed or self._is_gone(client) for client in self.clients.values()):
            return False
        if any(client.batches for client in self.clients.values()):
            self._drop_claimed()  # a node whose workers may have no calls claims none, and does not learn it there
        return not any(client.batches for client in self.clients.values())

    def _drop_claimed(self) -> None:
        """Forget the calls that others have claimed."""
        try:
            taken = self.claims.taken()
        except OSError as error:
            self.say(f"claims cannot be read now: {error.strerror}")
            return
        for client in self.clients.values():
            client.batches = deque(batch for batch in client.batches if (client.number, batch[0]) not in taken)

    def _is_gone(self, client: Client) -> bool:
        """Return whether a client that has not closed its file has ended."""
        if client.number in self.gone:
            return True
        if client.process is not None and client.process[0] == self.place:
            return process_start(client.process[1]) != client.process[2]
        now = time.monotonic()
        try:
            changed = os.stat(client.reader.path).st_mtime_ns
        except OSError:
            return now - client.seen > CLIENT_S
        if changed != client.changed_ns:
            client.changed_ns, client.seen = changed, now
        return now - client.seen > CLIENT_S

    def end(self, code: int) -> None:
        """Let the workers end, with an exit code."""
        self.is_ending, self.end_code = True, code
        for peer in self.peers.values():
            peer.link.send(links.END, bytes([code]))
            self._watch(peer)

    def stop(self, number: int) -> None:
        """Start nothing more: the job ends. `number`: of the signal that said so."""
        if not self.is_stopped:
            self.is_stopped = True
            text = f"{signal.Signals(number).name}, which Slurm sends at the end of time, at scancel and at preemption"
            self._write(frames.frame(frames.ENDED, text.encode()))

    @property
    def others(self) -> int:
        """Return how many other workers are connected."""
        return sum(peer.pid != os.getpid() for peer in self.peers.values())

    def close(self) -> None:
        """Give up the node."""
        self._store()
        try:
            os.unlink(self.reserve)
        except OSError:
            pass
        for link in list(self.peers):
            self.selector.unregister(link)
            link.close()
        self.peers.clear()
        self.listener.close()
        self.results.close()
        self.events.close()
        os.close(self.lock)

    def release_in_child(self) -> None:
        """Close, in a forked process, the descriptors of the dispatcher."""
        for link in self.peers:
            link.sock.close()
        self.listener.close()
        self.results.close()
        self.events.close()
        os.close(self.lock)


def options_of(call: Call) -> dict[str, float]:
    """Return the options of a call."""
    return dict(json.loads(call.options)) if call.options else {}


def try_lock(node_folder: str) -> int | None:
    """Return a descriptor that holds the node's lock; None: another worker holds it. Raises OSError."""
    fd = os.open(f"{node_folder}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd

"""One client's part of a run: calls out, results in.

One thread writes calls and reads results. It holds no reference to the executor, so that an executor that nobody uses
any more is closed.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import selectors
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import _base
from pathlib import Path
from typing import Any, TypeVar

from . import frames, links, outcome, run_folder, starting
from .dispatcher import own_place, process_start
from .errors import InitializerFailed, NotStored, RunEnded
from .frames import Call, Key, Result

T = TypeVar("T")

POLL_LEAST_S = 0.002
POLL_MOST_S = 0.5
"""Seconds between two looks at the results of other machines: short while results come, then longer."""
BEAT_S = 5.0
"""Seconds between two signs of life for dispatchers."""
BATCH_MOST = 64
"""Most calls that a node claims at once."""
CHECK_S = 0.5
"""Seconds between two looks at the state of the run, while calls have no result."""


class Future(concurrent.futures.Future[T]):
    """The result of a call."""

    key: str = ""
    """Names the call in its run: `Executor.attach(folder).futures[key]`."""
    _exchange: Exchange | None = None
    _call: tuple[int, int] | None = None

    def cancel(self) -> bool:
        """Cancel the call unless it runs or has run; return whether it is cancelled."""
        exchange = self._exchange
        if exchange is None or self.done() or self._call is None:
            return super().cancel()
        exchange.cancel([self])
        return self.cancelled()

    def _cancel(self) -> None:
        """Make it cancelled, and tell those who wait for it."""
        if super().cancel():
            self.set_running_or_notify_cancel()

    def running(self) -> bool:
        """Return whether a node has taken the call, and there is no result yet."""
        exchange = self._exchange
        return super().running() or (exchange is not None and not self.done() and exchange.is_begun(self))


class Exchange:
    """Calls out, results in: one client's part of a run. Its thread begins with the job, or the first call."""

    def __init__(self, folder: str, job: starting.Job, config: run_folder.Config) -> None:
        """Raises OSError."""
        self.folder, self.job, self.config = folder, job, config
        self.lock = threading.Lock()
        self.pid = os.getpid()
        self.number, self.file = run_folder.new_client(folder)
        me = {"place": own_place(), "pid": os.getpid(), "start": process_start(os.getpid())}
        self.file.append(frames.frame(frames.OPENED, json.dumps(me).encode()))
        self.count = 0
        """Calls of this client so far."""
        self.frames = 0
        """Frames of calls in the file so far."""
        self.buffer: deque[Call] = deque()
        self.futures: dict[Key, Future[Any]] = {}
        """The calls without a result."""
        self.where: dict[int, int] = {}
        """Call -> its frame, for calls without a result."""
        self.is_closing = False
        self.has_closed = False
        self.broken: BaseException | None = None
        self.resize_to: int | None = None
        self.thread: threading.Thread | None = None
        self.wake_r, self.wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.is_woken = False
        self.readers: dict[str, frames.Reader] = {}
        self.ended: dict[str, str] = {}
        """Result file -> why its dispatcher said that it ends."""
        self.beats: dict[str, int] = {}
        self.heard = time.monotonic()
        self.idle = threading.Event()
        self.offsets: list[int] = []
        """Frame of calls -> its place in the file."""
        self.restart: Callable[[Exchange], None] | None = None
        """Starts workers, for a client that attached to a run; None: this client made the run."""
        self.needs_start = False
        """True: workers are started before the first call."""
        self.restarts = 1
        """How often workers may be started again because they ended before they saw this client's calls."""
        _exchanges.add(self)

    # ---- For the executor ----

    def submit(self, function: bytes, arguments: bytes, options: bytes, future: Future[Any]) -> None:
        """Queue a call. Raises RuntimeError, RunEnded, OSError."""
        if os.getpid() != self.pid:
            raise RuntimeError("this executor belongs to the process that made it; make another one after a fork")
        flags = 0
        if self.needs_start and self.restart is not None:
            self.restart(self)
            self.needs_start = False
        with self.lock:
            self.check_open()
            index = self.count
            self.count += 1
        if len(arguments) >= frames.LARGE_BYTES:
            name = f"a{self.number}.{index}"
            try:
                frames.write_new(f"{self.folder}/{run_folder.DATA}/{name}", arguments)
            except OSError as error:
                future.key = f"{self.number}.{index}"
                outcome.set_exception(future, self._not_stored(error, len(arguments)))
                return
            arguments, flags = name.encode(), frames.IN_FILE
        call = Call(index, function, arguments, options, flags, self.number)
        future.key = f"{self.number}.{index}"
        future._exchange, future._call = self, call.key
        with self.lock:
            self.check_open()
            self.futures[call.key] = future
            self.buffer.append(call)
            self.idle.clear()
            self._begin_thread()
        self.wake()

    def check_open(self) -> None:
        """Raise if no further call can be submitted."""
        if self.broken is not None:
            raise type(self.broken)(*self.broken.args)
        if self.is_closing:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if _is_exiting:
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    def _begin_thread(self) -> None:
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, name="slurm-share-executor", daemon=True)
            self.thread.start()

    def begin_reading(self) -> None:
        """Begin the thread although nothing was submitted."""
        with self.lock:
            self._begin_thread()

    def read_results(self) -> None:
        """Read what there is, before the thread begins."""
        self._read()

    def wake(self) -> None:
        if not self.is_woken:
            self.is_woken = True
            try:
                os.write(self.wake_w, b"x")
            except OSError:
                pass  # full: it wakes anyway; closed: it has ended

    def cancel(self, futures: Iterable[Future[Any]]) -> None:
        """Cancel those of the calls that no node has begun."""
        wanted = {future._call for future in futures if future._call is not None}
        if os.getpid() != self.pid or not wanted:
            return
        with self.lock:
            taken = [call.key for call in self.buffer if call.key in wanted]
            if taken:
                self.buffer = deque(call for call in self.buffer if call.key not in wanted)
            written = {self.where.get(index) for client, index in wanted if client == self.number} - {None}
            start = self._start() if written else None
            unsent = len(taken)
            for number in sorted(number for number in written if number is not None):
                if start is None or not self._claim(start, number):
                    continue
                # The frame is ours now: those of its calls that go on are written again.
                for call in self._calls_of(number):
                    self.where.pop(call.index, None)
                    if call.key in wanted:
                        taken.append(call.key)
                    elif call.key in self.futures:
                        self.buffer.append(call)
            if len(taken) > unsent:
                try:
                    self.file.append(frames.frame(frames.CANCELLED, frames.pack_keys(taken[unsent:])))
                except OSError:
                    pass  # a later start of the job may run them; nobody will see the results
            left = [self.futures.pop(key, None) for key in taken]
            self._settled()
        for future in left:
            if future is not None:
                future._cancel()
        self.wake()

    def _claim(self, start: str, number: int) -> bool:
        try:
            if self._claims is None or self._claims_start != start:
                self._claims = run_folder.Claims(self.folder, start, f"+client.{self.number}")
                self._claims_start = start
            return self._claims.take(self.number, number)
        except OSError:
            return False

    _claims: run_folder.Claims | None = None
    _claims_start = ""

    def _start(self) -> str | None:
        """Return the name of the newest start of the job, or of its first one before that; None: not known."""
        if self.job.start:
            return self.job.start
        try:
            found = [(entry.stat().st_mtime_ns, entry.name) for entry in os.scandir(f"{self.folder}/claims")]
        except OSError:
            return None
        own = [one for one in found if one[1].startswith(f"{self.job.id}.")]
        return max(own)[1] if own else f"{self.job.id}.0" if self.job.id else None

    def _calls_of(self, number: int) -> list[Call]:
        offset = self.offsets[number]
        return frames.unpack_calls(frames.read_at(self.file.path, offset), self.number)

    def is_begun(self, future: Future[Any]) -> bool:
        """Return whether a node has claimed the call."""
        if future._call is None:
            return False
        with self.lock:
            number = self.where.get(future._call[1]) if future._call[0] == self.number else None
            start = self._start()
        if number is None or start is None:
            return False
        return os.path.lexists(f"{self.folder}/{run_folder.CLAIMS}/{start}/{self.number}.{number}")

    def resize(self, size: int) -> None:
        """Tell the dispatchers how many workers have calls."""
        with self.lock:
            self.check_open()
            self.resize_to = size
            self._begin_thread()
        self.wake()

    def close(self) -> None:
        """Submit nothing more; the run ends when its calls are done."""
        self.is_closing = True
        self.wake()

    def _settled(self) -> None:
        if not self.futures and not self.buffer:
            self.idle.set()

    # ---- The thread ----

    def _run(self) -> None:
        selector = selectors.DefaultSelector()
        events = links.FolderEvents()
        selector.register(self.wake_r, selectors.EVENT_READ)
        events.watch(f"{self.folder}/{run_folder.RESULTS}")
        if events.fd >= 0:
            selector.register(events.fd, selectors.EVENT_READ)
        delay, next_poll, next_beat, next_check = POLL_LEAST_S, 0.0, 0.0, time.monotonic() + CHECK_S
        try:
            while True:
                now = time.monotonic()
                timeout = max(0.0, min(next_poll if self.futures else now + BEAT_S, next_beat, next_check) - now)
                for key, _ in selector.select(timeout):
                    if key.fd == self.wake_r:
                        try:
                            os.read(self.wake_r, 64)
                        except BlockingIOError:
                            pass
                        self.is_woken = False
                    else:
                        events.clear()
                        next_poll = 0.0
                if self.buffer or self.resize_to is not None:
                    self._write()
                now = time.monotonic()
                if now >= next_poll and (self.futures or not next_poll):
                    if self._read():
                        delay, self.heard = POLL_LEAST_S, now
                    else:
                        delay = min(delay * 1.3, POLL_MOST_S)
                    next_poll = time.monotonic() + delay
                if now >= next_beat:
                    next_beat = now + BEAT_S
                    self.file.touch()
                if now >= next_check:
                    self._check()
                    next_check = time.monotonic() + CHECK_S
                if self.is_closing and not self.buffer and not self.has_closed:
                    self._close_file()
                if (self.is_closing and not self.futures and not self.buffer) or self.broken is not None:
                    break
        except BaseException as error:  # noqa: BLE001  (futures must not wait for a thread that has ended)
            self._break(RunEnded(f"the executor's thread ended: {type(error).__name__}: {error}"))
        finally:
            self._close_file()
            selector.close()
            events.close()
            self.job.ending()

    def _close_file(self) -> None:
        if self.has_closed:
            return
        self.has_closed = True
        try:
            with self.lock:
                self.file.append(frames.frame(frames.CLOSED, b""))
        except OSError:
            pass  # the dispatchers see that this process has ended
        self.file.close()

    def _write(self) -> None:
        """Write the calls that wait, in frames of a size that spreads them over the workers."""
        if self.resize_to is not None:
            size, self.resize_to = self.resize_to, None
            try:
                with self.lock:
                    self.file.append(frames.frame(frames.RESIZED, size.to_bytes(4, "little")))
            except OSError:
                pass  # the disk is full: the workers go on as they are
        with self.lock:
            calls = list(self.buffer)
            self.buffer.clear()
            if not calls:
                return
            workers = max(1, self.config.processes)
            at = 0
            parts: list[bytes] = []
            position = self.file.size
            numbers: list[tuple[int, list[Call]]] = []
            while at < len(calls):
                # Smaller frames towards the end, so that no node is left with many while others have none.
                some = calls[at : at + max(1, min(BATCH_MOST, (len(calls) - at) // (4 * workers)))]
                at += len(some)
                part = frames.frame(frames.CALLS, frames.pack_calls(some))
                parts.append(part)
                self.offsets.append(position)
                position += len(part)
                numbers.append((self.frames, some))
                self.frames += 1
            for number, some in numbers:
                for call in some:
                    self.where[call.index] = number
            try:
                self.file.append(b"".join(parts))
            except OSError as error:
                self.frames -= len(parts)
                del self.offsets[self.frames :]
                self._fail(calls, error)

    def _fail(self, calls: Sequence[Call], error: OSError) -> None:
        for call in calls:
            self.where.pop(call.index, None)
            future = self.futures.pop(call.key, None)
            if future is not None:
                outcome.set_exception(future, self._not_stored(error, len(call.arguments)))
        self._settled()

    def _not_stored(self, error: OSError, size: int) -> NotStored:
        return NotStored(
            f"the call ({size} bytes of arguments) could not be written into {self.folder}: {error.strerror}; "
            "it was not run: make room there and submit it again"
        )

    def _read(self) -> bool:
        """Read what dispatchers have written; return whether there was anything."""
        found = False
        folder = f"{self.folder}/{run_folder.RESULTS}"
        try:
            for name in os.listdir(folder):
                if name not in self.readers:
                    self.readers[name] = frames.Reader(f"{folder}/{name}")
        except FileNotFoundError:
            if not os.path.lexists(self.folder):
                self._break(RunEnded(f"{self.folder} was removed; the results of the calls that were left are lost"))
            return False
        except OSError:
            return False
        for name, reader in self.readers.items():
            try:
                for kind, content, _ in reader.read():
                    found = True
                    if kind == frames.STARTED:
                        self.ended.clear()  # a requeued job, or the next one
                    elif kind == frames.RESULTS:
                        for result in frames.unpack_results(content):
                            self._result(result)
                    elif kind == frames.BROKEN:
                        text = content.decode(errors="replace")
                        _base.LOGGER.critical("Exception in initializer:\n%s", text)  # as the pools of Python do
                        self._break(InitializerFailed(f"the initializer failed, so no call can run:\n{text}"))
                    elif kind == frames.ENDED:
                        self.ended[name] = content.decode(errors="replace")
            except OSError as error:
                if isinstance(error, frames.NotOwnFile):
                    sys.stderr.write(f"slurm-share: {reader.path} is not read: {error.strerror}\n")
        return found

    def _result(self, result: Result) -> None:
        with self.lock:
            future = self.futures.pop(result.key, None)
            if result.client == self.number:
                self.where.pop(result.index, None)
        if future is not None:
            outcome.settle(future, result, self.folder)
            del future
        if not self.futures:
            with self.lock:
                self._settled()

    def _check(self) -> None:
        """See whether the run still lives, if nothing was heard of it for some time."""
        if not self.futures:
            return
        if not os.path.lexists(self.folder):
            self._break(RunEnded(f"{self.folder} was removed; the results of the calls that were left are lost"))
            return
        now = time.monotonic()
        for name in list(self.readers):
            try:
                changed = os.stat(f"{self.folder}/{run_folder.RESULTS}/{name}").st_mtime_ns
            except OSError:
                continue
            if self.beats.get(name) != changed:
                self.beats[name] = changed
                self.heard = now
        why = self.job.ended(now - self.heard, is_told=bool(self.ended))
        if why is None:
            return
        self._read()
        if not self.futures:
            return
        if self.restarts and self.restart is not None:
            self.restarts -= 1
            self.job.forget()
            self.restart(self)
            return
        said = next(iter(self.ended.values()), "")
        text = f"{why} while {len(self.futures)} calls had no result"
        if said:
            text += f" (its workers were told to end by {said})"
        self._break(RunEnded(f"{text}; Executor.attach({str(Path(self.folder).parent)!r}) runs them in another job"))

    def _break(self, error: BaseException) -> None:
        """End all futures with an exception; nothing can be submitted any more."""
        with self.lock:
            if self.broken is None:
                self.broken = error
            left = list(self.futures.values())
            self.futures.clear()
            self.buffer.clear()
            self.where.clear()
        for future in left:
            outcome.set_exception(future, type(error)(*error.args))
        self.idle.set()

    def cancel_all(self) -> None:
        """Cancel what no node has begun."""
        with self.lock:
            futures = list(self.futures.values())
        self.cancel(futures)

    def join(self) -> None:
        """Wait until all calls have ended, and the workers of a local run too."""
        thread = self.thread
        if thread is threading.current_thread():
            return  # called by a future's callback: this thread itself has to go on
        if thread is not None:
            thread.join()
        elif thread is None and not self.has_closed:
            self._close_file()
            self.job.ending()
        self.job.wait()


_exchanges: weakref.WeakSet[Exchange] = weakref.WeakSet()
_is_exiting = False


def _at_exit() -> None:
    """Wait for all calls before the interpreter ends, as ProcessPoolExecutor does."""
    global _is_exiting
    _is_exiting = True
    for exchange in list(_exchanges):
        if exchange.pid == os.getpid():
            exchange.close()
    for exchange in list(_exchanges):
        if exchange.pid == os.getpid():
            exchange.join()


threading._register_atexit(_at_exit)  # type: ignore[attr-defined]

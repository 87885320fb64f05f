"""A worker of an executor: a task of the run, which never runs the user's functions itself.

It keeps one warm child that does (child.py), ends it after a call's time limit, and starts another. It has its calls
from its node's dispatcher, which is one of the workers (dispatcher.py). One thread, one selector: a fork is safe at any
time.

The run executes this file by its path, so that it works where slurm_share is only on the client's path.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from slurm_share.executor import worker

    sys.exit(worker.main(sys.argv[1:]))

import contextlib
import gc
import json
import re
import selectors
import shutil
import signal
import socket
import struct
import tempfile
import time
from collections import deque
from collections.abc import Mapping

from . import child, frames, links, run_folder
from .dispatcher import Dispatcher, Marks, options_of, process_start, try_lock
from .frames import Key, Result

GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL for a call that exceeded its time limit, and for a child that should end."""
CONFIG_S = 120.0
"""Seconds to wait for the executor's files, which the client writes after the submission."""
RECONNECT_S = 0.02
INIT_TRIES = 3
"""Times that a child may end before it is ready. Then its initializer counts as failed."""
LATE_S = 20.0
"""Seconds from the request to end until the worker ends with calls left: less than GRACE_S of the launcher
(triples/launcher/loop.py, 25 s), which then kills it."""
EXIT_LEFT = 75
"""EX_TEMPFAIL: calls are left. The launcher counts the worker as saved, so `llsub --resume` starts it again."""
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ENV_NODE, ENV_RANK, ENV_START = "SLURM_SHARE_EXECUTOR_NODE", "SLURM_SHARE_EXECUTOR_RANK", "SLURM_SHARE_EXECUTOR_START"
"""Set by a client that starts workers itself: private folder of the node, number of the worker, name of the start."""
_ENV_CAP = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
_MESSAGE = struct.Struct("<IQ")


class Worker:
    """One slot of the run."""

    def __init__(self, folder: str, config: run_folder.Config, node_folder: str, rank: int, start: str) -> None:
        self.folder, self.config = folder, config
        self.node_folder, self.rank, self.start = node_folder, rank, start
        name = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
        self.node = re.sub(r"[^A-Za-z0-9_-]", "-", name)
        self.selector = selectors.DefaultSelector()
        self.marks = Marks(node_folder, rank)
        self.dispatcher: Dispatcher | None = None
        self.link: links.Link | None = None
        self.next_connect = 0.0
        self.queue: deque[bytes] = deque()
        """Calls that have not begun, as they came."""
        self.running: frames.Call | None = None
        self.raw = b""
        self.unstored: deque[tuple[Key, bytes]] = deque()
        """Results that the dispatcher has not written down yet."""
        self.pid = 0
        self.sock: links.Link | None = None
        self.is_ready = False
        self.cap = ""
        self.never_ready = 0
        self.broken = b""
        """Why the initializer failed."""
        self.deadline: float | None = None
        """When the running call is told to end (monotonic clock, seconds)."""
        self.kill_at: float | None = None
        self.is_late = False
        self.began = 0.0
        self.exit_code: int | None = None
        self.stop_signal = 0
        self.stopped_at = 0.0
        self.progress = os.environ.get("LLSUB_PROGRESS", "")
        self.count = 0
        self.next_progress = 0.0
        ours, self.wake = socket.socketpair()
        for end in (ours, self.wake):
            end.setblocking(False)
        self.signals = ours
        self.selector.register(ours, selectors.EVENT_READ, self._on_signal)
        self.received: deque[int] = deque()
        for number in (*STOPS, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda number, frame: self.received.append(number))
        signal.set_wakeup_fd(self.wake.fileno(), warn_on_full_buffer=False)

    def say(self, text: str) -> None:
        """Write a line into the worker's log."""
        sys.stderr.write(f"executor: {text}\n")
        sys.stderr.flush()

    # ---- The loop ----

    def run(self) -> int:
        """Work until the dispatcher or a signal ends it; return the exit code."""
        self._start_child()
        while True:
            now = time.monotonic()
            timeout = 5.0
            if self.dispatcher is not None:
                timeout = min(timeout, self.dispatcher.turn())
            if self.link is None and self.exit_code is None:
                self._connect()
                timeout = RECONNECT_S if self.link is None else 0.0
            if self._is_over():
                break
            for due in (self.deadline, self.kill_at):
                if due is not None:
                    timeout = min(timeout, max(0.0, due - now))
            if self.exit_code is not None or self.stop_signal:
                timeout = min(timeout, 0.1)
            for key, mask in self.selector.select(timeout):
                key.data(mask)
            while self.received:
                self._handle(self.received.popleft())
            self._check_time()
            self._next()
        return self._finish()

    def _is_over(self) -> bool:
        if self.dispatcher is not None and self.dispatcher.others and not self._is_late_to_end():
            return False
        if self.stop_signal:
            return (self.running is None and not self.unstored) or self._is_late_to_end()
        return self.exit_code is not None and self.running is None and not self.unstored

    def _is_late_to_end(self) -> bool:
        """Return whether this worker was told to end so long ago that the launcher is about to kill it."""
        return bool(self.stopped_at) and time.monotonic() - self.stopped_at > LATE_S

    def _finish(self) -> int:
        self._end_child()
        if self.dispatcher is not None:
            self.dispatcher.close()
        self.marks.remove()
        if self.dispatcher is not None and os.environ.get(ENV_NODE):
            shutil.rmtree(self.node_folder, ignore_errors=True)  # made for this run alone, and its client may be gone
        if self.stop_signal:
            return EXIT_LEFT
        return self.exit_code or 0

    def _on_signal(self, mask: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self.signals.recv(4096)

    def _handle(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
        elif number in STOPS:
            if not self.stop_signal:
                self.stop_signal, self.stopped_at = number, time.monotonic()
                self.queue.clear()
                if self.dispatcher is not None:
                    self.dispatcher.stop(number)
            self._signal_child(number if self.running is not None else signal.SIGTERM)
        else:
            self._signal_child(number)

    # ---- The dispatcher ----

    def _connect(self) -> None:
        """Connect to the node's dispatcher; become it if there is none."""
        if self.dispatcher is None:
            try:
                lock = try_lock(self.node_folder)
            except FileNotFoundError:  # the last dispatcher has removed the folder: all is done
                self.exit_code = 0
                return
            if lock is not None:
                try:
                    self.dispatcher = Dispatcher(
                        self.selector, lock, self.node_folder, self.folder, self.node, self.start, self.say
                    )
                except OSError as error:
                    os.close(lock)
                    self.say(f"cannot use {self.folder}: {error}")
                    self.exit_code = 1
                    return
                if self.stop_signal:
                    self.dispatcher.stop(self.stop_signal)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path, fd = links.socket_path(self.node_folder)
            try:
                sock.connect(path)
            finally:
                if fd is not None:
                    os.close(fd)
        except OSError:
            sock.close()
            return
        self.link = link = links.Link(sock)
        self.selector.register(link, selectors.EVENT_READ, self._on_link)
        held = [key for key, _ in self.unstored]
        if self.running is not None:
            held.append(self.running.key)
        held += [_key(raw) for raw in self.queue]
        link.send(links.HELLO, json.dumps({"rank": self.rank, "pid": os.getpid(), "held": held}).encode())
        for _, content in self.unstored:
            link.send(links.DONE, content)
        if self.broken:
            link.send(links.BROKEN, self.broken)
        self._watch()

    def _on_link(self, mask: int) -> None:
        link = self.link
        if link is None:
            return
        if mask & selectors.EVENT_WRITE:
            link.flush()
        if mask & selectors.EVENT_READ:
            for kind, content in link.receive():
                if kind == links.WORK:
                    if not self.stop_signal:
                        self.queue.append(content)
                elif kind == links.STORED:
                    for _ in range(int.from_bytes(content, "little")):
                        self.unstored.popleft()
                elif kind == links.RETURN:
                    keys = [_key(raw) for raw in self.queue]
                    self.queue.clear()
                    link.send(links.RETURNED, frames.pack_keys(keys))
                elif kind == links.REST:
                    if self.running is None:
                        self._end_child()
                elif kind == links.END:
                    self.exit_code = content[0]
            if not link.is_open:
                self.selector.unregister(link)
                link.close()
                self.link = None
                return
        self._watch()

    def _watch(self) -> None:
        if self.link is not None and self.link.is_open:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.link.is_waiting else 0)
            if self.selector.get_key(self.link).events != wanted:
                self.selector.modify(self.link, wanted, self._on_link)

    def _done(self, key: Key, content: bytes) -> None:
        """Hand in a result."""
        self.unstored.append((key, content))
        self.running = None
        self.deadline = self.kill_at = None
        self.is_late = False
        self.count += 1
        if self.link is not None:
            self.link.send(links.DONE, content)
            self._watch()
        if self.progress and time.monotonic() >= self.next_progress:
            self.next_progress = time.monotonic() + 1.0
            try:
                with open(self.progress, "w") as file:
                    file.write(f"{self.count}\n")
            except OSError:
                self.progress = ""

    # ---- The child ----

    def _start_child(self) -> None:
        environment = {}
        if self.cap:
            environment = cap_variables(self.cap, os.environ)
        self.is_ready = not self.config.has_initializer
        try:
            self.pid, sock = child.fork(self.folder, self.config, environment, self._close_in_child)
        except OSError as error:
            self.say(f"cannot start a process: {error.strerror}")
            self.pid = 0
            return
        self.sock = links.Link(sock)
        self.selector.register(self.sock, selectors.EVENT_READ, self._on_child)

    def _close_in_child(self) -> None:
        self.selector.close()
        self.signals.close()
        self.wake.close()
        if self.link is not None:
            self.link.sock.close()
        if self.dispatcher is not None:
            self.dispatcher.release_in_child()

    def _next(self) -> None:
        """Begin the next call if the child is free."""
        if self.running is not None or not self.queue or self.stop_signal or self.broken:
            return
        cap = _cap(self.queue[0])
        slot_mib = slot_cap_mib(os.environ)
        if cap and slot_mib is not None and int(cap) > slot_mib:
            self._refuse(self.queue.popleft(), int(cap), slot_mib)
            self._next()
            return
        if cap != self.cap:
            self._end_child()
            self.cap = cap
        if not self.pid:
            self._start_child()
        if self.sock is None or not self.is_ready:
            return
        self.raw = self.queue.popleft()
        client = int.from_bytes(self.raw[:4], "little")
        (call,) = frames.unpack_calls(self.raw[4:], client)
        self.running = call
        limit_s = options_of(call).get("timeout") if call.options else None
        self.began = time.monotonic()
        self.deadline = None if limit_s is None else self.began + limit_s
        self.marks.begin(call.key)
        self.sock.send(links.CALL, self.raw)
        self._watch_child()

    def _refuse(self, raw: bytes, cap_mib: int, slot_mib: int) -> None:
        """Answer a call that wants more GPU memory than this worker has."""
        client, index = _key(raw)
        text = (
            f"gpu_mem={cap_mib}M is more than the {slot_mib} MiB of its worker on {self.node}: make the executor with "
            "fewer workers on a GPU, or with a larger share or gpu_mem"
        )
        self._done((client, index), frames.pack_result(Result(client, index, frames.REFUSED, 0.0, text.encode())))

    def _watch_child(self) -> None:
        if self.sock is not None and self.sock.is_open:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.sock.is_waiting else 0)
            if self.selector.get_key(self.sock).events != wanted:
                self.selector.modify(self.sock, wanted, self._on_child)

    def _on_child(self, mask: int) -> None:
        sock = self.sock
        if sock is None:
            return
        if mask & selectors.EVENT_WRITE:
            sock.flush()
        if mask & selectors.EVENT_READ:
            for kind, content in sock.receive():
                if kind == links.RESULT:
                    if self.running is not None and not self.is_late:
                        self._done(self.running.key, content)
                elif kind == links.READY:
                    self.is_ready = True
                    self.never_ready = 0
                elif kind == links.FAILED:
                    self._broke(content)
            if not sock.is_open:
                self._drop_sock()
                if self.running is not None:
                    self._signal_child(signal.SIGKILL)  # it closed the socket: nothing more can come of it
                self._reap()
                return
        self._watch_child()

    def _drop_sock(self) -> None:
        if self.sock is not None:
            self.selector.unregister(self.sock)
            self.sock.close()
            self.sock = None

    def _reap(self) -> None:
        """See whether the child has ended, and report the call that it ran."""
        if not self.pid:
            return
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            pid, status = self.pid, 0
        if not pid:
            return
        self.pid = 0  # before its last messages are read: at their end `_on_child` comes here again
        if self.sock is not None:
            self._on_child(selectors.EVENT_READ)  # what it sent before it ended
            if self.sock is not None:
                self._drop_sock()
        self._kill_group(pid)
        if self.running is not None:
            self._lost(status)
        elif not self.is_ready and self.exit_code is None and not self.stop_signal:
            self.never_ready += 1
            if self.never_ready >= INIT_TRIES:
                text = f"the worker's process ended {INIT_TRIES} times before the initializer was through: "
                self._broke((text + end_text(status)).encode())
        if self.exit_code is None and not self.stop_signal and not self.broken:
            self._start_child()

    def _broke(self, text: bytes) -> None:
        """Tell the dispatcher that the initializer failed; it ends all workers."""
        self.broken = text
        if self.link is not None:
            self.link.send(links.BROKEN, text)

    def _lost(self, status: int) -> None:
        call, seconds = self.running, time.monotonic() - self.began
        if call is None:
            return
        if self.is_late:
            limit_s = options_of(call).get("timeout", 0)
            kind, text = frames.TOO_LONG, f"it ran for longer than its {limit_s:g} s, and was ended"
        else:
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) in STOPS and not self.stop_signal:
                time.sleep(0.1)  # our own signal may come a moment later
                while self.received:
                    number = self.received.popleft()
                    if number in STOPS:
                        self._handle(number)
            kind, text = frames.LOST, f"its process ended while it ran: {end_text(status)}"
            if self.stop_signal:
                self.running = None
                self.deadline = self.kill_at = None
                return  # it runs again in the next job
        text = f"{text} (on {self.node})"
        result = Result(call.client, call.index, kind, seconds, text.encode(), 0, call.attempt)
        self._done(call.key, frames.pack_result(result))

    def _check_time(self) -> None:
        now = time.monotonic()
        if self.deadline is not None and now >= self.deadline:
            self.deadline = None
            self.is_late = True
            self.kill_at = now + GRACE_S
            self._signal_child(signal.SIGTERM)
        if self.kill_at is not None and now >= self.kill_at:
            self.kill_at = None
            self._signal_child(signal.SIGKILL)

    def _signal_child(self, number: int) -> None:
        if self.pid:
            for send in (os.killpg, os.kill):
                try:
                    send(self.pid, number)
                    return
                except OSError:
                    continue  # the child has not made its group yet

    def _kill_group(self, pid: int) -> None:
        """End what a child has left behind."""
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)

    def _end_child(self) -> None:
        """Let an idle child end by itself, then by force."""
        if not self.pid:
            return
        self._drop_sock()
        until = time.monotonic() + GRACE_S
        while time.monotonic() < until:
            try:
                if os.waitpid(self.pid, os.WNOHANG)[0]:
                    break
            except ChildProcessError:
                break
            time.sleep(0.002)
        else:
            self._signal_child(signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
        self._kill_group(self.pid)
        self.pid = 0


def end_text(status: int) -> str:
    """Return how a process ended, from its wait status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        return f"{name}{' (out of memory, or somebody sent it)' if number == signal.SIGKILL else ''}"
    return f"exit code {os.waitstatus_to_exitcode(status)}"


def cap_variables(cap: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that lower the memory cap of a worker's slot to `cap` (MiB)."""
    have = slot_cap_mib(environ)
    mib = int(cap) if have is None else min(int(cap), have)
    return {_ENV_CAP: f"0={mib}M"}


def slot_cap_mib(environ: Mapping[str, str]) -> int | None:
    """Return the memory cap of the worker's slot; None: it has none."""
    have = re.fullmatch(r"0=(\d+)M", environ.get(_ENV_CAP, ""))
    return None if have is None else int(have[1])


def _key(raw: bytes) -> Key:
    client, index = _MESSAGE.unpack_from(raw)
    return client, index


def _cap(raw: bytes) -> str:
    client = int.from_bytes(raw[:4], "little")
    (call,) = frames.unpack_calls(raw[4:], client)
    return str(options_of(call).get("gpu_mem", "")) if call.options else ""


def private_folder() -> str:
    """Return the folder in which the workers of this node find each other. Raises OSError."""
    if folder := os.environ.get(ENV_NODE):
        return folder
    if progress := os.environ.get("LLSUB_PROGRESS"):
        return os.path.dirname(progress)
    job = os.environ.get("SLURM_JOB_ID", "0")
    folder = f"{tempfile.gettempdir()}/slurm-share-executor-{os.geteuid()}-{job}"
    os.makedirs(folder, 0o700, exist_ok=True)
    if not run_folder.is_own_folder(folder):
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder


def start_name() -> str:
    """Return the name of this start of the job: claims of an earlier start do not count."""
    if start := os.environ.get(ENV_START):
        return start
    if job := os.environ.get("SLURM_JOB_ID"):
        return f"{job}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    return os.path.basename(os.path.dirname(private_folder()))


def main(arguments: list[str]) -> int:
    """Run a worker. `arguments`: the folder of the executor, if not that of the run of llsub in the environment."""
    folder = arguments[0] if arguments else f"{os.environ.get('LLSUB_DIR', '.')}/{run_folder.NAME}"
    until = time.monotonic() + CONFIG_S
    while True:
        try:
            config = run_folder.read_config(folder)
            break
        except FileNotFoundError:
            if time.monotonic() > until:
                sys.stderr.write(f"executor: there is no {folder}/{run_folder.CONFIG}: its client has ended early\n")
                return 1
            time.sleep(0.05)
        except (OSError, ValueError) as error:
            sys.stderr.write(f"executor: {folder} cannot be used: {error}\n")
            return 1
    try:
        child.check_cloudpickle()  # children inherit the module
    except ImportError as error:
        sys.stderr.write(f"executor: {error}\n")
        return 1
    rank = int(os.environ.get(ENV_RANK) or os.environ.get("LLSUB_RANK") or 0)
    try:
        worker = Worker(folder, config, private_folder(), rank, start_name())
    except OSError as error:
        if isinstance(error, FileNotFoundError) and os.environ.get(ENV_NODE):
            return 0  # the last dispatcher has removed it: all is done
        sys.stderr.write(f"executor: the node's private folder cannot be used: {error}\n")
        return 1
    gc.freeze()  # children share these pages
    return worker.run()


__all__ = ["main", "process_start"]

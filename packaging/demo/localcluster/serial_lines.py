"""Programs over a serial line: one side asks for a program, the other runs it and sends back what it writes.

A message is a letter for its kind, the length of its data in 4 bytes, and the data. A line carries one program at a
time. `serve` is the side inside a user-mode Linux kernel, `run` the side outside.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import socket
import struct
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

READY, START, INPUT, SIGNAL, SIZE, OUTPUT, ERRORS, END = b"R", b"S", b"I", b"K", b"W", b"O", b"E", b"X"
"""Kinds of messages. READY: the line is served. START: JSON of argv, env, cwd, terminal. INPUT without data: its end.
SIGNAL: the number, for the program's process group. SIZE: rows and columns of the terminal. END: the exit code."""
_HEAD = struct.Struct(">cI")
_PIECE = 16384
_FORWARDED = (signal.SIGINT, signal.SIGQUIT)


class LineClosed(Exception):
    """The other side has ended."""


def message(kind: bytes, data: bytes = b"") -> bytes:
    """Return a message as it goes over the line."""
    return _HEAD.pack(kind, len(data)) + data


class SerialLine:
    """One side of a serial line, or of a socket in its place."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._sending = threading.Lock()

    def send(self, kind: bytes, data: bytes = b"") -> None:
        """Send one message, whole. Raises LineClosed."""
        rest = memoryview(message(kind, data))
        with self._sending:
            try:
                while rest:
                    rest = rest[os.write(self.fd, rest) :]
            except OSError:
                raise LineClosed from None

    def receive(self) -> tuple[bytes, bytes]:
        """Wait for one message; return its kind and data. Raises LineClosed."""
        kind, length = _HEAD.unpack(self._exactly(_HEAD.size))
        return kind, self._exactly(length)

    def _exactly(self, wanted: int) -> bytes:
        found = bytearray()
        while len(found) < wanted:
            try:
                piece = os.read(self.fd, wanted - len(found))
            except OSError:
                piece = b""
            if not piece:
                raise LineClosed
            found += piece
        return bytes(found)


# ---- inside ---------------------------------------------------------------------------------------------------------


def serve(lines: int) -> None:
    """Serve the serial lines /dev/ttyS0 and following, one program at a time on each, for ever."""
    threads = []
    for number in range(lines):
        fd = os.open(f"/dev/ttyS{number}", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        tty.setraw(fd)
        threads.append(threading.Thread(target=serve_line, args=(SerialLine(fd),)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def serve_line(line: SerialLine) -> None:
    """Serve one line until it is closed: LineClosed."""
    line.send(READY)
    while True:
        kind, data = line.receive()
        if kind == START:  # anything else was sent to a program that has ended
            code = _serve_program(line, json.loads(data))
            os.sync()  # the kernel may be killed as soon as its program has ended
            line.send(END, str(code).encode())


def _serve_program(line: SerialLine, request: dict) -> int:  # type: ignore[type-arg]
    """Run one program to its end and return its exit code."""
    pid, stdin, outputs = _start(**request)
    pidfd = os.pidfd_open(pid)
    kinds = {fd: kind for kind, fd in outputs.items()}
    pending, closes = bytearray(), False
    while True:
        asked = [] if len(pending) > _PIECE else [line.fd]
        readable, writable, _ = select.select([*asked, pidfd, *kinds], [stdin] if pending else [], [])
        for fd in [fd for fd in readable if fd in kinds]:
            if not _pass_on(fd, line, kinds[fd]):
                del kinds[fd]
        if writable:
            try:
                del pending[: os.write(stdin, pending)]
            except OSError:  # it reads no more
                pending.clear()
        if line.fd in readable:
            kind, data = line.receive()
            if kind == SIGNAL:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, int(data))
            elif kind == SIZE:
                _set_size(stdin, *map(int, data.split()))
            elif kind == INPUT:
                pending += data
                closes = closes or not data
        elif pidfd in readable and not any(fd in readable for fd in kinds):
            break  # ended, and all it wrote is sent; others that have its streams do not count
        if closes and not pending and ERRORS in outputs:  # a terminal stays open
            os.close(stdin)
            stdin, closes = os.open(os.devnull, os.O_WRONLY), False
    _, status = os.waitpid(pid, 0)
    for fd in {stdin, pidfd, *outputs.values()}:
        os.close(fd)
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _start(
    argv: Sequence[str], env: Mapping[str, str], cwd: str, terminal: Sequence[int] | None
) -> tuple[int, int, dict[bytes, int]]:
    """Start a program in a session of its own; return its pid, its stdin and its outputs, as we have them."""
    if terminal:
        ours, theirs = pty.openpty()
        _set_size(ours, *terminal)
        streams, kept = [theirs] * 3, {OUTPUT: ours}
        stdin = ours
    else:
        (read_in, stdin), (out, write_out), (errors, write_errors) = os.pipe(), os.pipe(), os.pipe()
        streams, kept = [read_in, write_out, write_errors], {OUTPUT: out, ERRORS: errors}
    pid = os.fork()
    if pid == 0:
        _become(argv, env, cwd, streams, controls=bool(terminal))
    for fd in set(streams):
        os.close(fd)
    os.set_blocking(stdin, False)  # a program may wait for us to read before it reads on
    return pid, stdin, kept


def _become(argv: Sequence[str], env: Mapping[str, str], cwd: str, streams: Sequence[int], *, controls: bool) -> None:
    try:
        os.setsid()
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)  # a shell has what it starts with & ignore Ctrl-C
        for target, fd in enumerate(streams):
            os.dup2(fd, target)
        if controls:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.chdir(cwd)
        os.execvpe(argv[0], list(argv), dict(env))
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _pass_on(fd: int, line: SerialLine, kind: bytes) -> bool:
    """Send what a program wrote; return False at its end."""
    try:
        piece = os.read(fd, _PIECE)
    except OSError:  # EIO: a terminal that nobody has open any more
        piece = b""
    if piece:
        line.send(kind, piece)
    return bool(piece)


def _set_size(fd: int, rows: int, columns: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


# ---- outside --------------------------------------------------------------------------------------------------------


def run(line: SerialLine, argv: Sequence[str], *, env: Mapping[str, str], cwd: str) -> int:
    """Run a program at the other side of the line with our streams, signals and terminal; return its exit code.

    SIGINT and SIGQUIT go to the program; a second one raises KeyboardInterrupt. Raises LineClosed.
    """
    terminal = os.isatty(0) and os.isatty(1)
    size = os.get_terminal_size(1) if terminal else None
    request = {"argv": list(argv), "env": dict(env), "cwd": cwd, "terminal": size and [size.lines, size.columns]}
    line.send(START, json.dumps(request).encode())
    threading.Thread(target=_send_input, args=(line,), daemon=True).start()
    with _signals_go_to(line), _raw_terminal(terminal):
        while True:
            kind, data = line.receive()
            if kind == END:
                return int(data)
            with contextlib.suppress(BrokenPipeError):
                _write_all(2 if kind == ERRORS else 1, data)


def relay(client: socket.socket, line: SerialLine) -> None:
    """Pass messages between a client and a line until the program has ended; a client that leaves ends it.

    Raises LineClosed if the line ends.
    """
    theirs = SerialLine(client.fileno())
    try:
        request = theirs.receive()
    except LineClosed:
        return

    def to_line() -> None:
        with contextlib.suppress(LineClosed):
            try:
                while True:
                    line.send(*theirs.receive())
            except LineClosed:
                for number in (signal.SIGHUP, signal.SIGKILL):
                    line.send(SIGNAL, str(int(number)).encode())

    line.send(*request)
    sender = threading.Thread(target=to_line, daemon=True)
    sender.start()
    kind = b""
    while kind != END:
        kind, data = line.receive()
        with contextlib.suppress(LineClosed):
            theirs.send(kind, data)
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)  # ends the sender
    sender.join()


def _send_input(line: SerialLine) -> None:
    with contextlib.suppress(LineClosed):
        while True:
            try:
                piece = os.read(0, _PIECE)
            except OSError:
                piece = b""
            line.send(INPUT, piece)
            if not piece:
                return


@contextlib.contextmanager
def _signals_go_to(line: SerialLine) -> Iterator[None]:
    """Send our signals to the program; restore the handlers at the end."""
    counted: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        if counted:
            raise KeyboardInterrupt
        counted.append(number)
        line.send(SIGNAL, str(number).encode())

    def resize(_number: int, _frame: FrameType | None) -> None:
        size = os.get_terminal_size(1)
        line.send(SIZE, f"{size.lines} {size.columns}".encode())

    before: dict[signal.Signals, Any] = {}
    for number in _FORWARDED:
        before[number] = signal.signal(number, forward)
    if os.isatty(1):
        before[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, resize)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _raw_terminal(wanted: bool) -> Iterator[None]:
    """Send every key to the program as it is pressed, Ctrl-C included."""
    if not wanted:
        yield
        return
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        sys.stdout.flush()

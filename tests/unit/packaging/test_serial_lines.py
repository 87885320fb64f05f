"""Programs over a serial line, with a socket in the line's place."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from localcluster import serial_lines


@pytest.fixture
def line() -> Iterator[serial_lines.SerialLine]:
    """Yield the outside of a line that is served."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with pytest.raises(serial_lines.LineClosed):
            serial_lines.serve_line(serial_lines.SerialLine(theirs.fileno()))

    server = threading.Thread(target=serve)
    server.start()
    outside = serial_lines.SerialLine(ours.fileno())
    assert outside.receive() == (serial_lines.READY, b"")
    yield outside
    ours.close()
    server.join()
    theirs.close()


def start(line: serial_lines.SerialLine, *argv: str, terminal: tuple[int, int] | None = None) -> None:
    request = {"argv": argv, "env": dict(os.environ), "cwd": "/", "terminal": terminal}
    line.send(serial_lines.START, json.dumps(request).encode())


def rest(line: serial_lines.SerialLine) -> tuple[bytes, bytes, int]:
    """Return what a program writes to stdout and stderr until its end, and its exit code."""
    said = {serial_lines.OUTPUT: b"", serial_lines.ERRORS: b""}
    while True:
        kind, data = line.receive()
        if kind == serial_lines.END:
            return said[serial_lines.OUTPUT], said[serial_lines.ERRORS], int(data)
        said[kind] += data


def test_output_and_exit_code_come_back_and_the_line_can_be_used_again(line: serial_lines.SerialLine) -> None:
    for code in (0, 7):
        start(line, "/bin/sh", "-c", f"echo out; echo err >&2; exit {code}")
        assert rest(line) == (b"out\n", b"err\n", code)


def test_a_program_that_is_not_there_has_the_exit_code_of_a_shell(line: serial_lines.SerialLine) -> None:
    start(line, "no-such-program")
    assert rest(line) == (b"", b"no-such-program: No such file or directory\n", 127)


def test_input_may_be_larger_than_a_pipe_holds(line: serial_lines.SerialLine) -> None:
    start(line, "/bin/cat")
    whole = os.urandom(400_000)
    pieces = [whole[at : at + 10_000] for at in range(0, len(whole), 10_000)]

    def send() -> None:
        for piece in [*pieces, b""]:
            line.send(serial_lines.INPUT, piece)

    sender = threading.Thread(target=send)
    sender.start()
    assert rest(line) == (whole, b"", 0)
    sender.join()


def test_a_signal_ends_the_program_even_where_the_server_ignores_it(line: serial_lines.SerialLine) -> None:
    start(line, "/bin/sh", "-c", "echo up; exec sleep 600")
    assert line.receive() == (serial_lines.OUTPUT, b"up\n")
    line.send(serial_lines.SIGNAL, str(int(signal.SIGINT)).encode())
    assert rest(line) == (b"", b"", 128 + signal.SIGINT)


def test_a_program_that_left_a_process_behind_has_ended(line: serial_lines.SerialLine) -> None:
    start(line, "/bin/sh", "-c", "sleep 600 & echo $!")
    said, _, code = rest(line)
    os.kill(int(said), signal.SIGKILL)
    assert code == 0


def test_a_terminal_has_the_size_that_was_asked_for(line: serial_lines.SerialLine) -> None:
    start(line, "/bin/sh", "-c", "stty size; read word; stty size", terminal=(30, 90))
    assert line.receive() == (serial_lines.OUTPUT, b"30 90\r\n")
    line.send(serial_lines.SIZE, b"40 100")
    line.send(serial_lines.INPUT, b"\n")
    said, _, code = rest(line)
    assert said.endswith(b"40 100\r\n")
    assert code == 0


def test_a_client_that_leaves_ends_its_program(line: serial_lines.SerialLine) -> None:
    client, server = socket.socketpair()
    relay = threading.Thread(target=serial_lines.relay, args=(server, line))
    relay.start()
    theirs = serial_lines.SerialLine(client.fileno())
    start(theirs, "/bin/sh", "-c", "echo $$; exec sleep 600")
    _, pid = theirs.receive()
    client.close()
    relay.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
    server.close()
    start(line, "/bin/true")
    assert rest(line)[2] == 0

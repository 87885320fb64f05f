"""SIMULATED MPS, the server: registers itself on its GPUs and holds its clients' connections. See simmps.py."""

from __future__ import annotations

import _socket
import array
import os
import select
import signal
import time

from simgpu import NO_MPS, Context, SimulationError
from simmps_common import LINK_FD, PARTITIONED_FAULTS, driver, fault, in_fault, log_line, send

SERVER_MEMORY_BYTES = 32 << 20
"""Memory that a server holds on each GPU: a simulated figure above 0. A real one has not been measured."""

FAULT_CHECK_MS = 200


class Server:
    def __init__(self, link: _socket.socket, log: int | None) -> None:
        self.link: _socket.socket | None = link
        self.log_file = log
        self.clients: dict[int, tuple[int, _socket.socket]] = {}
        """File descriptor -> (PID, connection)."""
        self.partitions: dict[int, str] = {}
        """File descriptor -> the client's static partition, where a fault stays in its partition."""
        self.faulty: set[int] = set()
        """Clients ended by a fault that are still there. No new client of theirs is accepted until they are gone."""
        self.gpus: list[str] = []

    def log(self, text: str) -> None:
        log_line(self.log_file, "Server", text)

    def say(self, text: str) -> None:
        if self.link is not None:
            send(self.link, text.encode())

    def run(self) -> int:
        """Serve until EXIT. A server whose daemon was killed stays, as the worst case for clean-up."""
        while True:
            poll = select.poll()
            for fd in [*self.clients, *([] if self.link is None else [self.link.fileno()])]:
                poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll(FAULT_CHECK_MS if self.clients else None):
                if self.link is not None and fd == self.link.fileno():
                    if self._hear_daemon():
                        return 0
                elif fd in self.clients:
                    self._hear_client(fd)
            if self.clients and in_fault(self.gpus):
                self.log("Fatal exception in a client; all clients fail")
                for fd in list(self.clients):
                    self._drop(fd, "CUDA_ERROR_LAUNCH_FAILED")
            self._end_partitions()

    def _end_partitions(self) -> None:
        """End the clients of the partitions that the fault file names."""
        if not self.partitions:
            return
        named = (fault("mps_fault") or "").split()
        for fd, partition in list(self.partitions.items()):
            if partition in named:
                self.log(f"Fatal exception in partition {partition}; its clients fail")
                self._drop(fd, "CUDA_ERROR_LAUNCH_FAILED")

    def _hear_client(self, fd: int) -> None:
        """Read a client's message: it reports a fault that it committed; anything else is its end."""
        try:
            text = self.clients[fd][1].recv(4096, _socket.MSG_DONTWAIT)
        except OSError:
            text = b""
        if text.startswith(b"SIMGPU_FAULT"):
            self._spread_fault(fd)
        else:
            self._drop(fd)

    def _spread_fault(self, culprit: int) -> None:
        """End all clients after the fault of one, that one first (NVIDIA's manual of MPS, "Error Containment"); with
        static partitions, from driver 610 on, those of its partition."""
        where = self.partitions.get(culprit)
        self.log(f"Fatal exception in client {self.clients[culprit][0]}; all clients fail")
        hit = {fd for fd in self.clients if where is None or self.partitions.get(fd) == where}
        self.faulty |= hit
        self.say(f"FAULT {where or ''}")
        for fd in hit - {culprit}:
            send(self.clients[fd][1], b"SIMGPU_ERROR CUDA_ERROR_LAUNCH_FAILED\n")

    def _drop(self, fd: int, error: str | None = None) -> None:
        pid, line = self.clients.pop(fd)
        if error is not None:
            send(line, f"SIMGPU_ERROR {error}\n".encode())
        line.close()
        where = self.partitions.pop(fd, None)
        self.say(f"GONE {pid}")
        if fd in self.faulty:
            self.faulty.discard(fd)
            if not any(self.partitions.get(other) == where for other in self.faulty):
                self.say(f"CLEAR {where or ''}")

    def _hear_daemon(self) -> bool:
        """Read the daemon's messages; return True if the server has to end."""
        assert self.link is not None
        size = array.array("i").itemsize
        try:
            text, rights, _, _ = self.link.recvmsg(65536, _socket.CMSG_SPACE(size))
        except OSError:
            text, rights = b"", []
        words = text.decode().split(" ", 2)
        if not text:
            self.log("The control daemon is gone")
            self.link.close()
            self.link = None
        elif words[0] == "CLIENT":
            fds = array.array("i", rights[0][2][:size])
            line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, fds[0])
            self.clients[fds[0]] = int(words[1]), line
            values = dict(word.split("=", 1) for word in words[2].split() if "=" in word)
            where = values.get("partition") if driver().release >= PARTITIONED_FAULTS else None
            is_late = any(self.partitions.get(fd) == where for fd in self.faulty)
            if where is not None:
                self.partitions[fds[0]] = where
            if is_late:  # the daemon did not know of the fault yet
                self._drop(fds[0], "CUDA_ERROR_MPS_SERVER_NOT_READY")
            else:
                send(line, words[2].encode())
                self.log(f"New client {words[1]} connected")
        elif words[0] == "TERMINATE":
            for fd, (pid, _) in list(self.clients.items()):
                if pid == int(words[1]):
                    self._drop(fd, "CUDA_ERROR_MPS_CLIENT_TERMINATED")
        return words[0] == "EXIT"


def register() -> list[Context]:
    """Register this process on every GPU that the daemon sees. It is no client of its own daemon."""
    environ = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": NO_MPS}
    contexts = [Context(environ, 0)]
    for ordinal in range(1, contexts[0].visible_count):
        contexts.append(Context(environ, ordinal))
    for context in contexts:
        context.allocate(SERVER_MEMORY_BYTES)
    return contexts


def open_log() -> int | None:
    folder = os.environ.get("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps")
    try:
        return os.open(f"{folder}/server.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        return None


def main() -> int:
    if fault("mps_stubborn") is not None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.set_inheritable(LINK_FD, False)
    server = Server(_socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, LINK_FD), open_log())
    server.log("SIMULATED MPS server: Startup")
    time.sleep(float(fault("mps_slow") or 0))
    try:
        if fault("mps_fail") is not None:
            raise SimulationError("no CUDA-capable device is detected")
        contexts = register()
    except SimulationError as error:
        server.log(f"Driver initialization failed with: {error}")
        server.say("FAILED")
        return 1
    server.gpus = [context.gpu.uuid for context in contexts]
    server.say(f"READY {','.join(server.gpus)}")
    server.log("Active")
    try:
        return server.run()
    finally:
        for context in contexts:
            context.close()

"""SIMULATED MPS, the control daemon: its sockets, its servers, and the clients passed on to them.

What both protocols have in common. Its start is in simmps_start.py, what front ends may ask in simmps_v2.py and
simmps_v3.py, static partitions in simmps_partitions.py, the server in simmps_server.py. simmps_common.py lists the
faults and the choices that a test can ask for.

The behaviour is that recorded from the control programs of drivers 535 and 550 (file modes, what a killed daemon
leaves). The behaviour of servers with clients could not be recorded without a GPU and follows NVIDIA's manual
(docs.nvidia.com/deploy/mps): 48 clients, 60 from driver 590 on; from 610 on a fault in a static partition ends the
clients of that partition only.

One client's own fault is `simgpu-task --fault SECONDS`: it ends the other clients of its server (of its partition),
which is in FAULT until all of them have gone.

Daemon and server talk over a socket pair, one message each: CLIENT, TERMINATE and EXIT to the server, READY, FAILED,
GONE, FAULT and CLEAR back. CLIENT passes the client's own connection, which the server owns from then on and which ends
with it.
"""

# ruff: noqa: PTH101  (see nvidia-cuda-mps-control)
from __future__ import annotations

import _socket
import os
import select
import struct

from simmps_common import (
    LINK_FD,
    PARTITIONED_FAULTS,
    driver,
    fault,
    in_fault,
    log_line,
    peer,
    remove,
    send,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from simmps_partitions import Partition, Partitions

SERVER_PROGRAM = "nvidia-cuda-mps-server"
HELLO = b"SIMMPS_UI"
"""First message of a front end; with `?` after it, of one that wants to hear the daemon's protocol."""
SUN_PATH = 107


class Client:
    """One client, waiting for its server or connected to it."""

    def __init__(self, line: _socket.socket, route: object, partition: Partition | None = None) -> None:
        self.line = line
        self.pid, self.uid, self.gid = peer(line)
        self.route = route
        """Where it belongs (protocol 3: its namespace)."""
        self.partition = partition
        self.asked = ""
        """Partition that its environment names, where that is looked up later."""


class Server:
    """One server process, as the daemon knows it."""

    def __init__(self, pid: int, uid: int, link: _socket.socket) -> None:
        self.pid = pid
        self.uid = uid
        self.link = link
        self.gpus: list[str] = []
        self.clients: dict[int, Client] = {}
        """By PID."""
        self.ready = False
        self.has_fault = False
        """A client's fault has ended its clients, and some of them are still there."""
        self.faulty: set[str] = set()
        """Static partitions of which the same is true, where a fault stays in its partition."""
        self.retiring = False
        """The server ends as soon as its last client has left."""

    def is_in_fault(self) -> bool:
        return self.has_fault or in_fault(self.gpus)

    def retire(self) -> None:
        self.retiring = True
        if not self.clients:
            self.end()

    def end(self) -> None:
        send(self.link, b"EXIT")


class Daemon:
    """The common part of both protocols; a subclass reads the front ends' commands and chooses a client's server."""

    def __init__(self, pipe: str, log: int | None, partitions: Partitions) -> None:
        self.pipe = pipe
        self.log_file = log
        self.owner = os.getuid()
        self.driver = driver()
        self.style = self.driver.release
        self.partitions = partitions
        self.listening: dict[_socket.socket, object] = {}
        """Socket -> where its clients belong (Client.route); None: the daemon's own two sockets."""
        self.strangers: dict[_socket.socket, object] = {}
        """Connections whose first message has not come yet, with the same."""
        self.front_ends: list[_socket.socket] = []
        self.servers: dict[int, Server] = {}
        """By PID."""
        self.waiting: list[Client] = []
        self.commands = 0

    def log(self, text: str) -> None:
        log_line(self.log_file, "Control", text)

    def read_environment(self) -> None:
        """Take defaults from the environment."""

    def hear_front_end(self, line: _socket.socket, text: bytes) -> None:
        """Answer a front end's message; empty: it is gone."""
        raise NotImplementedError

    def meet_front_end(self, line: _socket.socket) -> bool:
        """Return whether one more front end is served."""
        raise NotImplementedError

    def admit(self, line: _socket.socket, route: object, partition: str) -> None:
        """Refuse a client or let it wait. partition: what it names in its environment."""
        raise NotImplementedError

    def serve_waiting(self) -> None:
        """Start or choose servers for waiting clients."""
        raise NotImplementedError

    def answer(self, server: Server, client: Client) -> str:
        """Return what a client is told of its limits (simgpu.mps_connection), after the server and its GPUs."""
        raise NotImplementedError

    def note_end(self, server: Server) -> None:
        """Take note of a server that ended."""

    def timeout_ms(self) -> float | None:
        """Return how long to wait for a message; None: until there is one."""
        return None

    def finish(self) -> int | None:
        """Return the daemon's exit code if it is to end now."""
        return None

    protocol = 2

    # ---- Sockets ----

    def listen(self, umask: int) -> bool:
        """Open the two sockets and the fifo; False, silently, if a path is too long for a socket."""
        if len(os.fsencode(f"{self.pipe}/control_privileged")) >= SUN_PATH:
            return False
        for name, mode in (("control_privileged", 0o755 & ~umask), ("control", 0o666)):
            self.listening[listening_socket(f"{self.pipe}/{name}", mode)] = None
        if self.log_file is not None:
            make_fifo(f"{self.pipe}/log")
        else:
            remove(f"{self.pipe}/log")
        if self.style >= 550:
            remove(self.pid_file)
            fd = os.open(self.pid_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(fd, 0o666)
            os.write(fd, str(os.getpid()).encode())
            os.close(fd)
        return True

    @property
    def pid_file(self) -> str:
        return f"{self.pipe}/nvidia-cuda-mps-control.pid"

    # ---- The loop ----

    def run(self) -> int:
        while True:
            poll = select.poll()
            lines = {line.fileno(): line for line in self._watched()}
            for number in lines:
                poll.register(number, select.POLLIN)
            self.watch(poll)
            for number, _ in poll.poll(self.timeout_ms()):
                if number not in lines:
                    self.hear_other(number)
                elif lines[number].fileno() == number:  # not closed by an earlier event of this round
                    self._hear(lines[number])
            self.serve_waiting()
            code = self.finish()
            if code is not None:
                return code

    def watch(self, poll: select.poll) -> None:
        """Register more files."""

    def hear_other(self, number: int) -> None:
        """Read what `watch` registered."""

    def _watched(self) -> list[_socket.socket]:
        links = [server.link for server in self.servers.values()]
        return [*self.listening, *self.strangers, *links, *(one.line for one in self.waiting), *self.front_ends]

    def _hear(self, line: _socket.socket) -> None:
        if line in self.listening:
            self._accept(line)
            return
        if line in [server.link for server in self.servers.values()]:
            self.hear_servers()
            return
        try:
            text = line.recv(65536)
        except OSError:
            text = b""
        if line in self.front_ends:
            self.hear_front_end(line, text)
        elif line in self.strangers:
            self._meet(line, self.strangers.pop(line), text)
        else:  # a waiting client sends nothing: this is its end
            self.waiting = [one for one in self.waiting if one.line is not line]
            line.close()

    def _accept(self, line: _socket.socket) -> None:
        fd, _ = line._accept()  # type: ignore[attr-defined]
        self.strangers[_socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, fd)] = self.listening[line]
        self.log("Accepting connection...")

    def accept_all(self, line: _socket.socket) -> None:
        """Accept the connections that wait at a socket which is about to be closed; closing it would reset them."""
        line.setblocking(False)
        try:
            while True:
                self._accept(line)
        except OSError:
            pass  # there is no further one

    def _meet(self, line: _socket.socket, route: object, text: bytes) -> None:
        if text.startswith(b"SIMGPU_CLIENT "):
            words = text.decode(errors="replace").split()
            pid, uid, _ = peer(line)
            self.log(f"NEW CLIENT {pid} from user {uid}: Server is not ready, push client to pending list")
            self.admit(line, route, words[2].removeprefix("partition=") if len(words) > 2 else "")
        elif text.startswith(HELLO) and route is None and self.meet_front_end(line):
            self.front_ends.append(line)
            self.log("NEW UI")
            if text != HELLO:
                send(line, str(self.protocol).encode())
        else:
            line.close()

    def is_hanging(self, words: list[str]) -> bool:
        """Return whether a test wants no answer to this command."""
        hanging = fault("mps_hang")
        return hanging is not None and (not hanging or words[:1] == hanging.split()[:1])

    def is_lost(self) -> bool:
        """Count a command; return whether a test wants its answer to be lost."""
        self.commands += 1
        every = fault("mps_lose")
        return bool(every) and self.commands % int(every or "0") == 0

    # ---- Clients ----

    def refuse(self, line: _socket.socket, error: str) -> None:
        send(line, f"SIMGPU_ERROR {error}\n".encode())
        line.close()

    def hand_over(self, server: Server, client: Client) -> None:
        partition = client.partition
        if server.is_in_fault() and (partition is None or not self._is_sound(server, partition)):
            self.refuse(client.line, "CUDA_ERROR_MPS_SERVER_NOT_READY")
            return
        if len(server.clients) >= self.driver.mps_clients:
            self.refuse(client.line, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED")
            return
        own = "" if partition is None else f" partition={partition.name} sms={partition.sms}"
        told = f"SIMGPU_SERVER pid={server.pid} gpus={','.join(server.gpus)} {self.answer(server, client)}{own}"
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("i", client.line.fileno()))]
        try:
            server.link.sendmsg([f"CLIENT {client.pid} {told}\n".encode()], rights)
        except OSError:
            self.refuse(client.line, "CUDA_ERROR_MPS_CONNECTION_FAILED")
            return
        server.clients[client.pid] = client
        client.line.close()

    def _is_sound(self, server: Server, partition: Partition) -> bool:
        """Return whether a partition still takes clients while its server is in FAULT."""
        if self.style < PARTITIONED_FAULTS or in_fault(server.gpus):
            return False
        return partition.name not in server.faulty and partition.name not in (fault("mps_fault") or "").split()

    def partitions_in_use(self) -> set[str]:
        clients = [client for server in self.servers.values() for client in server.clients.values()]
        return {client.partition.name for client in clients if client.partition is not None}

    # ---- Servers ----

    def start_server_process(self, uid: int, gid: int, environ: Mapping[str, str] | None = None) -> Server:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        program = find_program(SERVER_PROGRAM)
        pid = os.fork()
        if pid == 0:
            try:
                if os.getuid() == 0 and uid != 0:
                    os.setgroups([])
                    os.setgid(gid)
                    os.setuid(uid)
                os.dup2(theirs.fileno(), LINK_FD)
                os.set_inheritable(LINK_FD, True)
                os.execve(program, [program], {**os.environ, **(environ or {})})
            finally:
                os._exit(1)
        theirs.close()
        self.servers[pid] = Server(pid, uid, ours)
        self.log(f"Starting new server {pid} for user {uid}")
        return self.servers[pid]

    def hear_servers(self) -> None:
        """Read all messages of the servers."""
        for server in list(self.servers.values()):
            while True:
                try:
                    text = server.link.recv(65536, _socket.MSG_DONTWAIT)
                except BlockingIOError:
                    break
                except OSError:
                    text = b""
                if not text:
                    self._bury(server)
                    break
                self._hear_server(server, text.decode().split())

    def _hear_server(self, server: Server, words: list[str]) -> None:
        if words[0] == "READY":
            server.ready = True
            server.gpus = words[1].split(",") if len(words) > 1 else []
            self.log(f"Server {server.pid} is ready")
        elif words[0] == "FAILED":
            self.log("Server encountered a fatal exception. Shutting down")
        elif words[0] == "FAULT":
            server.has_fault = True
            server.faulty.update(words[1:])
        elif words[0] == "CLEAR":
            server.faulty.difference_update(words[1:])
            server.has_fault = bool(server.faulty)
        elif words[0] == "GONE":
            server.clients.pop(int(words[1]), None)
            if server.retiring and not server.clients:
                server.end()

    def _bury(self, server: Server) -> None:
        _, status = os.waitpid(server.pid, 0)
        self.log(f"Server {server.pid} exited with status {os.waitstatus_to_exitcode(status)}")
        server.link.close()
        del self.servers[server.pid]
        self.note_end(server)

    def end_all(self) -> int:
        """End all servers, with their clients; return the daemon's exit code."""
        for server in self.servers.values():
            server.end()
        for server in self.servers.values():
            os.waitpid(server.pid, 0)
        self.log("Exit with status 0")
        remove(self.pid_file)
        remove(f"{self.pipe}/log")
        return 0


def listening_socket(path: str, mode: int) -> _socket.socket:
    remove(path)
    line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    line.bind(path)
    os.chmod(path, mode)
    line.listen(64)
    return line


def make_fifo(path: str) -> None:
    remove(path)
    os.mkfifo(path)
    os.chmod(path, 0o777)


def find_program(name: str) -> str:
    """Find a program through PATH only, as the real daemon does, which ignores its own folder."""
    for folder in os.environ.get("PATH", "").split(":"):
        if folder and os.access(f"{folder}/{name}", os.X_OK):
            return f"{folder}/{name}"
    return f"/nonexistent/{name}"


def group_of(uid: int) -> int:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid

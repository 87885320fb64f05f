"""SIMULATED MPS, the control daemon: commands of front ends, one server at a time, clients passed on to it.

The behaviour is that recorded from the control programs of drivers 535 and 550: one front end at a time, answers and
exit codes that prove nothing, file modes, what a killed daemon leaves. The behaviour of servers with clients could not
be recorded without a GPU and follows NVIDIA's manual (docs.nvidia.com/deploy/mps, v2 interface):

* a server runs as the user of its clients; one user's server at a time, other users' clients wait until it is empty;
* defaults (percentage, memory) apply to the next server, a server's own values to its next clients;
* `quit` waits for clients, `quit -t SECONDS` for so long;
* 48 clients, 60 from driver 590 on;
* with -S, from driver 590 on, a client needs a static partition (simmps_partitions.py); from 610 on its fault ends the
  clients of its own partition only.

simmps_common.py lists the faults and the choices that a test can ask for.

One client's own fault is `simgpu-task --fault SECONDS`: it ends the other clients of its server (of its partition),
which is in FAULT until all of them have gone.

Daemon and server talk over a socket pair, one message each: CLIENT, TERMINATE and EXIT to the server, READY, FAILED,
GONE, FAULT and CLEAR back. CLIENT passes the client's own connection, which the server owns from then on and which ends
with it.
"""

# ruff: noqa: PTH101, PTH102, PTH112, PTH116  (see nvidia-cuda-mps-control)
from __future__ import annotations

import _socket
import fcntl
import os
import select
import signal
import struct
import sys
import time

from simmps_common import (
    LINK_FD,
    PARTITIONED_FAULTS,
    STATIC_PARTITIONS,
    choice,
    driver,
    fault,
    first,
    in_fault,
    log_line,
    peer,
    remove,
    send,
)
from simmps_partitions import Partition, Partitions

SERVER_PROGRAM = "nvidia-cuda-mps-server"
HELLO = b"SIMMPS_UI"
SUN_PATH = 107
FULL = 100.0

PRIVILEGE_535 = "Insufficient privileges for UID {uid}"
PRIVILEGE_550 = (
    "Insufficient privileges for UID {uid}. Control deamon settings can only be modified by the user started it "
    "or by the root user."
)
PRIVILEGE_SERVER_550 = "Insufficient privileges for UID {uid}. Only the root user may start server for another user."


def memory_mib(text: str) -> int:
    """Parse a limit as the control program does: 2G, 512M, 2048MB, 512; it reads 1.5G as 1M. 0: none."""
    rest = text.lstrip("0123456789")
    number = text[: len(text) - len(rest)]
    return int(number or "0") * (1024 if rest.upper().removesuffix("B") == "G" else 1)


def memory_text(mib: int) -> str:
    if not mib:
        return ""
    return f"{mib // 1024}G\n" if mib % 1024 == 0 else f"{mib}M\n"


def percentage(text: str) -> float | None:
    """Parse a percentage above 0 up to 100; None: invalid."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= FULL else None


class Server:
    """One server process, as the daemon knows it."""

    def __init__(self, pid: int, uid: int, link: _socket.socket, percent: float, limits: dict[str, int]) -> None:
        self.pid = pid
        self.uid = uid
        self.link = link
        self.percent = percent
        self.limits = dict(limits)
        self.gpus: list[str] = []
        self.clients: dict[int, int] = {}
        """PID -> uid."""
        self.partitions: dict[int, str] = {}
        """PID of a client -> name of its static partition."""
        self.ready = False
        self.has_fault = False
        """A client's fault has ended its clients, and some of them are still there."""
        self.faulty: set[str] = set()
        """Static partitions of which the same is true, where a fault stays in its partition."""
        self.retiring = False
        """The server ends as soon as its last client has left."""

    def status(self) -> str:
        if not self.ready:
            return "INITIALIZING"
        return "FAULT" if self.has_fault or in_fault(self.gpus) else "ACTIVE"

    def answer(self) -> str:
        """Return the answer to a client (simgpu.mps_connection)."""
        limits = ",".join(f"{device}={mib}M" for device, mib in sorted(self.limits.items()) if mib)
        return f"SIMGPU_SERVER pid={self.pid} percentage={self.percent:g} gpus={','.join(self.gpus)} limits={limits}"


class Waiting:
    """A client that has no server yet."""

    def __init__(self, line: _socket.socket, pid: int, uid: int, gid: int, partition: Partition | None) -> None:
        self.partition = partition
        self.line = line
        self.pid = pid
        self.uid = uid
        self.gid = gid


class NoServer(Exception):
    """A command names a server that is not there."""


class Daemon:
    def __init__(self, pipe: str, log: int | None, is_static: bool) -> None:
        self.pipe = pipe
        self.log_file = log
        self.owner = os.getuid()
        self.driver = driver()
        self.style = self.driver.release
        self.partitions = Partitions(is_static)
        self.percent = FULL
        self.limits: dict[str, int] = {}
        self.priority = 0
        self.listening: list[_socket.socket] = []
        self.strangers: list[_socket.socket] = []
        """Connections whose first message has not come yet."""
        self.ui: _socket.socket | None = None
        self.servers: dict[int, Server] = {}
        self.waiting: list[Waiting] = []
        self.quitting = False
        """A front end sent quit while there were clients."""
        self.quits_at: float | None = None
        """When it ends with clients, in seconds of time.monotonic(); None: never."""
        self.commands = 0

    def log(self, text: str) -> None:
        log_line(self.log_file, "Control", text)

    # ---- Start ----

    def read_environment(self) -> None:
        text = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
        if text is None:
            return
        value = percentage(text)
        if value is None:
            self.log("Invalid percentage, expected between (0.0, 100.0]")
        self.percent = value or FULL

    def listen(self, umask: int) -> bool:
        """Open the two sockets and the fifo; False, silently, if a path is too long for a socket."""
        for name, mode in (("control_privileged", 0o755 & ~umask), ("control", 0o666)):
            path = f"{self.pipe}/{name}"
            if len(os.fsencode(f"{self.pipe}/control_privileged")) >= SUN_PATH:
                return False
            remove(path)
            line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
            line.bind(path)
            os.chmod(path, mode)
            line.listen(64)
            self.listening.append(line)
        remove(f"{self.pipe}/log")
        if self.log_file is not None:
            os.mkfifo(f"{self.pipe}/log")
            os.chmod(f"{self.pipe}/log", 0o777)
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
            timeout = None
            if self.quitting and self.quits_at is not None:
                timeout = max(0.0, self.quits_at - time.monotonic()) * 1000
            for number, _ in poll.poll(timeout):
                if lines[number].fileno() == number:  # not closed by an earlier event of this round
                    self._hear(lines[number])
            self._serve_waiting()
            if self.quitting and self._may_quit():
                return self._quit()

    def _watched(self) -> list[_socket.socket]:
        links = [server.link for server in self.servers.values()]
        waiting = [one.line for one in self.waiting]
        return [*self.listening, *self.strangers, *links, *waiting, *([] if self.ui is None else [self.ui])]

    def _hear(self, line: _socket.socket) -> None:
        if line in self.listening:
            fd, _ = line._accept()  # type: ignore[attr-defined]
            self.strangers.append(_socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, fd))
            self.log("Accepting connection...")
            return
        if line in [server.link for server in self.servers.values()]:
            self._hear_servers()
            return
        try:
            text = line.recv(65536)
        except OSError:
            text = b""
        if line is self.ui:
            self._hear_ui(text)
        elif line in self.strangers:
            self.strangers.remove(line)
            self._meet(line, text)
        else:  # a waiting client sends nothing: this is its end
            self.waiting = [one for one in self.waiting if one.line is not line]
            line.close()

    def _meet(self, line: _socket.socket, text: bytes) -> None:
        if text == HELLO and self.ui is None:
            self.ui = line
            self.log("NEW UI")
        elif text.startswith(b"SIMGPU_CLIENT "):
            self._admit(line, text.decode(errors="replace").split()[2:])
        else:  # a second front end: only one at a time
            line.close()

    # ---- Clients ----

    def _admit(self, line: _socket.socket, words: list[str]) -> None:
        pid, uid, gid = peer(line)
        asked = first(words).removeprefix("partition=")
        partition = self.partitions.get(asked) if self.partitions.is_on else None
        self.log(f"NEW CLIENT {pid} from user {uid}: Server is not ready, push client to pending list")
        if self.quitting:
            self._refuse(line, "CUDA_ERROR_MPS_SERVER_NOT_READY")
        elif self.owner not in (0, uid):
            self.log(f"Failed to start server using uid {uid}. Operation not permitted")
            self._refuse(line, "CUDA_ERROR_MPS_CONNECTION_FAILED")
        elif (self.partitions.is_on and partition is None) or (
            not self.partitions.is_on and asked and choice("SIMMPS_STRAY_PARTITION", "ignore") == "error"
        ):
            self._refuse(line, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION")
        else:
            self.waiting.append(Waiting(line, pid, uid, gid, partition))

    def _refuse(self, line: _socket.socket, error: str) -> None:
        send(line, f"SIMGPU_ERROR {error}\n".encode())
        line.close()

    def _serve_waiting(self) -> None:
        """Start or choose a server for the client that has waited longest; its user decides whose server runs."""
        for one in list(self.waiting):
            server = self._current()
            if server is None:
                self._start_server(one.uid, one.gid)
            elif server.uid != one.uid:
                self._retire(server)  # this client and the others wait until it is empty
                break
            elif server.ready and not server.retiring:
                self.waiting.remove(one)
                self._hand_over(server, one)

    def _current(self) -> Server | None:
        return next(iter(self.servers.values()), None)

    def _retire(self, server: Server) -> None:
        server.retiring = True
        if not server.clients:
            send(server.link, b"EXIT")

    def _hand_over(self, server: Server, client: Waiting) -> None:
        partition = client.partition
        if server.status() == "FAULT" and (partition is None or not self._is_sound(server, partition)):
            self._refuse(client.line, "CUDA_ERROR_MPS_SERVER_NOT_READY")
            return
        if len(server.clients) >= self.driver.mps_clients:
            self._refuse(client.line, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED")
            return
        own = "" if partition is None else f" partition={partition.name} sms={partition.sms}"
        message = f"CLIENT {client.pid} {server.answer()}{own}\n".encode()
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("i", client.line.fileno()))]
        try:
            server.link.sendmsg([message], rights)
        except OSError:
            self._refuse(client.line, "CUDA_ERROR_MPS_CONNECTION_FAILED")
            return
        server.clients[client.pid] = client.uid
        if partition is not None:
            server.partitions[client.pid] = partition.name
        client.line.close()

    def _is_sound(self, server: Server, partition: Partition) -> bool:
        """Return whether a partition still takes clients while its server is in FAULT."""
        if self.style < PARTITIONED_FAULTS or in_fault(server.gpus):
            return False
        return partition.name not in server.faulty and partition.name not in (fault("mps_fault") or "").split()

    # ---- Servers ----

    def _start_server(self, uid: int, gid: int) -> None:
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
                os.execv(program, [program])
            finally:
                os._exit(1)
        theirs.close()
        self.servers[pid] = Server(pid, uid, ours, self.percent, self.limits)
        self.log(f"Starting new server {pid} for user {uid}")

    def _hear_servers(self) -> None:
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
            server.partitions.pop(int(words[1]), None)
            if server.retiring and not server.clients:
                send(server.link, b"EXIT")

    def _bury(self, server: Server) -> None:
        _, status = os.waitpid(server.pid, 0)
        self.log(f"Server {server.pid} exited with status {os.waitstatus_to_exitcode(status)}")
        server.link.close()
        del self.servers[server.pid]
        if not server.ready:  # a server that cannot start has no waiting clients
            for one in [one for one in self.waiting if one.uid == server.uid]:
                self.waiting.remove(one)
                self._refuse(one.line, "CUDA_ERROR_MPS_CONNECTION_FAILED")

    # ---- Commands ----

    def _hear_ui(self, text: bytes) -> None:
        assert self.ui is not None
        if not text:
            self.ui.close()
            self.ui = None
            self.quitting = False
            self.log("UI closed")
            return
        line = text.decode(errors="replace").strip("\n")
        self.log(f"Cmd:{line}")
        hanging = fault("mps_hang")
        if hanging is not None and (not hanging or line.split(None, 1)[:1] == hanging.split()[:1]):
            return
        self.commands += 1
        every = fault("mps_lose")
        lost = bool(every) and self.commands % int(every or "0") == 0
        self._hear_servers()
        answer = self.command(line, peer(self.ui)[1])
        if answer is not None and self.ui is not None:
            # Lost: the front end ends with 0 and no output, as after quit.
            send(self.ui, b"Q" if lost else b"." + answer.encode())

    def command(self, line: str, uid: int) -> str | None:
        """Return the answer to a command; None: it comes later, or never."""
        words = line.split()
        name, rest = (words[0], words[1:]) if words else ("", [])
        handler = COMMANDS.get(name)
        if handler is None or self.style < SINCE.get(name, 0):
            return f'Unknown command "{line.strip()}"\n'
        if name.startswith(("set_", "sm_")) and self.style >= 550 and uid not in (0, self.owner):
            return PRIVILEGE_550.format(uid=uid) + "\n"
        try:
            return handler(self, rest, uid)
        except NoServer:
            return f"Server {first(rest)} not found\n"

    def get_server_list(self, rest: list[str], uid: int) -> str:
        return "".join(f"{pid}\n" for pid in self.servers)

    def _find(self, rest: list[str]) -> Server:
        """Return the server that the first argument names. Raises NoServer."""
        word = first(rest)
        if not word.isdecimal() or int(word) not in self.servers:
            raise NoServer
        return self.servers[int(word)]

    def get_server_status(self, rest: list[str], uid: int) -> str:
        return f"{self._find(rest).status()}\n"

    def get_client_list(self, rest: list[str], uid: int) -> str:
        return "".join(f"{pid}\n" for pid in self._find(rest).clients)

    def get_device_client_list(self, rest: list[str], uid: int) -> str:
        lines = []
        for server in self.servers.values():
            for gpu in server.gpus:
                lines += [f"Device {gpu}\n", *(f"{pid}\n" for pid in server.clients)]
        return "".join(lines) if any(server.clients for server in self.servers.values()) else ""

    def ps(self, rest: list[str], uid: int) -> str:
        chosen = list(self.servers.values())
        if rest[:1] == ["-p"]:
            try:
                chosen = [self._find(rest[1:])]
            except NoServer:
                return f"Server {first(rest[1:])} not found\n" * 2 + "\n"
        if not chosen:
            return "Server not found\n"
        rows = [f"{'PID':<9} {'ID':<7} {'SERVER':<7} {'DEVICE':<23} {'NAMESPACE':<12} COMMAND\n"]
        for server in chosen:
            gpu = server.gpus[0][:23] if server.gpus else "-"
            rows += [
                f"{pid:<9} {0:<7} {server.pid:<7} {gpu:<23} {pid_namespace(pid):<12} {command_of(pid)}\n"
                for pid in server.clients
            ]
        return "".join(rows)

    def get_default_percentage(self, rest: list[str], uid: int) -> str:
        return f"{self.percent:.1f}\n"

    def set_default_percentage(self, rest: list[str], uid: int) -> str:
        value = percentage(first(rest))
        if value is None:
            self.log("Invalid percentage, expected between (0.0, 100.0]")
        else:
            self.percent = value
        return f"{self.percent:.1f}\n"

    def get_percentage(self, rest: list[str], uid: int) -> str:
        return f"{self._find(rest).percent:.1f}\n"

    def set_percentage(self, rest: list[str], uid: int) -> str:
        server = self._find(rest)
        server.percent = percentage(first(rest[1:])) or server.percent
        return f"{server.percent:.1f}\n"

    def get_default_memory(self, rest: list[str], uid: int) -> str:
        if not self.limits.get(first(rest)):
            self.log("No default pinned memory limit set for the device!")
        return memory_text(self.limits.get(first(rest), 0))

    def set_default_memory(self, rest: list[str], uid: int) -> str:
        if len(rest) > 1 and rest[0].isdecimal() and int(rest[0]) < 32:
            self.limits[rest[0]] = memory_mib(rest[1])
        return ""

    def get_memory(self, rest: list[str], uid: int) -> str:
        return memory_text(self._find(rest).limits.get(first(rest[1:]), 0))

    def set_memory(self, rest: list[str], uid: int) -> str:
        server = self._find(rest)
        if len(rest) > 2 and rest[1].isdecimal():
            server.limits[rest[1]] = memory_mib(rest[2])
        return ""

    def get_priority(self, rest: list[str], uid: int) -> str:
        return f"{self.priority}\n"

    def set_priority(self, rest: list[str], uid: int) -> str:
        if first(rest) not in ("0", "1"):
            return "Invalid priority value - must be 0 or 1!\n"
        self.priority = int(rest[0])
        return ""

    def sm_partition(self, rest: list[str], uid: int) -> str:
        return self.partitions.command(rest, self._partitions_in_use())

    def lspart(self, rest: list[str], uid: int) -> str:
        return self.partitions.lspart(self._partitions_in_use())

    def device_query(self, rest: list[str], uid: int) -> str:
        return self.partitions.device_query(rest)

    def _partitions_in_use(self) -> set[str]:
        return {name for server in self.servers.values() for name in server.partitions.values()}

    def start_server(self, rest: list[str], uid: int) -> str:
        if len(rest) < 2 or rest[0] != "-uid" or not rest[1].isdecimal():
            return "A user id (UID) is required to start a new server\n"
        wanted = int(rest[1])
        if uid not in (0, wanted):
            return (PRIVILEGE_535 if self.style < 550 else PRIVILEGE_SERVER_550).format(uid=uid) + "\n"
        if self.owner not in (0, wanted):
            self.log(f"Failed to start server using uid {wanted}. Operation not permitted")
        elif not self.servers:
            self._start_server(wanted, group_of(wanted))
        return ""

    def shutdown_server(self, rest: list[str], uid: int) -> str:
        server = self._find(rest)
        if "-f" in rest:
            send(server.link, b"EXIT")
        else:
            self._retire(server)
        return ""

    def terminate_client(self, rest: list[str], uid: int) -> str:
        try:
            server = self._find(rest)
        except NoServer:
            return f"Server {first(rest)} not found\nServer {first(rest)} not found!\n1\n"
        client = first(rest[1:])
        if not client.isdecimal() or int(client) not in server.clients:
            return f"Client {client} not found!\n1\n"
        send(server.link, f"TERMINATE {client}".encode())
        return ""

    def quit(self, rest: list[str], uid: int) -> str | None:
        if uid not in (0, self.owner):
            return "Not enough privilege to execute quit command\n"
        seconds = rest[1] if rest[:1] == ["-t"] and len(rest) > 1 and rest[1].isdecimal() else None
        self.quitting, self.quits_at = True, None if seconds is None else time.monotonic() + int(seconds)
        return None

    def _may_quit(self) -> bool:
        self._hear_servers()
        late = self.quits_at is not None and time.monotonic() >= self.quits_at
        return late or not any(server.clients for server in self.servers.values())

    def _quit(self) -> int:
        for server in self.servers.values():
            send(server.link, b"EXIT")
        for server in self.servers.values():
            os.waitpid(server.pid, 0)
        self.log("Exit with status 0")
        remove(self.pid_file)
        remove(f"{self.pipe}/log")
        if self.ui is not None:
            send(self.ui, b"Q")
        return 0


COMMANDS = {
    "get_server_list": Daemon.get_server_list,
    "get_server_status": Daemon.get_server_status,
    "get_client_list": Daemon.get_client_list,
    "get_device_client_list": Daemon.get_device_client_list,
    "ps": Daemon.ps,
    "get_default_active_thread_percentage": Daemon.get_default_percentage,
    "set_default_active_thread_percentage": Daemon.set_default_percentage,
    "get_active_thread_percentage": Daemon.get_percentage,
    "set_active_thread_percentage": Daemon.set_percentage,
    "get_default_device_pinned_mem_limit": Daemon.get_default_memory,
    "set_default_device_pinned_mem_limit": Daemon.set_default_memory,
    "get_device_pinned_mem_limit": Daemon.get_memory,
    "set_device_pinned_mem_limit": Daemon.set_memory,
    "get_default_client_priority": Daemon.get_priority,
    "set_default_client_priority": Daemon.set_priority,
    "sm_partition": Daemon.sm_partition,
    "lspart": Daemon.lspart,
    "device_query": Daemon.device_query,
    "start_server": Daemon.start_server,
    "shutdown_server": Daemon.shutdown_server,
    "terminate_client": Daemon.terminate_client,
    "quit": Daemon.quit,
}
SINCE = {
    "get_server_status": 550, "sm_partition": STATIC_PARTITIONS, "lspart": STATIC_PARTITIONS,
    "device_query": STATIC_PARTITIONS,
}  # fmt: skip
"""Commands that older drivers do not know."""


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


def pid_namespace(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0


def command_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return "-"


# ---- Start ----


def open_logs(folder: str) -> int | None:
    """Open control.log if possible; fail as the real daemon does."""
    try:
        if not os.path.isdir(folder):
            os.mkdir(folder, 0o700)
        os.close(os.open(f"{folder}/server.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644))
        return os.open(f"{folder}/control.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        print(f"Warning: Failed writing log files to directory [{folder}]. No logs will be available.")
        return None


def start(pipe: str, foreground: bool, is_static: bool = False) -> int:
    if "start" in (fault("mps_hang") or "").split():
        time.sleep(3600)
    log = open_logs(os.environ.get("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"))
    umask = os.umask(0)
    try:
        if not os.path.isdir(pipe or "/"):
            os.mkdir(pipe, 0o777)
        lock = os.open(f"{pipe}/control_lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        print(f"Cannot access CUDA_MPS_PIPE_DIRECTORY={pipe}")
        return 1
    finally:
        os.umask(umask)
    sys.stdout.flush()
    if foreground:
        return become_daemon(pipe, log, lock, umask, None, is_static)
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        answer = os.read(reading, 4096)
        print(answer[1:].decode(), end="")
        return answer[0] if answer else 1
    os.close(reading)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os._exit(become_daemon(pipe, log, lock, umask, writing, is_static))


def become_daemon(pipe: str, log: int | None, lock: int, umask: int, parent: int | None, is_static: bool) -> int:
    """Take the lock, report the start to the parent, and serve until quit."""

    def tell(code: int, text: str = "") -> int:
        if parent is None:
            print(text, end="", flush=True)
        else:
            os.write(parent, bytes([code]) + text.encode())
            os.close(parent)
        return code

    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return tell(1, "An instance of this daemon is already running\n")
    if fault("mps_stubborn") is not None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    daemon = Daemon(pipe, log, is_static)
    daemon.log(f"SIMULATED control daemon, in the manner of driver {daemon.style}")
    if daemon.style >= STATIC_PARTITIONS:
        daemon.log(f"Static partitioning mode {'enabled' if is_static else 'disabled'}")
    daemon.read_environment()
    if not daemon.listen(umask):
        return tell(1)
    daemon.log(f"Starting control daemon using socket {pipe}/control")
    daemon.log(f"To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={pipe}")
    tell(0)
    return daemon.run()

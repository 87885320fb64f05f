"""SIMULATED MPS, protocol 2: a shell of commands, one front end at a time, answers and exit codes that prove nothing.

As recorded from the control programs of drivers 535 and 550, and for servers with clients from NVIDIA's manual:

* a server runs as the user of its clients; one user's server at a time, other users' clients wait until it is empty;
* defaults (percentage, memory) apply to the next server, a server's own values to its next clients;
* `quit` waits for clients, `quit -t SECONDS` at most that long;
* with -S, from driver 590 on, a client needs a static partition.
"""

# ruff: noqa: PTH116  (see nvidia-cuda-mps-control)
from __future__ import annotations

import os
import time

from simmps import Client, Daemon, Server, group_of
from simmps_common import STATIC_PARTITIONS, choice, first, peer, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket

    from simmps_partitions import Partitions

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


class Values:
    """The values of one server, which its next clients get."""

    def __init__(self, percent: float, limits: dict[str, int]) -> None:
        self.percent = percent
        self.limits = dict(limits)


def status(server: Server) -> str:
    if not server.ready:
        return "INITIALIZING"
    return "FAULT" if server.is_in_fault() else "ACTIVE"


class NoServer(Exception):
    """A command names a server that is not there."""


class DaemonV2(Daemon):
    def __init__(self, pipe: str, log: int | None, partitions: Partitions) -> None:
        super().__init__(pipe, log, partitions)
        self.percent = FULL
        self.limits: dict[str, int] = {}
        self.priority = 0
        self.values: dict[int, Values] = {}
        """By the server's PID."""
        self.quitting = False
        """A front end sent quit while there were clients."""
        self.quits_at: float | None = None
        """When it ends with clients, in seconds of time.monotonic(); None: never."""

    def of(self, server: Server) -> Values:
        return self.values[server.pid]

    def read_environment(self) -> None:
        text = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
        if text is None:
            return
        value = percentage(text)
        if value is None:
            self.log("Invalid percentage, expected between (0.0, 100.0]")
        self.percent = value or FULL

    # ---- Clients ----

    def admit(self, line: _socket.socket, route: object, partition: str) -> None:
        client = Client(line, route, self.partitions.get(partition) if self.partitions.is_on else None)
        if self.quitting:
            self.refuse(line, "CUDA_ERROR_MPS_SERVER_NOT_READY")
        elif self.owner not in (0, client.uid):
            self.log(f"Failed to start server using uid {client.uid}. Operation not permitted")
            self.refuse(line, "CUDA_ERROR_MPS_CONNECTION_FAILED")
        elif (self.partitions.is_on and client.partition is None) or (
            not self.partitions.is_on and partition and choice("SIMMPS_STRAY_PARTITION", "ignore") == "error"
        ):
            self.refuse(line, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION")
        else:
            self.waiting.append(client)

    def serve_waiting(self) -> None:
        """Start or choose a server for the client that has waited longest; its user decides whose server runs."""
        for one in list(self.waiting):
            server = next(iter(self.servers.values()), None)
            if server is None:
                self._start(one.uid, one.gid)
            elif server.uid != one.uid:
                server.retire()  # this client and the others wait until it is empty
                break
            elif server.ready and not server.retiring:
                self.waiting.remove(one)
                self.hand_over(server, one)

    def _start(self, uid: int, gid: int) -> None:
        server = self.start_server_process(uid, gid)
        self.values[server.pid] = Values(self.percent, self.limits)

    def answer(self, server: Server, client: Client) -> str:
        values = self.of(server)
        limits = ",".join(f"{device}={mib}M" for device, mib in sorted(values.limits.items()) if mib)
        return f"percentage={values.percent:g} limits={limits}"

    def note_end(self, server: Server) -> None:
        del self.values[server.pid]
        if not server.ready:  # a server that cannot start has no waiting clients
            for one in [one for one in self.waiting if one.uid == server.uid]:
                self.waiting.remove(one)
                self.refuse(one.line, "CUDA_ERROR_MPS_CONNECTION_FAILED")

    # ---- Front ends ----

    def meet_front_end(self, line: _socket.socket) -> bool:
        return not self.front_ends  # only one at a time

    def hear_front_end(self, line: _socket.socket, text: bytes) -> None:
        if not text:
            line.close()
            self.front_ends.remove(line)
            self.quitting, self.quits_at = False, None
            self.log("UI closed")
            return
        command = text.decode(errors="replace").strip("\n")
        self.log(f"Cmd:{command}")
        if self.is_hanging(command.split(None, 1)):
            return
        lost = self.is_lost()
        self.hear_servers()
        answer = self.command(command, peer(line)[1])
        if answer is not None and line in self.front_ends:
            # Lost: the front end ends with 0 and no output, as after quit.
            send(line, b"Q" if lost else b"." + answer.encode())

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
        return f"{status(self._find(rest))}\n"

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
        return f"{self.of(self._find(rest)).percent:.1f}\n"

    def set_percentage(self, rest: list[str], uid: int) -> str:
        server = self._find(rest)
        self.of(server).percent = percentage(first(rest[1:])) or self.of(server).percent
        return f"{self.of(server).percent:.1f}\n"

    def get_default_memory(self, rest: list[str], uid: int) -> str:
        if not self.limits.get(first(rest)):
            self.log("No default pinned memory limit set for the device!")
        return memory_text(self.limits.get(first(rest), 0))

    def set_default_memory(self, rest: list[str], uid: int) -> str:
        if len(rest) > 1 and rest[0].isdecimal() and int(rest[0]) < 32:
            self.limits[rest[0]] = memory_mib(rest[1])
        return ""

    def get_memory(self, rest: list[str], uid: int) -> str:
        return memory_text(self.of(self._find(rest)).limits.get(first(rest[1:]), 0))

    def set_memory(self, rest: list[str], uid: int) -> str:
        server = self._find(rest)
        if len(rest) > 2 and rest[1].isdecimal():
            self.of(server).limits[rest[1]] = memory_mib(rest[2])
        return ""

    def get_priority(self, rest: list[str], uid: int) -> str:
        return f"{self.priority}\n"

    def set_priority(self, rest: list[str], uid: int) -> str:
        if first(rest) not in ("0", "1"):
            return "Invalid priority value - must be 0 or 1!\n"
        self.priority = int(rest[0])
        return ""

    def sm_partition(self, rest: list[str], uid: int) -> str:
        return self.partitions.command(rest, self.partitions_in_use())

    def lspart(self, rest: list[str], uid: int) -> str:
        return self.partitions.lspart(self.partitions_in_use())

    def device_query(self, rest: list[str], uid: int) -> str:
        return self.partitions.device_query(rest)

    def start_server(self, rest: list[str], uid: int) -> str:
        if len(rest) < 2 or rest[0] != "-uid" or not rest[1].isdecimal():
            return "A user id (UID) is required to start a new server\n"
        wanted = int(rest[1])
        if uid not in (0, wanted):
            return (PRIVILEGE_535 if self.style < 550 else PRIVILEGE_SERVER_550).format(uid=uid) + "\n"
        if self.owner not in (0, wanted):
            self.log(f"Failed to start server using uid {wanted}. Operation not permitted")
        elif not self.servers:
            self._start(wanted, group_of(wanted))
        return ""

    def shutdown_server(self, rest: list[str], uid: int) -> str:
        server = self._find(rest)
        if "-f" in rest:
            server.end()
        else:
            server.retire()
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

    def timeout_ms(self) -> float | None:
        return None if self.quits_at is None else max(0.0, self.quits_at - time.monotonic()) * 1000

    def finish(self) -> int | None:
        if not self.quitting:
            return None
        self.hear_servers()
        late = self.quits_at is not None and time.monotonic() >= self.quits_at
        if not late and any(server.clients for server in self.servers.values()):
            return None
        code = self.end_all()
        for line in self.front_ends:
            send(line, b"Q")
        return code


COMMANDS = {
    "get_server_list": DaemonV2.get_server_list,
    "get_server_status": DaemonV2.get_server_status,
    "get_client_list": DaemonV2.get_client_list,
    "get_device_client_list": DaemonV2.get_device_client_list,
    "ps": DaemonV2.ps,
    "get_default_active_thread_percentage": DaemonV2.get_default_percentage,
    "set_default_active_thread_percentage": DaemonV2.set_default_percentage,
    "get_active_thread_percentage": DaemonV2.get_percentage,
    "set_active_thread_percentage": DaemonV2.set_percentage,
    "get_default_device_pinned_mem_limit": DaemonV2.get_default_memory,
    "set_default_device_pinned_mem_limit": DaemonV2.set_default_memory,
    "get_device_pinned_mem_limit": DaemonV2.get_memory,
    "set_device_pinned_mem_limit": DaemonV2.set_memory,
    "get_default_client_priority": DaemonV2.get_priority,
    "set_default_client_priority": DaemonV2.set_priority,
    "sm_partition": DaemonV2.sm_partition,
    "lspart": DaemonV2.lspart,
    "device_query": DaemonV2.device_query,
    "start_server": DaemonV2.start_server,
    "shutdown_server": DaemonV2.shutdown_server,
    "terminate_client": DaemonV2.terminate_client,
    "quit": DaemonV2.quit,
}
SINCE = {
    "get_server_status": 550, "sm_partition": STATIC_PARTITIONS, "lspart": STATIC_PARTITIONS,
    "device_query": STATIC_PARTITIONS,
}  # fmt: skip
"""Commands that older drivers do not know."""


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

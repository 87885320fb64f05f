"""SIMULATED MPS, protocol 3 (driver 615 and newer): named servers, their namespaces, and which one a client gets.

From NVIDIA's manual of release 615 and what users of it recorded; the words of front ends are in simmps_v3_words.py.

* A client picks its namespace by the socket that it connects to: `<pipe>/<server>/<namespace>/control`. The socket
  `<server>/control` is the namespace `default`, and the daemon's own socket the server `uid_<uid>`, which is made when
  it is needed. From 620 on a client of that socket goes to the namespace of its cgroup first (simroutes.py).
* A namespace's caps and the client's own apply both; a percentage of 0 is no cap. No namespace but `default` gets the
  caps of its server.
* A server without a GPU ends and is forgotten, and its clients run without MPS, without a word.
* A server's partitions are made once it is ready; with any of them, a client of that server needs one.
"""

# ruff: noqa: PTH103, PTH106  (see nvidia-cuda-mps-control)
from __future__ import annotations

import os

from simmps import Client, Daemon, Server, group_of, listening_socket, make_fifo
from simmps_common import ROUTES_BY_CGROUP, choice, peer, remove, send, state_folder
from simmps_partitions import Partition, Partitions, chunk_size, total_chunks
from simmps_v3_file import is_too_long
from simroutes import cgroups_of, distance, start_of, write_routes

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable
    from typing import Any

    from simgpu import Gpu
    from simmps_start import Options

INVALID_RESOURCE = "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"
DEFAULT = "default"


class Refused(Exception):
    """A command that cannot be carried out; the message is what the program prints."""


class Namespace:
    """A part of a server's clients, with their caps and their socket."""

    def __init__(self, server: NamedServer, name: str, number: int) -> None:
        self.server = server
        self.name = name
        self.number = number
        self.pinned_mib = 0
        """0: unlimited."""
        self.percent = 0.0
        """0: no cap."""
        self.priority = 0
        self.cgroup = ""
        self.depth = 0
        self.partitions: dict[str, str] = {}
        """GPU's UUID -> name of the partition that its clients get (620)."""

    @property
    def path(self) -> str:
        return f"{self.server.path}/{self.name}"


class NamedServer:
    """A server that front ends know by its name, whether its process runs or not."""

    def __init__(self, name: str, uid: int, path: str, devices: str, has_domains: bool) -> None:
        self.name = name
        self.uid = uid
        self.path = path
        self.devices = devices
        """UUIDs or ordinals separated by commas; empty: all."""
        self.has_domains = has_domains
        self.namespaces: dict[str, Namespace] = {}
        self.made = 0
        """Namespaces made so far."""
        self.partitions: dict[str, Carved] = {}
        self.process: Server | None = None
        self.was_ready = False

    def status(self) -> str:
        if self.process is None:
            return "Stopped"
        if not self.process.ready:
            return "Initializing"
        return "Fault" if self.process.is_in_fault() else "Ready"

    def clients(self, namespace: Namespace | None = None) -> list[Client]:
        all_ = [] if self.process is None else list(self.process.clients.values())
        return [one for one in all_ if namespace is None or one.route is namespace]


class Carved:
    """A static partition of a server, made once the server is ready."""

    def __init__(self, name: str, gpu: Gpu, chunks: int, has_remainder: bool) -> None:
        self.name = name
        self.gpu = gpu
        self.chunks = chunks
        self.has_remainder = has_remainder
        self.made: Partition | None = None


class DaemonV3(Daemon):
    protocol = 3

    def __init__(self, pipe: str, log: int | None, options: Options) -> None:
        super().__init__(pipe, log, Partitions(is_on=True, protocol=3))
        self.logs = os.environ.get("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps")
        self.options = options
        self.named: dict[str, NamedServer] = {}
        self.features = {"memacct": True, "context-share": True}
        self.audits = False
        self.pending: list[tuple[_socket.socket, Callable[[], bool], int, str]] = []
        """Front ends that wait, until what holds, for which exit code and text."""
        self.quitting: list[_socket.socket] | None = None
        """Front ends that sent -q; None: nobody did."""

    # ---- Start ----

    def listen(self, umask: int) -> bool:
        if not super().listen(umask):
            return False
        for name, one in self.options.config.get("servers", {}).items():
            self._make_from_file(name, one)
        memacct = self.options.config.get("features", {}).get("memacct", {})
        self.features["memacct"] = memacct.get("enabled", True)
        self.audits = memacct.get("audit_log", False)
        self.note_routes()
        return True

    def _make_from_file(self, name: str, one: dict[str, Any]) -> None:
        from simmps_v3_values import set_caps

        uid = one.get("uid", 0 if self.options.is_multiuser else self.owner)
        server = self.make_server(name, uid, one.get("allowed_devices", ""), one.get("locality_domains", False))
        set_caps(server.namespaces[DEFAULT], one)
        for space, limits in one.get("namespaces", {}).items():
            made = server.namespaces.get(space) or self.make_namespace(server, space)
            set_caps(made, limits)
            made.cgroup, made.depth = limits.get("cgroup", "").rstrip("/"), limits.get("cgroup_depth", 0)
            made.partitions = {device["uuid"]: device["sm_partition"] for device in limits.get("devices", [])}
        for device in one.get("devices", []):
            for carved in device.get("sm_partitions", []):
                gpu = self.gpu(device["uuid"])
                rest = carved.get("include_remainder", False)
                server.partitions[carved["name"]] = Carved(carved["name"], gpu, carved["chunks"], rest)

    # ---- Servers and namespaces ----

    def make_server(self, name: str, uid: int, devices: str = "", has_domains: bool = False) -> NamedServer:
        """Make a server and start its process. Raises Refused."""
        path = f"{self.pipe}/{name}"
        if name in self.named:
            raise Refused(f"Server '{name}' already exists")
        if is_too_long(f"{path}/{DEFAULT}"):
            raise Refused(f"Failed to create server '{name}'")
        server = self.named[name] = NamedServer(name, uid, path, devices, has_domains)
        os.makedirs(path, exist_ok=True)
        logs = f"{self.logs}/{name}"
        try:
            os.makedirs(logs, 0o755, exist_ok=True)
            if self.owner == 0:
                os.chown(logs, uid, -1)
        except OSError:
            pass  # it then writes no log
        make_fifo(f"{path}/log")
        self.make_namespace(server, DEFAULT)
        self.listening[listening_socket(f"{path}/control", 0o666)] = server.namespaces[DEFAULT]
        self.start_process(server)
        return server

    def start_process(self, server: NamedServer) -> None:
        environ = {"CUDA_MPS_LOG_DIRECTORY": f"{self.logs}/{server.name}"}
        if server.devices:
            environ["CUDA_VISIBLE_DEVICES"] = server.devices
        server.process = self.start_server_process(server.uid, group_of(server.uid), environ)

    def make_namespace(self, server: NamedServer, name: str) -> Namespace:
        """Make a namespace and its socket. Raises Refused."""
        if name in server.namespaces:
            raise Refused(f"Namespace '{name}' already exists on server '{server.name}'")
        if is_too_long(f"{server.path}/{name}"):
            raise Refused(f"Failed to create namespace '{name}'")
        made = server.namespaces[name] = Namespace(server, name, server.made)
        server.made += 1
        os.makedirs(made.path, exist_ok=True)
        self.listening[listening_socket(f"{made.path}/control", 0o666)] = made
        return made

    def drop_namespace(self, namespace: Namespace) -> None:
        del namespace.server.namespaces[namespace.name]
        for line in [line for line, route in self.listening.items() if route is namespace]:
            self.accept_all(line)  # who has connected already is told, and does not wait for ever
            line.close()
            del self.listening[line]
        remove(f"{namespace.path}/control")
        remove_folder(namespace.path)
        self.note_routes()

    def drop_server(self, server: NamedServer) -> None:
        """Forget a server whose process has ended, and all that belongs to it."""
        self.named.pop(server.name, None)
        for carved in server.partitions.values():
            if carved.made is not None:
                self.partitions.remove(carved.made.name)
        for namespace in list(server.namespaces.values()):
            self.drop_namespace(namespace)
        remove(f"{server.path}/control")
        remove(f"{server.path}/log")
        remove_folder(server.path)

    def note_end(self, server: Server) -> None:
        for one in [one for one in self.named.values() if one.process is server]:
            one.process = None
            for carved in one.partitions.values():
                if carved.made is not None:
                    self.partitions.remove(carved.made.name)
                carved.made = None
            if one.was_ready and not server.retiring:
                continue  # its next client starts it again
            for client in [client for client in self.waiting if self._server_of(client) is one]:
                self.waiting.remove(client)
                self.tell_none(client.line)
            self.drop_server(one)

    def note_routes(self) -> None:
        """Tell the driver of the namespaces with a cgroup, if it is to know of them."""
        if choice("SIMMPS_ROUTING", "socket") != "everywhere" or self.style < ROUTES_BY_CGROUP:
            return
        spaces = [space for server in self.named.values() for space in server.namespaces.values() if space.cgroup]
        routes = [(space.cgroup, space.depth, self.pipe) for space in spaces]
        write_routes(state_folder(), f"{os.getpid()}.{start_of(os.getpid())}", routes)

    # ---- Partitions ----

    def gpu(self, word: str) -> Gpu:
        """Return the GPU of an ordinal or a UUID. Raises Refused."""
        self.partitions.read_gpus()
        found = self.partitions.find_gpus(word)
        if word.isdecimal() and int(word) < len(self.partitions.gpus):
            found = [self.partitions.gpus[int(word)]]
        if len(found) != 1:
            raise Refused(f"Device '{word}' not found")
        return found[0]

    def carve(self, carved: Carved) -> bool:
        """Make a partition on a running server; return whether there were chunks enough."""
        gpu = carved.gpu
        rest = gpu.multiprocessors - chunk_size(gpu, 3) * total_chunks(gpu, 3) if carved.has_remainder else 0
        carved.made = self.partitions.make(gpu, carved.chunks, rest)
        return carved.made is not None

    # ---- Clients ----

    @staticmethod
    def tell_none(line: _socket.socket) -> None:
        """Tell a client that it has no server: it runs without MPS, without a word."""
        send(line, b"SIMGPU_NONE\n")
        line.close()

    @staticmethod
    def _server_of(client: Client) -> NamedServer:
        assert isinstance(client.route, Namespace)
        return client.route.server

    def admit(self, line: _socket.socket, route: object, partition: str) -> None:
        pid, uid, _ = peer(line)
        if self.quitting is not None:
            self.refuse(line, "CUDA_ERROR_MPS_SERVER_NOT_READY")
            return
        if not self.options.is_multiuser and self.owner not in (0, uid) and uid != 0:
            self.refuse(line, "CUDA_ERROR_NOT_PERMITTED")
            return
        namespace = route if isinstance(route, Namespace) else self._route(pid, uid)
        server = namespace.server
        if not self.options.is_multiuser and uid not in (0, server.uid):
            self.refuse(line, "CUDA_ERROR_NOT_PERMITTED")
            return
        if server.namespaces.get(namespace.name) is not namespace:  # dropped since this client connected
            self.tell_none(line)
            return
        client = Client(line, namespace)
        client.asked = partition
        self.waiting.append(client)

    def _route(self, pid: int, uid: int) -> Namespace:
        """Return the namespace of a client of the daemon's own socket: by its cgroup, or by its user."""
        if self.style >= ROUTES_BY_CGROUP:
            folders = cgroups_of(pid)
            found = []
            for server in self.named.values():
                for space in server.namespaces.values():
                    levels = distance(space.cgroup, space.depth, folders) if space.cgroup else None
                    if levels is not None and (self.options.is_multiuser or uid in (0, server.uid)):
                        found.append((levels, space.number, space))
            if found:
                return min(found, key=lambda one: one[:2])[2]
        owner = 0 if self.options.is_multiuser else uid
        if self.owner != 0:
            owner = self.owner
        return (self.named.get(f"uid_{owner}") or self.make_server(f"uid_{owner}", owner)).namespaces[DEFAULT]

    def serve_waiting(self) -> None:
        for server in self.named.values():
            if server.process is not None and server.process.ready:
                server.was_ready = True
                for carved in server.partitions.values():
                    if carved.made is None:
                        self.carve(carved)
        for one in list(self.waiting):
            server = self._server_of(one)
            if server.process is None:
                self.start_process(server)
            elif server.process.ready and not server.process.retiring:
                self.waiting.remove(one)
                self._serve(server, one)

    def _serve(self, server: NamedServer, client: Client) -> None:
        assert server.process is not None
        assert isinstance(client.route, Namespace)
        named = [server.partitions.get(name) for name in client.route.partitions.values()]
        if named:
            client.partition = None if named[0] is None else named[0].made
        elif client.asked:
            client.partition = self.partitions.get(client.asked)
        is_divided = any(carved.made is not None for carved in server.partitions.values())
        needs = bool(client.asked or named) or (is_divided and choice("SIMMPS_V3_PARTITIONS", "needed") == "needed")
        if needs and client.partition is None:
            self.refuse(client.line, INVALID_RESOURCE)
        else:
            self.hand_over(server.process, client)

    def answer(self, server: Server, client: Client) -> str:
        assert isinstance(client.route, Namespace)
        space = client.route
        limits = [f"{ordinal}={space.pinned_mib}M" for ordinal in range(len(server.gpus)) if space.pinned_mib]
        return f"percentage={space.percent or 100.0:g} limits={','.join(limits)}"

    # ---- Front ends ----

    def meet_front_end(self, line: _socket.socket) -> bool:
        return not (self.front_ends and choice("SIMMPS_V3_SERIAL", "0") == "1")

    def hear_front_end(self, line: _socket.socket, text: bytes) -> None:
        from simmps_v3_values import Caller  # a daemon starts faster without them
        from simmps_v3_words import carry_out

        if not text:
            self._leave(line)
            return
        argv = text.decode(errors="replace").split("\0")
        self.log(f"Cmd:{' '.join(argv)}")
        if self.is_hanging(argv):
            return
        lost = self.is_lost()
        self.hear_servers()
        if argv in (["-q"], ["--quit"]):
            if peer(line)[1] in (0, self.owner):
                self.quitting = [*(self.quitting or ()), line]
            else:
                self.tell(line, 1, f"Insufficient privileges for UID {peer(line)[1]}. 'QUIT' requires daemon owner.\n")
            return
        found = carry_out(self, Caller(peer(line)[1], line), argv)
        if lost:
            self._leave(line)
        elif found is not None:
            self.tell(line, *found)

    def tell(self, line: _socket.socket, code: int, text: str) -> None:
        """Answer a front end, which prints the text and ends with the code."""
        send(line, bytes([code and int(choice("SIMMPS_V3_FAILURE", "1"))]) + text.encode())

    def _leave(self, line: _socket.socket) -> None:
        line.close()
        self.front_ends.remove(line)
        self.pending = [one for one in self.pending if one[0] is not line]
        self.log("UI closed")

    def watch(self, poll: Any) -> None:
        if self.options.is_foreground:
            poll.register(0)

    def hear_other(self, number: int) -> None:
        """Read commands from the standard input of -f, whose end is the daemon's."""
        from simmps_v3_values import Caller
        from simmps_v3_words import carry_out

        try:
            text = os.read(number, 65536).decode(errors="replace")
        except OSError:
            text = ""
        for line in text.splitlines():
            found = carry_out(self, Caller(self.owner, None), line.split())
            if found is not None:
                print(found[1], end="", flush=True)
        if not text:
            self.quitting = self.quitting or []

    def timeout_ms(self) -> float | None:
        return 50.0 if self.pending else None

    def finish(self) -> int | None:
        for one in [one for one in self.pending if one[1]()]:
            self.pending.remove(one)
            self.tell(one[0], *one[2:])
        if self.quitting is None:
            return None
        code = self.end_all()
        for server in list(self.named.values()):
            self.drop_server(server)
        remove(f"{state_folder()}/routes/{os.getpid()}.{start_of(os.getpid())}")
        for line in self.quitting:
            self.tell(line, 0, "")
        return code


def remove_folder(path: str) -> None:
    try:
        os.rmdir(path)
    except OSError:
        pass

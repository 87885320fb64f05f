"""SIMULATED MPS, protocol 3: the words of front ends, `<module> <verb> [up to 3 words] [--key=value] [--flag]`.

From NVIDIA's manual of release 615. Failures end with a code above 0 and a text on standard output. These texts were
recorded: that of a lack of privileges and those about partitions; the others are ours.
"""

from __future__ import annotations

from simmps_common import choice, send
from simmps_partitions import chunk_size, total_chunks
from simmps_v3 import DEFAULT, Carved, DaemonV3, NamedServer, Namespace, Refused
from simmps_v3_values import (
    CAPS,
    PRIVILEGE,
    Answer,
    Caller,
    Usage,
    Words,
    caps_of,
    field,
    listing,
    namespace_named,
    new_name,
    own,
    server_named,
    set_caps,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from simmps import Client

# ---- server ----

SERVER_FIELDS = ["name", "uid", "pid", "status", "pipe-directory", "allowed-devices", "context-ids"]


def server_row(server: NamedServer) -> list[str]:
    pid = "-" if server.process is None else str(server.process.pid)
    devices = server.devices or ",".join(server.process.gpus if server.process else ()) or "-"
    return [server.name, str(server.uid), pid, server.status(), server.path, devices, "-"]


def server_create(daemon: DaemonV3, caller: Caller, words: Words) -> Answer:
    uid_text = words.options.get("uid", "")
    if (not words.plain and not uid_text) or not (uid_text or "0").isdecimal():
        raise Usage
    uid = int(uid_text) if uid_text else 0 if daemon.options.is_multiuser else caller.uid
    if daemon.options.is_multiuser and uid != 0:
        raise Refused("Only UID 0 is allowed in multiuser mode")
    own(caller, uid, "SERVER CREATE")
    if daemon.owner not in (0, uid):
        raise Refused(PRIVILEGE.format(uid=caller.uid, command="SERVER CREATE"))
    name = new_name(words.plain[0]) if words.plain else f"uid_{uid}"
    domains = words.options.get("locality-domains") == "true"
    daemon.make_server(name, uid, words.options.get("allowed-devices", ""), domains)
    return 0, f"Server '{name}' created\n"


def server_delete(daemon: DaemonV3, caller: Caller, words: Words) -> Answer:
    server = server_named(daemon, words.first())
    own(caller, server.uid, "SERVER DELETE")
    if server.clients() and "force" not in words.options:
        raise Refused(f"Server '{server.name}' has active clients")
    if server.process is None:
        daemon.drop_server(server)
        return 0, f"Server '{server.name}' deleted\n"
    server.process.retiring = True
    server.process.end()
    return later(daemon, caller, lambda: server.name not in daemon.named, f"Server '{server.name}' deleted\n")


def later(daemon: DaemonV3, caller: Caller, done: Callable[[], bool], text: str) -> Answer:
    """Answer when something has happened."""
    if caller.line is None:
        return 0, text
    daemon.pending.append((caller.line, done, 0, text))
    return None


def server_list(daemon: DaemonV3, caller: Caller, words: Words) -> Answer:
    chosen = [server_named(daemon, words.plain[0])] if words.plain else list(daemon.named.values())
    return listing(words, SERVER_FIELDS, [server_row(server) for server in chosen])


def server_set(daemon: DaemonV3, caller: Caller, words: Words) -> Answer:
    server = server_named(daemon, words.first())
    own(caller, server.uid, "SERVER SET")
    if not words.options:
        raise Usage
    change(server.namespaces[DEFAULT], words)
    server.has_domains = words.options.get("locality-domains", str(server.has_domains).lower()) == "true"
    return 0, f"Server '{server.name}' updated\n"


def server_get(daemon: DaemonV3, caller: Caller, words: Words) -> Answer:
    if len(words.plain) != 2:
        raise Usage
    row = server_row(server_named(daemon, words.plain[0]))
    return 0, field(SERVER_FIELDS[:6], row[:6], words.plain[1])


# ---- namespace ----

SPACE_FIELDS = ["name", "server", "server-status", *CAPS, "pipe-directory"]


def space_row(space: Namespace) -> list[str]:
    return [space.name, space.server.name, space.server.status(), *caps_of(space), space.path]


def change(space: Namespace, words: Words) -> None:
    """Set caps, which attached clients do not allow. Raises Refused."""
    if any(name in words.options for name in CAPS) and space.server.clients(space):
        raise Refused(f"Namespace '{space.name}' has active clients")
    set_caps(space, {name: value for name, value in words.options.items() if name in CAPS})


def namespace_create(daemon: DaemonV3, caller: Caller, words: Words) -> Answer:
    server = server_named(daemon, words.get("server"))
    own(caller, server.uid, "NAMESPACE CREATE")
    daemon.make_namespace(server, new_name(words.first()))
    return 0, f"Namespace '{words.first()}' created on server '{server.name}'\n"


def namespace_delete(daemon: DaemonV3, caller: Caller, words: Words) -> Answer:
    server = server_named(daemon, words.get("server"))
    space = namespace_named(server, words.first())
    own(caller, server.uid, "NAMESPACE DELETE")
    clients = server.clients(space)
    if space.name == DEFAULT:
        raise Refused(f"Namespace '{DEFAULT}' cannot be deleted")
    if clients and "force" not in words.options:
        raise Refused(f"Namespace '{space.name}' has active clients")
    for client in clients:
        end_client(server, client)

    def done() -> bool:
        if server.clients(space):
            return False
        if server.namespaces.get(space.name) is space:
            daemon.drop_namespace(space)
        return True

    if done():
        return 0, f"Namespace '{space.name}' deleted\n"
    return later(daemon, caller, done, f"Namespace '{space.name}' deleted\n")


def namespace_list(daemon: DaemonV3, caller: Caller, words: Words) -> Answer:
    chosen = [server_named(daemon, words.options["server"])] if "server" in words.options else daemon.named.values()
    spaces = [space for server in chosen for space in server.namespaces.values()]
    if words.plain:
        spaces = [space for space in spaces if space.name == words.plain[0]]
        if not spaces:
            raise Refused(f"Namespace '{words.plain[0]}' not found")
    return listing(words, SPACE_FIELDS, [space_row(space) for space in spaces])


def namespace_set(daemon: DaemonV3, caller: Caller, words: Words) -> Answer:
    server = server_named(daemon, words.get("server"))
    own(caller, server.uid, "NAMESPACE SET")
    space = namespace_named(server, words.first())
    if len(words.options) < 2:
        raise Usage
    change(space, words)
    return 0, f"Namespace '{space.name}' updated\n"


def namespace_get(daemon: DaemonV3, caller: Caller, words: Words) -> Answer:
    if len(words.plain) != 3:
        raise Usage
    space = namespace_named(server_named(daemon, words.plain[1]), words.plain[0])
    return 0, field(SPACE_FIELDS, space_row(space), words.plain[2])


# ---- client ----

CLIENT_FIELDS = ["pid", "server", "device", "namespace", "command"]


def client_row(server: NamedServer, client: Client) -> list[str]:
    assert isinstance(client.route, Namespace)
    device = server.process.gpus[0] if server.process and server.process.gpus else "-"
    path = f"{server.name}/{client.route.name} ({client.route.number})"
    if choice("SIMMPS_CLIENTS", "seen") == "manual":
        device, path = "0", client.route.name
    return [str(client.pid), server.name, device, path, command_of(client.pid)]


def command_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip() or "-"
    except OSError:
        return "-"


def client_list(daemon: DaemonV3, caller: Caller, words: Words) -> Answer:
    if "server" in words.options:
        chosen = [server_named(daemon, words.options["server"])]
    else:
        chosen = [one for one in daemon.named.values() if "all" in words.options or caller.uid in (0, one.uid)]
    rows = [client_row(server, client) for server in chosen for client in server.clients()]
    return listing(words, CLIENT_FIELDS, rows)


def find_client(daemon: DaemonV3, word: str) -> tuple[NamedServer, Client]:
    for server in daemon.named.values():
        for client in server.clients():
            if str(client.pid) == word:
                return server, client
    raise Refused(f"Client '{word}' not found")


def client_get(daemon: DaemonV3, caller: Caller, words: Words) -> Answer:
    if len(words.plain) != 2:
        raise Usage
    server, client = find_client(daemon, words.plain[0])
    row = client_row(server, client)
    assert isinstance(client.route, Namespace)
    bus = next((gpu.bus for gpu in daemon.partitions.gpus if gpu.uuid == row[2]), "-")
    names = ["pid", "server", "device", "pci-id", "linux-ns", "maws-ns", "cmd"]
    return 0, field(names, [*row[:3], bus, "0", str(client.route.number), row[4]], words.plain[1])


def end_client(server: NamedServer, client: Client) -> None:
    assert server.process is not None
    send(server.process.link, f"TERMINATE {client.pid}".encode())


def client_terminate(daemon: DaemonV3, caller: Caller, words: Words) -> Answer:
    server, client = find_client(daemon, words.first())
    own(caller, server.uid, "CLIENT TERMINATE")
    end_client(server, client)
    return later(daemon, caller, lambda: client not in server.clients(), f"Client {client.pid} terminated\n")


# ---- device, sm-partition ----


def device_list(daemon: DaemonV3, caller: Caller, words: Words) -> Answer:
    daemon.partitions.read_gpus()
    chosen = [server_named(daemon, words.options["server"])] if "server" in words.options else daemon.named.values()
    rows = []
    for server in chosen:
        seen = server.process.gpus if server.process else []
        gpus = [gpu for uuid in seen for gpu in daemon.partitions.gpus if gpu.uuid == uuid]
        for number, gpu in enumerate(gpus):
            sizes = [str(gpu.multiprocessors), str(total_chunks(gpu, 3))]
            rows.append([str(number), server.name, gpu.bus, gpu.uuid, gpu.name, *sizes, "-"])
    names = ["Ordinal", "Server", "PCI ID", "Device UUID", "Name", "Total SMs", "Total Chunks", "Attributes"]
    return listing(words, names, rows)


PARTITION_FIELDS = ["server", "device", "name", "chunks", "sm-count", "include-remainder", "status", "visible-uuid"]


def partition_create(daemon: DaemonV3, caller: Caller, words: Words) -> Answer:
    server = server_named(daemon, words.get("server"))
    own(caller, server.uid, "SM-PARTITION CREATE")
    name, gpu, chunks = new_name(words.first()), daemon.gpu(words.get("device")), words.get("chunks")
    if not chunks.isdecimal() or int(chunks) < 1:
        raise Refused(f"Invalid number of chunks '{chunks}'")
    if name in server.partitions:
        raise Refused(f"SM partition '{name}' already exists")
    if server.has_domains:
        raise Refused("SM partitions and locality domains are mutually exclusive")
    if server.clients():
        raise Refused(f"Device {gpu.uuid} has active clients")
    carved = Carved(name, gpu, int(chunks), words.options.get("include-remainder", "false") == "true")
    is_running = server.process is not None and server.process.ready
    if is_running and not daemon.carve(carved):
        raise Refused(f"Not enough free chunks on device {gpu.uuid}")
    server.partitions[name] = carved
    if carved.made is None:
        return 0, f"SM partition '{name}' configured on device {gpu.uuid}\n"
    said = f"SM partition '{name}' created on device {gpu.uuid} (sm-count={carved.made.sms})\n"
    return 0, f"{said}CUDA_MPS_SM_PARTITION={carved.made.name}\n"


def partition_delete(daemon: DaemonV3, caller: Caller, words: Words) -> Answer:
    server = server_named(daemon, words.get("server"))
    own(caller, server.uid, "SM-PARTITION DELETE")
    carved = server.partitions.get(words.first())
    if carved is None:
        raise Refused(f"SM partition '{words.first()}' not found")
    if carved.made is not None:
        if carved.made.name in daemon.partitions_in_use():
            raise Refused(f"SM partition '{carved.name}' has active clients")
        daemon.partitions.remove(carved.made.name)
    del server.partitions[carved.name]
    return 0, f"SM partition '{carved.name}' deleted from device {carved.gpu.uuid}\n"


def partition_list(daemon: DaemonV3, caller: Caller, words: Words) -> Answer:
    chosen = [server_named(daemon, words.options["server"])] if "server" in words.options else daemon.named.values()
    rows = []
    for server in chosen:
        for carved in server.partitions.values():
            made = carved.made
            sms, status, id_ = ("-", "configured", "-") if made is None else (str(made.sms), "created", made.id)
            rest = str(carved.has_remainder).lower()
            rows.append([server.name, carved.gpu.uuid, carved.name, str(carved.chunks), sms, rest, status, id_])
        for gpu in {carved.gpu.uuid: carved.gpu for carved in server.partitions.values()}.values():
            free = total_chunks(gpu, 3) - daemon.partitions.used(gpu)
            if free > 0:
                size = str(free * chunk_size(gpu, 3))
                rows.append([server.name, gpu.uuid, "-", str(free), size, "-", "unallocated", "-"])
    return listing(words, PARTITION_FIELDS, rows)


# ---- feature, memacct ----


def feature_switch(on: bool) -> Callable[[DaemonV3, Caller, Words], Answer]:
    def switch(daemon: DaemonV3, caller: Caller, words: Words) -> Answer:
        own(caller, daemon.owner, "FEATURE ENABLE" if on else "FEATURE DISABLE")
        if words.first() not in daemon.features:
            raise Refused(f"Unknown feature '{words.first()}'")
        daemon.features[words.first()] = on
        return 0, f"Feature '{words.first()}' {'enabled' if on else 'disabled'}\n"

    return switch


def feature_describe(daemon: DaemonV3, caller: Caller, words: Words) -> Answer:
    names = words.plain or list(daemon.features)
    if any(name not in daemon.features for name in names):
        raise Refused(f"Unknown feature '{names[0]}'")
    states = {True: "enabled (default)", False: "disabled"}
    rows = [[name, states[daemon.features[name]], name, "-"] for name in names]
    return listing(words, ["feature", "state", "module", "covers"], rows)


def memacct_set(daemon: DaemonV3, caller: Caller, words: Words) -> Answer:
    own(caller, daemon.owner, "MEMACCT SET")
    daemon.audits = words.get("audit_log") == "true"
    return 0, ""


def memacct_describe(daemon: DaemonV3, caller: Caller, words: Words) -> Answer:
    return listing(words, ["key", "value"], [["audit_log", str(daemon.audits).lower()]])


VERBS: dict[str, dict[str, tuple[Callable[[DaemonV3, Caller, Words], Answer], tuple[str, ...]]]] = {
    "server": {
        "create": (server_create, ("uid", "allowed-devices", "locality-domains")),
        "delete": (server_delete, ("force",)),
        "list": (server_list, ("format",)),
        "set": (server_set, (*CAPS, "uid", "locality-domains")),
        "get": (server_get, ()),
    },
    "namespace": {
        "create": (namespace_create, ("server",)),
        "delete": (namespace_delete, ("server", "force")),
        "list": (namespace_list, ("server", "format")),
        "set": (namespace_set, ("server", *CAPS)),
        "get": (namespace_get, ()),
    },
    "client": {
        "list": (client_list, ("server", "all", "format")),
        "get": (client_get, ()),
        "terminate": (client_terminate, ()),
    },
    "device": {"list": (device_list, ("server", "format"))},
    "sm-partition": {
        "create": (partition_create, ("server", "device", "chunks", "include-remainder")),
        "delete": (partition_delete, ("server", "device")),
        "list": (partition_list, ("server", "device", "all", "format")),
    },
    "feature": {
        "enable": (feature_switch(on=True), ()),
        "disable": (feature_switch(on=False), ()),
        "describe": (feature_describe, ("format",)),
    },
    "memacct": {"set": (memacct_set, ("audit_log",)), "describe": (memacct_describe, ("format",))},
}


def usage(module: str = "", verb: str = "") -> str:
    """Return how the program, a module or a verb is used."""
    name = "Usage: nvidia-cuda-mps-control"
    if module not in VERBS:
        return f"{name} <{'|'.join(VERBS)}> <verb> [arguments] (SIMULATED)\n"
    verbs = {verb: VERBS[module][verb]} if verb in VERBS[module] else VERBS[module]
    lines = [
        f"{name} {module} {one} {' '.join(f'[--{option}]' for option in known)}".rstrip() + " (SIMULATED)\n"
        for one, (_, known) in verbs.items()
    ]
    return "".join(lines)


def carry_out(daemon: DaemonV3, caller: Caller, argv: list[str]) -> Answer:
    """Return the answer to a command; None: it comes later."""
    module, verb = [*argv, "", ""][:2]
    if {"help", "--help"} & set(argv):
        return 0, usage(module, verb)
    if verb not in VERBS.get(module, {}):
        return 1, usage(module)
    handler, known = VERBS[module][verb]
    try:
        return handler(daemon, caller, Words(argv[2:], known))
    except Usage:
        return 1, usage(module, verb)
    except Refused as error:
        return 1, f"{error}\n"

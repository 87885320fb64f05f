"""The commands, the file and the answers of an MPS control daemon with protocol 3 (driver 615 or newer).

A daemon of ours has one server, with a namespace for each task. A client chooses its namespace by its pipe directory
alone, `<pipe>/<server>/<namespace>`; the caps of the namespace hold whatever the client's environment says, which can
only lower them. Source: docs.nvidia.com/deploy/mps, release 615 (mpsv3-interface, mpsv3-configuration-file), and the
sources of kai-scheduler/kai-gpu-fractioning for what the manual leaves open. Nothing of it has been run on a GPU.

Lists are read as csv with their header: tables cut process ids, and the order of the columns differs by source. The
command of a client, the last column, may contain commas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...core import numbers
from ...core.patterns import pattern
from ..records import MpsServer, Namespace

SERVER = "s"
"""The name of a daemon's only server. Names of servers and namespaces count for the longest path of a socket."""
ANY = "any"
"""The namespace without caps of its own, for the tasks of a packed run, each of which has other caps than the last."""
STRAY_PERCENT = 10
"""The percentage of the server's own namespace, `default`, into which a client gets that names the server only: so that
its user notices. kai-gpu-fractioning does the same."""
SOCKET_MAX_BYTES = 107
"""The longest path of a socket (sun_path of unix(7), without the final zero byte)."""
PIDS_MOST = 2**31
NONE = ("", "-", "unlimited", "none", "default")
"""Words in a list for a cap that is not set."""
FIELDS_OF_SERVER = ("name", "pid", "status")
FIELDS_OF_NAMESPACE = ("name", "pinned_memory_limit", "active_thread_percentage")
FIELDS_OF_CLIENT = ("pid", "server")

_NAME = pattern(r"[a-z0-9_]{1,64}")
_UUID = pattern(r"(GPU|MIG)-[0-9A-Za-z/-]{1,80}")
_NOT_IN_NAMES = pattern(r"[^a-z0-9]+")
_SIZE = pattern(r"([0-9]{1,9})([KMGT])i?B?")
_DECIMAL = pattern(r"([0-9]{1,3})(?:[.]([0-9]{1,6}))?%?")
_MIB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}


def slot_name(number: int) -> str:
    """Return the namespace of a task's place on its GPU, counted from 0 on each GPU."""
    return f"slot_{number}"


def socket_size(pipe: str, namespaces: Iterable[Namespace]) -> int:
    """Return the bytes of the longest path of a socket of a daemon."""
    names = max((len(one.name) for one in namespaces), default=0)
    return len(f"{pipe}/{SERVER}/".encode(errors="surrogateescape")) + names + len("/control_privileged")


# ---- The file with which a daemon starts ----


def render_file(uid: int, gpu: str, namespaces: Sequence[Namespace]) -> str:
    """Return the TOML file of a daemon with one server on one GPU.

    The daemon reads it at its start only. An unknown key is an error, and then nothing starts.
    """
    if not _UUID.fullmatch(gpu) or not all(_NAME.fullmatch(one.name) for one in namespaces):
        raise ValueError(f"not the names of a GPU and of namespaces: {gpu!r}, {namespaces!r}")
    lines = [
        'schema_version = "1.0"',
        f"[servers.{SERVER}]",
        f"uid = {uid}",
        f'allowed_devices = "{gpu}"',
        f'active_thread_percentage = "{STRAY_PERCENT}"',
    ]
    for one in namespaces:
        lines.append(f"[servers.{SERVER}.namespaces.{one.name}]")
        if one.memory_mib is not None:
            lines.append(f'pinned_memory_limit = "{one.memory_mib}M"')
        if one.percent is not None:
            lines.append(f'active_thread_percentage = "{one.percent:g}"')
    return "\n".join(lines) + "\n"


# ---- Commands ----


def list_words(module: str) -> list[str]:
    """Return the command that lists the servers, or what a module has of our server."""
    of_server = [] if module == "server" else [f"--server={SERVER}"]
    return [module, "list", *of_server, "--format=csv"]


def set_words(one: Namespace) -> list[str]:
    """Return the command that gives a new namespace its caps; empty: it has none. It fails while a client is there."""
    caps = []
    if one.memory_mib is not None:
        caps.append(f"--pinned-memory-limit={one.memory_mib}M")
    if one.percent is not None:
        caps.append(f"--active-thread-percentage={one.percent:g}")
    return ["namespace", "set", one.name, f"--server={SERVER}", *caps] if caps else []


def create_words(name: str) -> list[str]:
    return ["namespace", "create", name, f"--server={SERVER}"]


def delete_words(name: str) -> list[str]:
    """Return the command that removes a namespace. It fails while a client is there, which keeps running tasks safe."""
    return ["namespace", "delete", name, f"--server={SERVER}"]


# ---- Answers ----


def parse_rows(text: str, needed: Sequence[str]) -> list[dict[str, str]] | None:
    """Return the rows of a list in csv, by column; None: it is no such list, or lacks a column that is `needed`."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    columns = [_NOT_IN_NAMES.sub("_", one.strip().lower()) for one in lines[0].split(",")]
    if not set(needed) <= set(columns):
        return None
    rows = []
    for line in lines[1:]:
        words = [word.strip().strip('"') for word in line.split(",", len(columns) - 1)]
        if len(words) != len(columns):
            return None
        rows.append(dict(zip(columns, words, strict=True)))
    return rows


def parse_servers(text: str) -> tuple[MpsServer, ...] | None:
    """Return our server, if it is listed, with its status as protocol 2 has it; None: the answer is no list.

    A server that has ended is not listed. `Ready` is ACTIVE.
    """
    rows = parse_rows(text, FIELDS_OF_SERVER)
    if rows is None:
        return None
    found = []
    for row in rows:
        pid = numbers.whole(row["pid"], PIDS_MOST)
        if row["name"] == SERVER and pid:
            status = row["status"].upper()
            found.append(MpsServer(pid, "ACTIVE" if status == "READY" else status))
    return tuple(found)


def parse_clients(text: str) -> tuple[int, ...] | None:
    """Return the process ids of the clients of our server; None: the answer is no list."""
    rows = parse_rows(text, FIELDS_OF_CLIENT)
    if rows is None:
        return None
    pids = [numbers.whole(row["pid"], PIDS_MOST) for row in rows if row["server"] == SERVER]
    return None if None in pids else tuple(sorted({pid for pid in pids if pid}))


def parse_namespaces(text: str) -> tuple[Namespace, ...] | None:
    """Return the namespaces of our server with their caps; None: the answer is no list, or has a cap of no known form.

    A percentage of 0 or 100 caps nothing (0: kai-gpu-fractioning).
    """
    rows = parse_rows(text, FIELDS_OF_NAMESPACE)
    if rows is None:
        return None
    found = []
    for row in rows:
        if row.get("server", SERVER) != SERVER:
            continue
        memory, percent = row["pinned_memory_limit"], row["active_thread_percentage"]
        memory_mib = None if memory.lower() in NONE else parse_mib(memory)
        value = None if percent.lower() in NONE else _decimal(percent)
        if (memory_mib is None and memory.lower() not in NONE) or (value is None and percent.lower() not in NONE):
            return None
        found.append(Namespace(row["name"], memory_mib, value if value and value < 100 else None))
    return tuple(found)


def parse_mib(text: str) -> int | None:
    """Return a limit such as `20G` or `512M` in MiB; None: it has another form."""
    match = _SIZE.fullmatch(text.strip().upper().replace("IB", "B"))
    return None if match is None else int(int(match[1]) * _MIB[match[2]])


def _decimal(text: str) -> float | None:
    match = _DECIMAL.fullmatch(text.strip())
    return None if match is None else float(f"{match[1]}.{match[2] or 0}")


def different(wanted: Iterable[Namespace], found: Iterable[Namespace]) -> tuple[Namespace, ...]:
    """Return the wanted namespaces that are missing or have other caps."""
    there = {one.name: one for one in found}
    return tuple(one for one in wanted if not _is_as(one, there.get(one.name)))


def _is_as(wanted: Namespace, found: Namespace | None) -> bool:
    if found is None or found.memory_mib != wanted.memory_mib:
        return False
    if wanted.percent is None or found.percent is None:
        return wanted.percent == found.percent
    return abs(wanted.percent - found.percent) < 0.1  # lists have fewer digits

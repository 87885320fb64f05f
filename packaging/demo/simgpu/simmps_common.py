"""SIMULATED MPS: what control daemon and server share. The state folder of the simulated GPUs steers both.

Faults on demand, by files in the state folder of the simulated GPUs (state.c):

    mps_hang    commands that are never answered, separated by blanks; empty: all. `start`: -d itself never returns
    mps_lose    N: every N-th command ends with exit code 0 and no answer, though it is carried out
    mps_slow    SECONDS that a server takes to start
    mps_fail    servers end while they start
    mps_fault   servers are in FAULT: their clients fail, new ones get error 807. Lines of GPU UUIDs; empty: all.
                A line `<UUID>/<id>` is a fault in a static partition, before driver 610 the same as one of its GPU
    mps_forget  all static partitions are dropped once, each time that this is written
    mps_stubborn  daemon and servers ignore SIGTERM; read when they start

Where records of real programs differ, or there are none, a variable chooses; a line `NAME=value` of the file
`mps_choices` in the state folder does so for all daemons of a host:

    SIMMPS_DRIVER=535|550|...              the release whose manners they have [that of simgpu-init --driver]
    SIMMPS_LSPART=5|7                      columns in the rows of `lspart`: as recorded, as in the manual [5]
    SIMMPS_STRAY_PARTITION=ignore|error    a client that names a partition of a daemon without -S [ignore]

and of protocol 3:

    SIMMPS_V3_SERIAL=0|1                   one front end at a time, as with protocol 2 [0: several at once]
    SIMMPS_V3_FAILURE=NUMBER               exit code of all failures [1]
    SIMMPS_V3_PARTITIONS=needed|optional   a client without a partition where there are some: 915, or none [needed]
    SIMMPS_FIELD=-|_                       `get NAME pipe-directory` or `pipe_directory` [-]
    SIMMPS_CLIENTS=seen|manual             fields of `client list`: as recorded, as in the manual [seen]
    SIMMPS_TOML_LIMITS=strings|any         whether limits in the file of -a may be numbers [strings]
    SIMMPS_ROUTING=socket|everywhere       from 620 on: cgroups route clients of the daemon's own socket only, or all of
                                           them (simroutes.py) [socket]
"""

# ruff: noqa: PTH108  (see nvidia-cuda-mps-control)
from __future__ import annotations

import _socket
import os
import struct
import time

import simdriver

STATE_VARIABLE = "SIMGPU_STATE"
DEFAULT_STATE = "/run/simgpu"
LINK_FD = 3
"""File descriptor of the server's connection to the daemon."""

STATIC_PARTITIONS = 590
PARTITIONED_FAULTS = 610
V3 = 615
ROUTES_BY_CGROUP = 620
"""Drivers since when the programs have a thing."""


def state_folder() -> str:
    return os.environ.get(STATE_VARIABLE) or DEFAULT_STATE


def fault(name: str) -> str | None:
    """Return the content of a fault's file; None: no such fault."""
    try:
        with open(f"{state_folder()}/{name}") as file:
            return file.read(4096).strip()
    except OSError:
        return None


def driver() -> simdriver.Profile:
    """Return the driver whose manners the programs have."""
    return simdriver.of_mps(os.environ, state_folder())


def choice(name: str, default: str) -> str:
    """Return what a test chose for a manner that different records tell differently."""
    return os.environ.get(name) or _value("mps_choices", name) or default


def _value(file_name: str, key: str) -> str | None:
    """Return a value from a file of lines `key=value` in the state folder."""
    for line in (fault(file_name) or "").splitlines():
        name, _, value = line.partition("=")
        if name == key:
            return value
    return None


def in_fault(gpu_uuids: list[str]) -> bool:
    """Return whether all clients on these GPUs fail."""
    text = fault("mps_fault")
    if text is None:
        return False
    lines = (
        text.split() if driver().release >= PARTITIONED_FAULTS else [line.partition("/")[0] for line in text.split()]
    )
    return not lines or any(uuid in lines for uuid in gpu_uuids)


def log_line(file: object, who: str, text: str) -> None:
    if file is None:
        return
    now = time.time()
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
    try:
        os.write(file, f"[{stamp}.{int(now % 1 * 1000):03d} {who:>7} {os.getpid():5d}] {text}\n".encode())  # type: ignore[arg-type]
    except OSError:
        pass  # a full disk must not end a daemon


def peer(line: _socket.socket) -> tuple[int, int, int]:
    """Return PID, uid and gid of the connected process."""
    return struct.unpack("3i", line.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12))  # type: ignore[return-value]


def first(words: list[str]) -> str:
    return words[0] if words else ""


def send(line: _socket.socket, text: bytes) -> None:
    """Send to a process that may be gone or may not read."""
    try:
        line.send(text, _socket.MSG_NOSIGNAL | _socket.MSG_DONTWAIT)
    except OSError:
        pass


def remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass

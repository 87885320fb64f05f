"""SIMULATED MPS, protocol 3: the file of `-a FILE`, read once at the start and never written back.

The manual of release 615 has the keys, that of 620 has more. A key that is not known is an error, and nothing starts.
Limits are strings in the manual; SIMMPS_TOML_LIMITS=any takes numbers, too.
"""

from __future__ import annotations

import os

from simmps_common import ROUTES_BY_CGROUP, choice, driver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from simmps_start import Options

LONGEST = 107
"""Bytes of a socket's path."""
TOO_LONG = "Failed to initialize MPS control daemon"

LIMITS = {"pinned_memory_limit": "limit", "active_thread_percentage": "limit", "client_priority": "limit"}
SERVER = {**LIMITS, "uid": int, "allowed_devices": str, "locality_domains": bool, "namespaces": dict, "devices": list}
NAMESPACE = {**LIMITS}
DEVICE = {"uuid": str, "sm_partitions": list}
PARTITION = {"name": str, "chunks": int, "include_remainder": bool}
FEATURES = {"memacct": dict, "context-share": dict}
MEMACCT = {"enabled": bool, "audit_log": bool}
CONTEXT_SHARE = {"enabled": bool, "default_socket": str}
TOP = {"schema_version": str, "servers": dict, "features": dict}
SINCE_620: dict[str, dict[str, object]] = {
    "top": {"compute_policy": dict},
    "server": {"timeslice_pct": "limit"},
    "namespace": {"cgroup": str, "cgroup_depth": int, "devices": list},
    "partition": {"shareable": bool, "max_chunks": int},
    "memacct": {"force_polling": bool},
}


def read(options: Options, pipe: str) -> None:
    """Read the file into `options.config` and check the length of all sockets' paths. Raises ValueError with what the
    program prints."""
    options.config = {} if options.file is None else _load(options.file)
    servers = options.config.get("servers", {})
    for name, one in servers.items():
        if os.getuid() not in (0, one.get("uid", os.getuid())):
            raise ValueError(f"Insufficient privileges for UID {os.getuid()} to start server '{name}'")
    paths = [pipe, *(f"{pipe}/{name}/{space}" for name, one in servers.items() for space in one.get("namespaces", {}))]
    if any(is_too_long(path) for path in paths):
        raise ValueError(TOO_LONG)


def is_too_long(folder: str) -> bool:
    return len(os.fsencode(f"{folder}/control_privileged")) > LONGEST


def _load(path: str) -> dict[str, Any]:
    import tomllib  # only a start with a file pays for this import

    try:
        with open(path, "rb") as file:
            text = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"Failed to read configuration file {path}: {error}") from error
    try:
        _check(text)
    except ValueError as error:
        raise ValueError(f"Failed to apply configuration file {path}: {error}") from error
    return text


def _check(text: dict[str, Any]) -> None:
    _keys("top level", text, TOP, "top")
    for name, server in text.get("servers", {}).items():
        where = f"servers.{name}"
        _keys(where, server, SERVER, "server")
        for space, limits in server.get("namespaces", {}).items():
            _keys(f"{where}.namespaces.{space}", limits, NAMESPACE, "namespace")
            for device in limits.get("devices", []):
                _keys(f"{where}.namespaces.{space}.devices", device, {"uuid": str, "sm_partition": str})
        for device in server.get("devices", []):
            _keys(f"{where}.devices", device, DEVICE)
            for partition in device.get("sm_partitions", []):
                _keys(f"{where}.devices.sm_partitions", partition, PARTITION, "partition")
    features = text.get("features", {})
    _keys("features", features, FEATURES)
    _keys("features.memacct", features.get("memacct", {}), MEMACCT, "memacct")
    _keys("features.context-share", features.get("context-share", {}), CONTEXT_SHARE)


def _keys(where: str, found: object, known: dict[str, object], newer: str = "") -> None:
    """Raise ValueError for an unknown key or a value of another type."""
    if not isinstance(found, dict):
        raise ValueError(f"[{where}] is not a table")
    if driver().release >= ROUTES_BY_CGROUP:
        known = {**known, **SINCE_620.get(newer, {})}
    for key, value in found.items():
        kind = known.get(key)
        if kind is None:
            raise ValueError(f"unknown key '{key}' in [{where}]")
        if kind == "limit":
            kind = str if choice("SIMMPS_TOML_LIMITS", "strings") == "strings" else (str, int, float)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):  # type: ignore[arg-type]
            raise ValueError(f"invalid value of '{key}' in [{where}]")

"""Read and check the site's configuration file: one typed Settings."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from . import names
from .errors import ConfigError, quoted, shown
from .paths import CONFIG_FILE
from .settings import DEFAULT as DEFAULT
from .settings import PER_PARTITION, Messages, Settings, Slurm, parse_sm
from .settings import Configuration as Configuration
from .text import did_you_mean

Values = TypeVar("Values", bound=Struct)

_RANGES = {
    "max_share": (1, names.SHARE_MAX),
    "memory_reserve_percent": (0.0, 50.0),
    "mps_server_memory_mib": (0, 65536),
    "mps_daemon_memory_mib": (64, 16777216),
    "mps_daemon_processes": (16, 65536),
    "hook_deadline_s": (0.1, 300.0),
    "release_deadline_s": (0.1, 300.0),
    "shards_per_gpu": (0, 4294967293),
    "agent_interval_s": (0.5, 300.0),
    "agents_port": (1, 65535),
    "usage_days": (1, 3650),
    "usage_mib": (1, 1048576),
}
_PATHS = ("log_file", "mps_control", "agent_socket", "agent_token_file", "prometheus_token_file", "archive_folder",
          "estimate_history", "mode_file", "agent_tls_certificate", "agent_tls_key", "agent_tls_client_ca", "agents_ca",
          "agents_certificate", "agents_key", "agent_textfile", "prometheus_ca", "usage_folder",
          "job_mapping_folder", "gpustat_folder")  # fmt: skip

REMOTE_NODE = "NODE"
"""Placeholder for the node's name in `remote_command`."""
PARTITION = "partition"
"""The table of tables: `[partition.NAME]`."""
MESSAGES = "messages"
_TABLES: Mapping[str, type[Struct]] = MappingProxyType({MESSAGES: Messages, "slurm": Slurm})
"""The tables of those names in Settings."""


def load(file: Path | None = None) -> Configuration:
    """Return the configuration of this host, or the one in `file`, which must exist. Without a file: the defaults.

    Raises ConfigError for a file that cannot be read, is not TOML, has an unknown key or a value of a wrong kind.
    """
    place = file or CONFIG_FILE
    try:
        text = place.read_text(encoding="utf-8").removeprefix("\ufeff")
    except FileNotFoundError as error:
        if file is not None:
            raise ConfigError(str(file), "there is no such file") from error
        text = ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(place), f"cannot be read: {error}") from error
    return parse(text, str(place))


def parse(text: str, file: str) -> Configuration:
    """Return the configuration in `text`. Raises ConfigError as `load` does."""
    given = read_toml(text, file)
    tables = given.pop(PARTITION, {})
    known = list(Settings.__struct_fields__)
    know_all(given, known, file)
    settings = _settings(given, file, "")
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigError(file, f"wants a table for each partition: [{PARTITION}.NAME]", PARTITION)
    partitions = {}
    for name, table in tables.items():
        where = f"{PARTITION}.{name}."
        for key in table:
            if key in known and key not in PER_PARTITION:
                raise ConfigError(
                    file, f"is for the whole site; a partition may have {', '.join(PER_PARTITION)}", where + key
                )
        know_all(table, PER_PARTITION, file, where)
        partitions[name] = _settings({**given, **table}, file, where)
    if settings.switched_off:
        settings = replace(settings, mode="off")
        partitions = {name: replace(one, mode="off") for name, one in partitions.items()}
    return Configuration(settings, {key: file if key in given else DEFAULT for key in known}, partitions, file)


def read_toml(text: str, file: str) -> dict[str, Any]:
    """Return the values in `text`. Raises ConfigError if it is not TOML."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # its own error, a number too long, or nesting without end
        raise ConfigError(file, f"is not TOML: {shown(str(error), 200)}") from error


def know_all(given: Mapping[str, Any], known: Sequence[str], file: str, where: str = "") -> None:
    """Raise ConfigError for a key that is not `known`, and suggest a similar one. `where`: the table."""
    for key in given:
        if key not in known:
            hint = did_you_mean(key, known, f"the keys are {', '.join(known)}")
            raise ConfigError(file, f"unknown key{hint}", where + key)


def typed(
    given: Mapping[str, Any],
    kind: type[Values],
    file: str,
    where: str = "",
    wanted: Mapping[str, str] = MappingProxyType({}),
) -> Values:
    """Return the values as a record. Raises ConfigError for a value of a wrong type.

    wanted: descriptions of the expected value by key, for errors; a key without one is described by its type.
    """
    try:
        return msgspec.convert(given, kind, strict=True)
    except msgspec.ValidationError as error:
        # msgspec ends its sentence with where it was: "Expected `int`, got `str` - at `$.max_share`"
        why, _, place = str(error).partition(" - at `$.")
        key = re.split(r"[`.\[]", place)[0]
        why = f"must be {wanted[key]}" if key in wanted else shown(why, 200)
        raise ConfigError(file, f"{why}; it says {quoted(given.get(key))}", where + key) from error


def _settings(given: Mapping[str, Any], file: str, where: str) -> Settings:
    """Return the settings of the whole site (`where` is empty), or of a partition, whose table overrides the site's."""
    for name, kind in _TABLES.items():
        table = given.get(name, {})
        if not isinstance(table, dict):
            raise ConfigError(file, f"wants a table: [{name}]", name)
        know_all(table, kind.__struct_fields__, file, f"{name}.")
        typed(table, kind, file, f"{name}.")
    settings = typed(given, Settings, file, where)

    def check(is_valid: object, place: str, must: str, value: object) -> None:
        if not is_valid:
            raise ConfigError(file, f"{must}; it says {quoted(value)}", place)

    messages = settings.messages
    check(
        re.fullmatch(r"[A-Za-z0-9_.:@-]{0,15}", messages.interface),  # IFNAMSIZ of linux/if.h, with its NUL
        f"{MESSAGES}.interface",
        "must be the name of a network interface, or empty",
        messages.interface,
    )
    ports = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", messages.ports, re.ASCII)
    check(
        not messages.ports or (ports is not None and 1024 <= int(ports[1]) <= int(ports[2]) <= 65535),
        f"{MESSAGES}.ports",
        "must be a range of ports such as 60000-60999, or empty",
        messages.ports,
    )
    for key, (low, high) in _RANGES.items():
        is_within = low <= getattr(settings, key) <= high
        check(is_within, where + key, f"must be from {low:.12g} to {high:.12g}", given.get(key))
    for key in _PATHS:
        path = getattr(settings, key)
        is_path = not path or (path.startswith("/") and path.isprintable())
        check(is_path, where + key, "must be an absolute path, or empty", path)
    words = list(settings.remote_command)
    has_node = REMOTE_NODE in words and words[0] != REMOTE_NODE
    check(has_node, f"{where}remote_command", f"needs a program and the word {REMOTE_NODE} behind it", words)
    feature = settings.node_feature
    is_feature = re.fullmatch(r"[A-Za-z0-9_.-]*", feature)
    check(is_feature, f"{where}node_feature", "must be one feature (letters, digits, _ . -), or empty", feature)
    try:
        parse_sm(settings.sm)
    except ValueError as error:
        raise ConfigError(file, f"{error}; it says {quoted(settings.sm)}", where + "sm") from error
    return settings

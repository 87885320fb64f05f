"""`slurm-share config`: the settings with their values and sources, a new config.toml, and its copy for
job_submit.lua."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from msgspec import Struct
from rich.table import Table

from ..core import names, terminal
from ..core.config import load
from ..core.errors import UsageError
from ..core.nodelist import check_settings
from ..core.paths import CONFIG_FILE
from ..core.settings import PER_PARTITION
from ..install import ConfigChange, difference, plan_config, write_config, write_lua_settings
from ..share import modes_text
from ..slurm import backend

EXIT_DIFFERS = 1


def add_to(commands: Any) -> None:
    """Add the sub-command `config` and its actions."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "config", help="print the site's settings, or write them for job_submit.lua"
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    show = actions.add_parser("print", help="print all values and their sources; report mistakes by file and key")
    show.add_argument("--file", type=Path, help=f"configuration file (default: {CONFIG_FILE})")
    show.add_argument("--json", action="store_true", help="print JSON")
    show.set_defaults(run=print_config)
    write = actions.add_parser(
        "write-lua",
        help=f"on the controller, after a change of {CONFIG_FILE.name}: write the settings for job_submit.lua",
    )
    write.set_defaults(run=write_lua)
    apply = actions.add_parser(
        "apply",
        help=f"make FILE the {CONFIG_FILE.name} of this host and write its settings for job_submit.lua, if they differ",
        description=f"Check FILE, make it {CONFIG_FILE}, and write its settings for job_submit.lua. Files that are as "
        "they should be are not touched, so a configuration management may run it every time. Where `slurm-share off` "
        "is in force it stays in force. Exit code with --check: 0 if nothing would change, 1 if something would, 2 if "
        "FILE is wrong.",
    )
    apply.add_argument("file", metavar="FILE", help="a configuration file, or - for standard input")
    apply.add_argument("--check", action="store_true", help="show what would change as a diff, and change nothing")
    apply.add_argument("--json", action="store_true", help="print JSON")
    apply.set_defaults(run=apply_config)


def print_config(arguments: argparse.Namespace) -> int:
    """Print the settings. Raises ConfigError for a file with mistakes, so that a new file can be checked first."""
    configuration = load(arguments.file)
    check_settings(configuration)
    rows: list[tuple[str, Any, str]] = []
    for key, source in configuration.sources.items():
        value = getattr(configuration.settings, key)
        if isinstance(value, Struct):  # a table
            rows += [(f"{key}.{name}", getattr(value, name), source) for name in value.__struct_fields__]
        else:
            rows.append((key, value, source))
    for name, settings in configuration.partitions.items():
        differ = [key for key in PER_PARTITION if getattr(settings, key) != getattr(configuration.settings, key)]
        rows += [(f"partition.{name}.{key}", getattr(settings, key), configuration.file) for key in differ]
    if arguments.json:
        print(json.dumps({key: {"value": value, "source": source} for key, value, source in rows}, indent=2))
        return names.EXIT_OK
    table = Table(box=None, pad_edge=False)
    for heading in ("SETTING", "VALUE", "FROM"):
        table.add_column(heading, overflow="fold")
    for key, value, source in rows:
        table.add_row(key, _toml(value), source)
    terminal.show(table)
    if arguments.file is None:
        print(f"\n{backend.describe()}")
    return names.EXIT_OK


def write_lua(arguments: argparse.Namespace) -> int:
    """Write the settings for job_submit.lua. Raises ConfigError for a wrong file, StateError where none can be
    written."""
    configuration = load()
    check_settings(configuration)
    file = write_lua_settings(CONFIG_FILE)
    if file is None:
        print(f"there is no {CONFIG_FILE}, and nothing is written: job_submit.lua has the same defaults")
    else:
        modes = modes_text(configuration.settings.mode, configuration.modes())
        print(f"wrote {file}: mode {modes}, from the next job on")
    return names.EXIT_OK


def apply_config(arguments: argparse.Namespace) -> int:
    """Write config.toml and the settings for job_submit.lua, where they differ. Raises ConfigError for a wrong file,
    StateError where one cannot be read or written."""
    change = plan_config(*_given(arguments.file), CONFIG_FILE)
    if change.is_needed and not arguments.check:
        write_config(change)
    if arguments.json:
        _print_json(change, is_check=arguments.check)
    else:
        _print_change(change, is_check=arguments.check)
    return EXIT_DIFFERS if change.is_needed and arguments.check else names.EXIT_OK


def _given(name: str) -> tuple[bytes, str]:
    """Return the new text and its name in errors. Raises UsageError if it cannot be read."""
    if name == "-":
        return sys.stdin.buffer.read(), "standard input"
    try:
        return Path(name).read_bytes(), name
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}") from error


def _print_change(change: ConfigChange, *, is_check: bool) -> None:
    if is_check:
        before, after = ((text or b"").decode(errors="replace") for text in (change.before, change.after))
        sys.stdout.write(difference(change.file, before, after))
    would = "would be" if is_check else "is"
    if change.before != change.after:
        print(f"{change.file} {would} written")
    if change.lua_before != change.lua_after:
        print(f"{change.lua_file} {would} written, for job_submit.lua")
    if not change.is_needed:
        print(f"{change.file} and {change.lua_file} are as they should be")
    if change.is_switched_off:
        print("sharing stays switched off on this host, by `slurm-share off`; `slurm-share on` ends that")


def _print_json(change: ConfigChange, *, is_check: bool) -> None:
    files = ((change.file, change.before, change.after), (change.lua_file, change.lua_before, change.lua_after))
    differ = [file for file, before, after in files if before != after]
    found = {
        "action": "check" if is_check else "apply",
        "changed": change.is_needed and not is_check,
        "differ": differ,
        "is_switched_off": change.is_switched_off,
    }
    print(json.dumps(found, indent=2))


def _toml(value: Any) -> str:
    """Return a value as it would be written in the file."""
    return json.dumps(list(value) if isinstance(value, tuple) else value)

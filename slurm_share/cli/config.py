"""`slurm-share config`: the settings with their values and sources, and their copy for job_submit.lua."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from msgspec import Struct
from rich.table import Table

from ..core import names, terminal
from ..core.config import load
from ..core.nodelist import check_settings
from ..core.paths import CONFIG_FILE
from ..core.settings import PER_PARTITION
from ..install import write_lua_settings
from ..share import modes_text
from ..slurm import backend


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


def _toml(value: Any) -> str:
    """Return a value as it would be written in the file."""
    return json.dumps(list(value) if isinstance(value, tuple) else value)

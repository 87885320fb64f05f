"""Edits of config.toml by `slurm-share off` and `on`, and the settings file for job_submit.lua."""

from __future__ import annotations

from pathlib import Path

from ..core import config
from ..core.errors import UsageError
from ..core.paths import CONFIG_FILE
from ..core.settings import Configuration
from ..share import lua_settings, switch
from . import files


def write_switched_off(before: Configuration, *, off: bool) -> Configuration:
    """Add or remove the line `switched_off` and return the new configuration. Raises StateError if the file cannot be
    written, UsageError if the line cannot be found."""
    if before.settings.switched_off == off:
        return before
    file = Path(before.file or CONFIG_FILE)
    try:
        old: bytes | None = file.read_bytes()
    except FileNotFoundError:
        old = None
    new = switch.switched((old or b"").decode("utf-8"), off=off)
    if new is None:
        raise UsageError(f"{file}: write `switched_off = {str(off).lower()}` there by hand: the line cannot be found")
    files.replace(str(file), old, new.encode())
    return config.load()


def write_lua_settings(config_file: Path = CONFIG_FILE) -> Path | None:
    """Write the settings for job_submit.lua and return their file; None: there is no config.toml, so the defaults
    apply.

    Raises ConfigError for an invalid config.toml, StateError if the file cannot be written.
    """
    text = lua_settings.expected(config_file)
    file = config_file.with_name(lua_settings.NAME)
    if not config_file.exists() and not file.exists():
        return None
    files.write(str(file), text.encode("ascii"))
    return file

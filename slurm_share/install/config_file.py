"""Writes config.toml: edits by `slurm-share off` and `on`, a new text, and the settings file for job_submit.lua."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from ..core import config
from ..core.errors import ConfigError, UsageError
from ..core.nodelist import check_settings
from ..core.paths import CONFIG_FILE
from ..core.settings import Configuration
from ..share import lua_settings, switch
from . import files


class ConfigChange(Struct, frozen=True, kw_only=True):
    """A new config.toml beside the present one, and the settings for job_submit.lua that belong to it."""

    file: str
    before: bytes | None
    """None: there is no file."""
    after: bytes
    lua_file: str
    lua_before: bytes | None
    lua_after: bytes
    is_switched_off: bool
    """True: `slurm-share off` is in force here, and the new text keeps its line."""

    @property
    def is_needed(self) -> bool:
        """Return whether one of the two files differs from what it is to be."""
        return self.before != self.after or self.lua_before != self.lua_after


def plan_config(text: bytes, source: str, file: Path = CONFIG_FILE) -> ConfigChange:
    """Return what has to be written for a new text of config.toml. `source`: its name in errors.

    Raises ConfigError for a text with mistakes, StateError for a present file that cannot be read.
    """
    try:
        new = text.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ConfigError(source, f"cannot be read: {error}") from error
    if not new.strip():  # most likely the command or template that was to write it failed
        raise ConfigError(
            source, 'is empty, and nothing was written; for the defaults write their mode: mode = "observe"'
        )
    check_settings(config.parse(new, source))
    before = files.read(file)
    off = before is not None and switch.is_off(before.decode("utf-8", errors="replace"))
    if off:  # an admin's `slurm-share off` outlives the next run of a tool that knows nothing of it
        kept = switch.switched(new, off=True)
        if kept is None:
            raise ConfigError(source, "has `switched_off` in a form that cannot be edited; leave that key out")
        new, text = kept, kept.encode()
    lua_file = file.with_name(lua_settings.NAME)
    return ConfigChange(
        file=str(file),
        before=before,
        after=text,
        lua_file=str(lua_file),
        lua_before=files.read(lua_file),
        lua_after=lua_settings.render(text, config.parse(new, str(file))).encode("ascii"),
        is_switched_off=off,
    )


def write_config(change: ConfigChange) -> None:
    """Write config.toml, then the settings for job_submit.lua. Raises StateError if one cannot be written, or was
    changed meanwhile."""
    files.replace(change.file, change.before, change.after)
    files.replace(change.lua_file, change.lua_before, change.lua_after)


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

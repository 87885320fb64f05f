"""Finds and reads the site's configuration file and answers with one typed Settings."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from . import names, share_option
from .errors import ConfigError, OptionError
from .paths import CONFIG_FILE
from .settings import Settings

DEFAULT = "default"

_RANGES = {
    "max_share": (1, names.SHARE_MAX),
    "memory_reserve_percent": (0.0, 50.0),
    "mps_server_memory_mib": (0, 65536),
    "hook_deadline_s": (0.1, 300.0),
    "release_deadline_s": (0.1, 300.0),
}


class Configuration(Struct, frozen=True):
    """Settings, and where each value came from."""

    settings: Settings
    sources: Mapping[str, str]
    """Per key: the file's path, or `default`."""


def load(file: Path | None = None) -> Configuration:
    """The configuration of this host, all defaults where it has none; or the one in `file`, which must be there.

    Raises ConfigError for a file that cannot be read, is not TOML, has an unknown key or a value of a wrong kind.
    """
    place = file or CONFIG_FILE
    try:
        text = place.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if file is not None:
            raise ConfigError(str(file), "there is no such file") from error
        text = ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(place), f"cannot be read: {error}") from error
    return parse(text, str(place))


def parse(text: str, file: str) -> Configuration:
    """The configuration in `text`. Raises ConfigError as `load` does."""
    try:
        given = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # its own error, a number too long, or nesting without end
        raise ConfigError(file, f"is not TOML: {error}") from error
    known = list(Settings.__struct_fields__)
    for key in given:
        if key not in known:
            raise ConfigError(file, _unknown(key, known), key)
    return Configuration(_settings(given, file), {key: file if key in given else DEFAULT for key in known})


def _unknown(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return "unknown key" + (f"; did you mean {near[0]}?" if near else f"; the keys are {', '.join(known)}")


def _settings(given: Mapping[str, Any], file: str) -> Settings:
    try:
        settings = msgspec.convert(given, Settings, strict=True)
    except msgspec.ValidationError as error:
        # msgspec ends its sentence with where it was: "Expected `int`, got `str` - at `$.max_share`"
        why, _, place = str(error).partition(" - at `$.")
        key = re.split(r"[`.\[]", place)[0]
        raise ConfigError(file, f"{why}; it says {given.get(key)!r}", key) from error
    for key, (low, high) in _RANGES.items():
        if not low <= getattr(settings, key) <= high:
            raise ConfigError(file, f"must be from {low:g} to {high:g}; it says {given[key]!r}", key)
    for key in ("log_file", "mps_control"):
        path = getattr(settings, key)
        if path and (not path.startswith("/") or not path.isprintable()):
            raise ConfigError(file, f"must be an absolute path, or empty; it says {path!r}", key)
    try:
        share_option.parse_sm(settings.sm)
    except OptionError as error:
        raise ConfigError(file, f"{error.why}; it says {settings.sm!r}", "sm") from error
    return settings

"""job_submit_settings.lua, the settings in the form that job_submit.lua reads, beside config.toml."""

from __future__ import annotations

from pathlib import Path

from ..core import config
from ..core.errors import ConfigError
from ..core.paths import CONFIG_FILE
from ..core.settings import Configuration
from .rules.lua_settings import render

NAME = "job_submit_settings.lua"
COMMAND = "slurm-share config write-lua"
"""Writes the file. Named in messages of job_submit.lua, too (a test compares)."""


def expected(config_file: Path) -> str:
    """Return what the file has to say for this config.toml. Raises ConfigError for a config.toml that is wrong."""
    try:
        data = config_file.read_bytes()
        text = data.decode("utf-8")
    except FileNotFoundError:
        data, text = b"", ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(config_file), f"cannot be read: {error}") from error
    return render(data, config.parse(text, str(config_file)))


def outdated(configuration: Configuration) -> str:
    """Return the problem and its way out, on a host where the file is; empty: there is none, or no file."""
    config_file = Path(configuration.file or CONFIG_FILE)
    found = problem(config_file) if config_file.with_name(NAME).exists() else ""
    return f"jobs to come are not shared: {found}; run `{COMMAND}`" if found else ""


def problem(config_file: Path) -> str:
    """Return why job_submit.lua treats sharing as switched off, whatever config.toml says; empty: it does not."""
    file = config_file.with_name(NAME)
    try:
        found = file.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return f"{file} is missing" if config_file.exists() else ""
    except OSError as error:
        return f"{file} cannot be read ({error.strerror})"
    try:
        wanted = expected(config_file)
    except ConfigError:
        return f"{config_file} cannot be understood"
    return "" if found == wanted else f"{config_file} is not what {file} was written from"

"""job_submit_settings.lua, the settings in the form that job_submit.lua reads, beside config.toml."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..core import config
from ..core.errors import ConfigError
from ..core.paths import CONFIG_FILE
from ..core.settings import Configuration

NAME = "job_submit_settings.lua"
COMMAND = "slurm-share config write-lua"
"""Writes the file. Named in messages of job_submit.lua, too (a test compares)."""
_HEAD = """\
-- Written by `slurm-share config write-lua` from config.toml, for job_submit.lua. Do not edit: change config.toml and
-- run that command again. Until then job_submit.lua treats sharing as switched off.
"""


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


def render(data: bytes, configuration: Configuration) -> str:
    """Return the Lua file, in ASCII. `data`: the bytes of config.toml, which job_submit.lua compares with the file."""
    settings = configuration.settings
    modes = ", ".join(
        f"[{_quoted(name.encode())}] = {_quoted(one.mode.encode())}" for name, one in configuration.partitions.items()
    )
    rows = {
        "mode": _quoted(settings.mode.encode()),
        "shards_per_gpu": str(settings.shards_per_gpu),
        "verdict_field": _quoted(settings.verdict_field.encode()),
        "node_feature": _quoted(settings.node_feature.encode()),
        "exclusive_user_partitions": _list(settings.exclusive_user_partitions),
        "exclusive_user_nodes": _list(settings.exclusive_user_nodes),
        "partitions": f"{{ {modes} }}",
        "config": _quoted(data),
    }
    return _HEAD + "return {\n" + "".join(f"  {key} = {value},\n" for key, value in rows.items()) + "}\n"


def _list(items: Iterable[str]) -> str:
    return f"{{ {', '.join(_quoted(item.encode()) for item in items)} }}"


def _quoted(data: bytes) -> str:
    """Return a Lua string of exactly these bytes; a long bracket would change the ends of lines."""
    return f'"{"".join(map(_escaped, data))}"'


def _escaped(byte: int) -> str:
    if byte == 0x0A:
        return "\\\n"
    return chr(byte) if 0x20 <= byte < 0x7F and byte not in b'"\\' else f"\\{byte:03d}"

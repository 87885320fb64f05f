"""The settings that job_submit.lua needs, as a Lua file that returns a table."""

from __future__ import annotations

from collections.abc import Iterable

from ...core.settings import Configuration

_HEAD = """\
-- Written by `slurm-share config write-lua` from config.toml, for job_submit.lua. Do not edit: change config.toml and
-- run that command again. Until then job_submit.lua treats sharing as switched off.
"""


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

"""The user's configuration (tui.toml), and the choices that the dashboard remembers (tui.json).

`$XDG_CONFIG_HOME/slurm-share/tui.toml` is only read; the dashboard writes `$XDG_STATE_HOME/slurm-share/tui.json`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace as changed

from slurm_share.core import files
from slurm_share.core.config import know_all, read_toml, typed
from slurm_share.core.errors import ConfigError, quoted

LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.5, 86_400.0
WANTED = {
    "theme": 'the name of a theme, as "dark"',
    "interval": "a number of seconds",
    "readonly": "true or false",
    "ascii": "true or false",
    "alerts": "a table of thresholds, as idle_minutes = 10",
    "keys": 'a table of keys by id, as "go.down" = "enter,n"',
}
"""Descriptions of valid values, for error messages."""
IDLE_LEAST = 10.0
"""Least minutes of an alert for idle GPUs: the time over which idleness is judged (`thresholds.HELD_IDLE_S`)."""
WAIT_S = 5.0
"""Longest wait for a write in another thread, seconds: a file server that hangs must not keep the dashboard from
ending."""
MOST_BYTES = 1 << 20
"""Most bytes of either file."""


class AlertConfig(Struct, frozen=True, kw_only=True):
    """Table [alerts] of the configuration. 0 turns an alert off."""

    idle_minutes: float = 10.0
    """GPUs that a job holds and leaves idle for so long; at least 10, the time over which idleness is judged."""
    memory_percent: float = 95.0
    """Host memory of what a job has, or GPU memory of a task's cap."""
    silent_seconds: float = 60.0
    """Seconds after which a node that does not answer is an alert."""
    ended: bool = True
    """An own job that has ended or failed."""
    others: bool = False
    """Also jobs of others, and nodes without an own job."""
    bell: bool = True
    """Ring the terminal's bell."""


class UserConfig(Struct, frozen=True, kw_only=True):
    """The user's configuration. Command-line options take precedence."""

    theme: str = ""
    """Empty: the theme chosen last, else the default of the terminal."""
    interval: float | None = None
    """Seconds between two surveys."""
    readonly: bool = False
    """True: nothing can be cancelled or signalled."""
    ascii: bool | None = None
    """True: only ASCII characters; False: blocks and arrows if the encoding has them; None: as the terminal is."""
    alerts: AlertConfig = AlertConfig()
    """When an alert is given."""
    keys: dict[str, str] = {}
    """Keys of a binding, with commas between, by its id in `keymap`."""


class TableChoice(Struct, frozen=True, kw_only=True):
    """The choices for one table."""

    columns: tuple[str, ...] = ()
    """Ids of columns in their order; empty: the table's own."""
    sort: str = ""
    """Id of a column."""
    down: bool = False


class UserChoices(Struct, frozen=True, kw_only=True):
    """The choices made with keys and mouse."""

    theme: str = ""
    view: str = ""
    charts: bool = True
    """Whether the charts of the row under the cursor are shown."""
    tables: dict[str, TableChoice] = {}
    """Choices by name of the table."""


def config_file() -> Path:
    return _home("XDG_CONFIG_HOME", ".config") / "slurm-share/tui.toml"


def memory_file() -> Path:
    return _home("XDG_STATE_HOME", ".local/state") / "slurm-share/tui.json"


def read_config(file: Path | None = None) -> UserConfig:
    """Return the configuration in `file`, which must exist; without it the user's own, or the defaults.

    Raises ConfigError for a file that is unreadable or not TOML, an unknown key, or a value of a wrong kind. The ids
    and keys under `[keys]` are checked by `keymap.checked`.
    """
    place = file or config_file()
    try:
        text = _read(place)
    except FileNotFoundError as error:
        if file is not None:
            raise ConfigError(str(file), "there is no such file") from error
        return UserConfig()
    except (OSError, ValueError) as error:
        raise ConfigError(str(place), f"cannot be read: {error}") from error
    return parse_config(text, str(place))


def parse_config(text: str, file: str) -> UserConfig:
    """Return the configuration in `text`. Raises ConfigError as `read_config` does."""
    given = read_toml(text, file)
    know_all(given, UserConfig.__struct_fields__, file)
    if isinstance(given.get("keys"), dict):
        given["keys"] = _flat(given["keys"])
    if isinstance(table := given.get("alerts"), dict):
        know_all(table, AlertConfig.__struct_fields__, file, "alerts.")
        _check_alerts(typed(table, AlertConfig, file, "alerts."), file)
    config = typed(given, UserConfig, file, wanted=WANTED)
    if config.interval is not None and not LEAST_INTERVAL_S <= config.interval <= MOST_INTERVAL_S:
        span = f"must be from {LEAST_INTERVAL_S:g} to {MOST_INTERVAL_S:g} seconds"
        raise ConfigError(file, f"{span}; it says {quoted(config.interval)}", "interval")
    return config


def _check_alerts(config: AlertConfig, file: str) -> None:
    """Raise ConfigError for a threshold that is none."""
    least = {"idle_minutes": IDLE_LEAST, "memory_percent": 1.0, "silent_seconds": 1.0}
    most = {"idle_minutes": 1440.0, "memory_percent": 100.0, "silent_seconds": 86_400.0}
    for name in least:
        value = getattr(config, name)
        if value and not least[name] <= value <= most[name]:
            must = f"must be 0 (off), or from {least[name]:g} to {most[name]:g}"
            raise ConfigError(file, f"{must}; it says {quoted(value)}", f"alerts.{name}")


def _flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested tables as dotted keys: TOML reads an unquoted `go.down` as a table in a table."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{before}{key}.")
        else:
            found[before + key] = value
    return found


def read_remembered(file: Path) -> tuple[UserChoices, str]:
    """Return the choices, and an error line if the file exists and cannot be used."""
    try:
        return msgspec.json.decode(_read(file), type=UserChoices), ""
    except FileNotFoundError:
        return UserChoices(), ""
    except (OSError, ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors
        return UserChoices(), f"{file}: what was remembered cannot be read and is left aside: {error}"


def write_remembered(file: Path, remembered: UserChoices) -> str:
    """Write the choices, through a symbolic link if there is one; return an error line if that fails."""
    try:
        file = file.resolve()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.write(file, msgspec.json.format(msgspec.json.encode(remembered), indent=1) + b"\n")
    except (OSError, RuntimeError) as error:  # a loop of links
        return f"{file}: choices cannot be kept: {error}"
    return ""


def _read(file: Path) -> str:
    with file.open("rb") as opened:
        data = opened.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"longer than {MOST_BYTES} bytes")
    return data.decode("utf-8")


def _home(name: str, default: str) -> Path:
    """Return a base directory of the XDG specification, which ignores relative paths."""
    given = os.environ.get(name, "")
    return Path(given) if given.startswith("/") else Path.home() / default


class RememberedChoices:
    """The remembered choices of a running dashboard: changed at each choice, written now and then by any thread, and at
    the end.

    Other dashboards of the user may write meanwhile: only choices made here are overwritten.
    """

    def __init__(self, file: Path | None = None, remembered: UserChoices | None = None) -> None:
        """`file` None: nothing is written."""
        self.file = file
        self.now = remembered or UserChoices()
        self._chosen: dict[str, str | bool] = {}
        self._tables: dict[str, TableChoice] = {}
        # Reentrant, since a signal handler writes too.
        self._lock = threading.RLock()
        """Guards the unwritten choices."""
        self._writing = threading.RLock()
        self._is_failed = False
        """True: a write failed, and that was reported."""

    @property
    def is_new(self) -> bool:
        return self.file is not None and bool(self._chosen or self._tables) and not self._is_failed

    def choose(self, *, theme: str | None = None, view: str | None = None, charts: bool | None = None) -> None:
        given = {"theme": theme, "view": view, "charts": charts}
        new = {name: value for name, value in given.items() if value is not None and value != getattr(self.now, name)}
        if new:
            with self._lock:
                self._chosen |= new
                self._is_failed = False
            self.now = changed(self.now, **new)

    def choose_table(self, name: str, choice: TableChoice) -> None:
        if self.now.tables.get(name) != choice:
            with self._lock:
                self._tables[name] = choice
                self._is_failed = False
            self.now = changed(self.now, tables={**self.now.tables, name: choice})

    def keep(self) -> str:
        """Write new choices; return an error line, once only, if that fails."""
        if not self._writing.acquire(timeout=WAIT_S):
            return f"{self.file}: choices are not kept: the file does not answer"
        try:
            return "" if self.file is None or not self.is_new else self._write(self.file)
        finally:
            self._writing.release()

    def _write(self, file: Path) -> str:
        with self._lock:
            chosen, self._chosen = self._chosen, {}
            tables, self._tables = self._tables, {}
        there, problem = read_remembered(file)
        if problem:  # keep the broken file; if that fails, writing fails too, and is reported
            with contextlib.suppress(OSError):
                file.replace(file.with_name(f"{file.name}.broken"))
        why = write_remembered(file, changed(there, tables={**there.tables, **tables}, **chosen))
        if why:
            with self._lock:
                self._chosen, self._tables = chosen | self._chosen, tables | self._tables
                self._is_failed = True
        return why

"""What a person wrote about the dashboard (tui.toml), and what the dashboard remembers of their choices (tui.json).

`$XDG_CONFIG_HOME/slurm-share/tui.toml` is read and never written; `$XDG_STATE_HOME/slurm-share/tui.json` is ours.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace as changed

from slurm_share.core.config import know_all, read_toml, typed
from slurm_share.core.errors import ConfigError

if TYPE_CHECKING:
    from .widgets.grid import Grid

FOLDER = "slurm-share"
CONFIG_NAME, MEMORY_NAME = "tui.toml", "tui.json"
LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.5, 86_400.0
WANTED = {
    "theme": 'the name of a theme, as "dark"',
    "interval": "a number of seconds",
    "readonly": "true or false",
    "ascii": "true or false",
    "keys": 'a table of keys by id, as "go.down" = "enter,d"',
}
"""What a value has to be, for a person."""
WAIT_S = 5.0
"""For a write that goes on in another thread: the way out is not to hang with it."""
MOST_BYTES = 1 << 20
"""Most bytes of either file: a longer one was written neither by a person nor by the dashboard."""


class UserConfig(Struct, frozen=True, kw_only=True):
    """What a person wrote. The command's words go before it."""

    theme: str = ""
    """Empty: the one chosen last, or what suits the terminal."""
    interval: float | None = None
    """Seconds between two surveys."""
    readonly: bool = False
    """True: nothing is cancelled or signalled from here."""
    ascii: bool | None = None
    """True: no signs but those of ASCII; false: blocks and arrows where the encoding has them; None: as the terminal
    is."""
    keys: dict[str, str] = {}
    """Id of a binding (`tui/keymap.py`) -> its keys, with commas between."""


class TableChoice(Struct, frozen=True, kw_only=True):
    """What was chosen for one table."""

    columns: tuple[str, ...] = ()
    """Ids in their order; empty: as the table has them."""
    sort: str = ""
    """Id of a column."""
    down: bool = False


class Remembered(Struct, frozen=True, kw_only=True):
    """What was chosen with keys and mouse, for the next time."""

    theme: str = ""
    view: str = ""
    charts: bool = True
    """Whether charts of the row under the cursor are shown."""
    tables: dict[str, TableChoice] = {}
    """Name of a table -> its choice."""


def choice_of(grid: Grid[Any]) -> TableChoice:
    """What was chosen for a table, to be remembered."""
    column, down = grid.sort
    return TableChoice(columns=grid.chosen, sort=column, down=down)


def choose_again(grid: Grid[Any], choice: TableChoice) -> None:
    """What was chosen for it the last time. Columns that there are no more are left aside."""
    if choice.columns:
        grid.chosen = choice.columns
    if choice.sort:
        grid.sort_by(choice.sort, choice.down)


def config_file(environ: Mapping[str, str] | None = None) -> Path:
    """Where a person's configuration is looked for."""
    return _home("XDG_CONFIG_HOME", ".config", environ) / FOLDER / CONFIG_NAME


def memory_file(environ: Mapping[str, str] | None = None) -> Path:
    """Where choices are kept."""
    return _home("XDG_STATE_HOME", ".local/state", environ) / FOLDER / MEMORY_NAME


def read_config(file: Path | None = None, environ: Mapping[str, str] | None = None) -> UserConfig:
    """The configuration in `file`, which must be there; without one the person's own, all defaults where there is none.

    Raises ConfigError for a file that cannot be read, is not TOML, has an unknown key or a value of a wrong kind. What
    the ids and keys under `[keys]` say is checked by `keymap.checked`.
    """
    place = file or config_file(environ)
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
    """The configuration in `text`. Raises ConfigError as `read_config` does."""
    given = read_toml(text, file)
    know_all(given, UserConfig.__struct_fields__, file)
    if isinstance(given.get("keys"), dict):
        given["keys"] = _flat(given["keys"])
    config = typed(given, UserConfig, file, wanted=WANTED)
    if config.interval is not None and not LEAST_INTERVAL_S <= config.interval <= MOST_INTERVAL_S:
        span = f"must be from {LEAST_INTERVAL_S:g} to {MOST_INTERVAL_S:g} seconds"
        raise ConfigError(file, f"{span}; it says {config.interval!r}", "interval")
    return config


def _flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """go.down = "x" without quotes is a table in a table to TOML, and the same to us."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{before}{key}.")
        else:
            found[before + key] = value
    return found


def read_remembered(file: Path) -> tuple[Remembered, str]:
    """(what was chosen; a line of trouble, where the file is there and of no use)."""
    try:
        return msgspec.json.decode(_read(file), type=Remembered), ""
    except FileNotFoundError:
        return Remembered(), ""
    except (OSError, ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors
        return Remembered(), f"{file}: what was remembered cannot be read and is left aside: {error}"


def write_remembered(file: Path, remembered: Remembered) -> str:
    """Write it, through a link if there is one; return an error line if that fails."""
    try:
        file = file.resolve()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}.", delete=False) as new:
            try:
                new.write(msgspec.json.format(msgspec.json.encode(remembered), indent=1) + b"\n")
                new.flush()
                Path(new.name).replace(file)
            except BaseException:
                Path(new.name).unlink(missing_ok=True)
                raise
    except (OSError, RuntimeError) as error:  # links that lead in a circle
        return f"{file}: choices cannot be kept: {error}"
    return ""


def _read(file: Path) -> str:
    with file.open("rb") as opened:
        data = opened.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"longer than {MOST_BYTES} bytes")
    return data.decode("utf-8")


def _home(name: str, default: str, environ: Mapping[str, str] | None) -> Path:
    """XDG: what is not an absolute path is as if it were not set."""
    environ = os.environ if environ is None else environ
    given = environ.get(name, "")
    return Path(given) if given.startswith("/") else Path(environ.get("HOME") or Path.home()) / default


class Memory:
    """What is remembered, while the dashboard runs: changed at each choice, written now and then, by any thread, and at
    the end.

    Another dashboard of the same person may write meanwhile: what was not chosen here stays as that one left it.
    """

    def __init__(self, file: Path | None = None, remembered: Remembered | None = None) -> None:
        """`file` None: nothing is kept."""
        self.file = file
        self.now = remembered or Remembered()
        self._chosen: dict[str, str | bool] = {}
        self._tables: dict[str, TableChoice] = {}
        # Both may be entered again by their own thread: a signal's handler writes too.
        self._lock = threading.RLock()
        """Guards what was chosen."""
        self._writing = threading.RLock()
        self._is_failed = False
        """What is chosen has not been kept, and that has been said."""

    @property
    def is_new(self) -> bool:
        """Whether there is something to write."""
        return self.file is not None and bool(self._chosen or self._tables) and not self._is_failed

    def choose(self, *, theme: str | None = None, view: str | None = None, charts: bool | None = None) -> None:
        """The theme, or the view, is now this one; charts are shown or not."""
        given = {"theme": theme, "view": view, "charts": charts}
        new = {name: value for name, value in given.items() if value is not None and value != getattr(self.now, name)}
        if new:
            with self._lock:
                self._chosen |= new
                self._is_failed = False
            self.now = changed(self.now, **new)

    def choose_table(self, name: str, choice: TableChoice) -> None:
        """A table's columns and sort are now these."""
        if self.now.tables.get(name) != choice:
            with self._lock:
                self._tables[name] = choice
                self._is_failed = False
            self.now = changed(self.now, tables={**self.now.tables, name: choice})

    def keep(self) -> str:
        """Write what is new; return an error line, once only, if that fails."""
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
        if problem:
            _lay_aside(file)
        why = write_remembered(file, changed(there, tables={**there.tables, **tables}, **chosen))
        if why:
            with self._lock:
                self._chosen, self._tables = chosen | self._chosen, tables | self._tables
                self._is_failed = True
        return why


def _lay_aside(file: Path) -> None:
    """What is broken may have been somebody's: it goes beside, and is not written over."""
    try:
        file.replace(file.with_name(f"{file.name}.broken"))
    except OSError:
        pass  # then it cannot be written either, which is said

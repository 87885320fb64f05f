"""slurm.conf, gres.conf, cgroup.conf and plugstack.conf with what they include, read as Slurm reads them."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from ..core.errors import ConfigError
from ..core.slurm_home import named_homes
from .conf_text import ConfLine, ConfText, parse

_DEPTH = 16
"""Slurm follows includes without counting; a file that includes itself would never end."""
_MOST_BYTES = 64 * 1024 * 1024


_PLACES = tuple(
    Path(folder, "slurm.conf")
    for folder in (
        "/etc/slurm",
        "/run/slurm/conf",
        "/etc/slurm-llnl",
        "/usr/local/etc",
        "/opt/slurm/etc",
        "/cm/shared/apps/slurm/var/etc/slurm",
    )
)
"""Where Debian and SchedMD's packages have it, a configless slurmd or sackd puts it, Debian had it before bullseye,
where a Slurm looks that was built into /usr/local or /opt/slurm, and where Bright has its first cluster's."""


def slurm_conf_path(
    given: Path | None = None, environ: Mapping[str, str] | None = None, root: Path = Path("/")
) -> Path:
    """Return where slurm.conf is, or would be. `root`: of the file system to read; the path does not include it.

    The first of: what the caller says, what SLURM_CONF says, etc in the folder that SLURM_SHARE_SLURM names
    (slurm_home.py), the first usual place that has one.
    """
    if given is not None:
        return given
    if conf := (os.environ if environ is None else environ).get("SLURM_CONF"):
        return Path(conf)
    named = (Path(home, etc, "slurm.conf") for home in named_homes(environ, root) for etc in ("etc", "etc/slurm"))
    places = (*named, *_PLACES)
    return next((place for place in places if is_there(root / place.relative_to("/"))), _PLACES[0])


def is_there(file: Path) -> bool:
    """Return whether it is a file, or may be one: for a path without access, the reader reports the error."""
    try:
        return stat.S_ISREG(file.stat().st_mode)
    except PermissionError:
        return True
    except OSError:
        return False


def included_path(conf: Path, name: str) -> Path:
    """Return the path of a file that slurm.conf names: relative names are in slurm.conf's folder."""
    return conf.parent / name


def read_conf(file: Path, instead: Mapping[str, str] | None = None) -> ConfText:
    """Read a file and everything it includes, in Slurm's order.

    For all of Slurm's files; a gres.conf has lines of its own for nodes, a plugstack.conf has no pairs and may include
    a pattern (`include plugstack.conf.d/*.conf`).
    `instead`: texts, by `str(path)`, that files are to be read as if they held. Raises ConfigError where a file is not
    to be read; an included one that is not there is in `missing`.
    """
    lines: list[ConfLine] = []
    missing: list[Path] = []
    _read(file, lines, missing, _DEPTH, instead or {})
    return ConfText(file, tuple(lines), tuple(missing))


def _read(file: Path, lines: list[ConfLine], missing: list[Path], depth: int, instead: Mapping[str, str]) -> None:
    if depth == 0:
        raise ConfigError(str(file), f"includes go deeper than {_DEPTH} files; does one include itself?")
    text = instead.get(str(file))
    for line in parse(read_text(file) if text is None else text, file):
        wanted = line.include
        if wanted is None:
            lines.append(line)
            continue
        cluster = next((v for one in reversed(lines) for k, v in one.pairs if k.lower() == "clustername"), "")
        wanted = wanted.replace("%c", cluster.lower())
        # A relative name begins in the folder of the file that has the line (_add_full_path; plugstack.c too).
        if any(sign in wanted for sign in "*?["):
            base = Path(wanted) if wanted.startswith("/") else file.parent / wanted
            for found in sorted(base.parent.glob(base.name)) if base.parent.is_dir() else ():
                _read(found, lines, missing, depth - 1, instead)
            continue
        path = file.parent / wanted
        if path.exists():
            _read(path, lines, missing, depth - 1, instead)
        else:
            missing.append(path)


def read_text(file: Path) -> str:
    """Return a configuration file's text; bytes that are not UTF-8 come back unchanged when written
    (surrogateescape).

    Raises ConfigError where it cannot be read.
    """
    try:
        seen = file.stat()
        if not stat.S_ISREG(seen.st_mode):
            raise ConfigError(str(file), "is no file")
        if seen.st_size > _MOST_BYTES:
            raise ConfigError(str(file), f"is larger than {_MOST_BYTES} bytes; that is no configuration file")
        return file.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError as error:
        raise ConfigError(str(file), "there is no such file") from error
    except OSError as error:
        raise ConfigError(str(file), f"cannot be read ({error.strerror})") from error

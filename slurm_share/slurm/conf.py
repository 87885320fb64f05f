"""Read slurm.conf, gres.conf, cgroup.conf and plugstack.conf with the files they include, as Slurm does."""

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
"""In this order: Debian's and SchedMD's packages, a configless slurmd or sackd, Debian before bullseye, builds into
/usr/local and /opt/slurm, the first cluster of Bright."""


def slurm_conf_path(
    given: Path | None = None, environ: Mapping[str, str] | None = None, root: Path = Path("/")
) -> Path:
    """Return where slurm.conf is, or would be: `given`, else SLURM_CONF, else etc in the folder that SLURM_SHARE_SLURM
    names (slurm_home.py), else the first usual place that has one.

    `root`: the root of the file system to read; it is no part of the returned path.
    """
    if given is not None:
        return given
    if conf := (os.environ if environ is None else environ).get("SLURM_CONF"):
        return Path(conf)
    named = (Path(home, etc, "slurm.conf") for home in named_homes(environ, root) for etc in ("etc", "etc/slurm"))
    places = (*named, *_PLACES)
    return next((place for place in places if is_there(root / place.relative_to("/"))), _PLACES[0])


def is_there(file: Path) -> bool:
    """Return whether a path is a file. True as well without access to it: the reader reports that."""
    try:
        return stat.S_ISREG(file.stat().st_mode)
    except PermissionError:
        return True
    except OSError:
        return False


def included_path(conf: Path, name: str) -> Path:
    """Return the path of a file that slurm.conf names. A relative name is in the folder of slurm.conf."""
    return conf.parent / name


def read_conf(file: Path, instead: Mapping[str, str] | None = None) -> ConfText:
    """Read a file and everything it includes, in Slurm's order.

    `instead`: texts by `str(path)`, which are taken for the contents of those files. Raises ConfigError for a file that
    cannot be read. An included file that does not exist is in `missing`.
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
    """Return a configuration file's text. Bytes that are not UTF-8 become lone surrogates (surrogateescape). Raises
    ConfigError where it cannot be read."""
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

"""Read slurm.conf, gres.conf, cgroup.conf and plugstack.conf with the files they include, as Slurm does."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from ..core.errors import ConfigError
from ..core.process import Finished
from ..core.slurm_home import named_homes
from .conf_text import ConfLine, ConfText, parse

READS_CONF = ("scontrol", "show", "hostnames", "localhost")
"""Every command of Slurm first reads slurm.conf with the daemons' parser and fails if a line is invalid; this one then
contacts no daemon."""
_ERROR = re.compile(r"^(?:\[[^]]*\] )?(?:[\w.-]+: )?(?:(?:error|fatal|warning)|plugin_load_from_file): ")
"""Prefix of an error message. srun does not count a plugin built for another release as an error: it goes on without
it.
"""
_NO_DEVICE = "is not a valid character or block device"
"""slurmd's message about a regular file used in place of a device."""
_MOST_DEPTH = 16
"""Most levels of included files. Slurm has no limit, but a file that includes itself would be read without end."""
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
"""These are the places of Debian's and SchedMD's packages, a configless slurmd or sackd, Debian before bullseye, builds
into /usr/local and /opt/slurm, and the first cluster of Bright, in this order."""


def slurm_conf_path(
    given: Path | None = None, environ: Mapping[str, str] | None = None, root: Path = Path("/")
) -> Path:
    """Return the path of slurm.conf, which need not exist.

    It is `given`, else SLURM_CONF, else in etc of the folder that SLURM_SHARE_SLURM names (slurm_home.py), else at the
    first usual place that has one.

    `root`: the root of the file system to search; the returned path does not include it.
    """
    if given is not None:
        return given
    if conf := (os.environ if environ is None else environ).get("SLURM_CONF"):
        return Path(conf)
    named = (Path(home, etc, "slurm.conf") for home in named_homes(environ, root) for etc in ("etc", "etc/slurm"))
    places = (*named, *_PLACES)
    return next((place for place in places if may_be_file(root / place.relative_to("/"))), _PLACES[0])


def may_be_file(file: Path) -> bool:
    """Return whether a path is a regular file. Return True without access to it: reading it then reports the reason."""
    try:
        return stat.S_ISREG(file.stat().st_mode)
    except PermissionError:
        return True
    except OSError:
        return False


def read_conf(file: Path, replacements: Mapping[str, str] | None = None) -> ConfText:
    """Read a file and everything it includes, in Slurm's order.

    `replacements`: path as a string -> text to use instead of the file's content. An included file that does not exist
    is listed in `missing`. Raises ConfigError if a file cannot be read.
    """
    lines: list[ConfLine] = []
    missing: list[Path] = []
    _read(file, lines, missing, _MOST_DEPTH, replacements or {})
    return ConfText(file, tuple(lines), tuple(missing))


def _read(file: Path, lines: list[ConfLine], missing: list[Path], depth: int, replacements: Mapping[str, str]) -> None:
    if depth == 0:
        raise ConfigError(str(file), f"includes go deeper than {_MOST_DEPTH} files; does one include itself?")
    text = replacements.get(str(file))
    for line in parse(read_text(file) if text is None else text, file):
        included = line.include
        if included is None:
            lines.append(line)
            continue
        cluster = next((v for one in reversed(lines) for k, v in one.pairs if k.lower() == "clustername"), "")
        included = included.replace("%c", cluster.lower())
        # A relative name is relative to the folder of the including file (_add_full_path; plugstack.c does the same).
        if any(sign in included for sign in "*?["):
            base = Path(included) if included.startswith("/") else file.parent / included
            for found in sorted(base.parent.glob(base.name)) if base.parent.is_dir() else ():
                _read(found, lines, missing, depth - 1, replacements)
            continue
        path = file.parent / included
        if path.exists():
            _read(path, lines, missing, depth - 1, replacements)
        else:
            missing.append(path)


def read_text(file: Path) -> str:
    """Return a configuration file's text. Bytes that are not UTF-8 become lone surrogates (surrogateescape).

    Raises ConfigError if it cannot be read.
    """
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(str(file), "is not a regular file")
        if found.st_size > _MOST_BYTES:
            raise ConfigError(str(file), f"is larger than {_MOST_BYTES} bytes, too large for a configuration file")
        return file.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError as error:
        raise ConfigError(str(file), "there is no such file") from error
    except OSError as error:
        raise ConfigError(str(file), f"cannot be read ({error.strerror})") from error


def complaints(done: Finished) -> list[str]:
    """Return the messages of a command of Slurm without time, program name and severity."""
    lines = [line.strip() for line in done.stderr.splitlines() if _ERROR.match(line) and _NO_DEVICE not in line]
    if not lines and done.code != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return [_ERROR.sub("", line) for line in lines]


def objection_of(done: Finished) -> str:
    """Return why the command READS_CONF cannot read slurm.conf; "": it can."""
    return "; ".join(complaints(done)) or f"scontrol ended with {done.code}" if done.code else ""

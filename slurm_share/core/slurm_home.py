"""Where a site keeps Slurm: the folders above its bin, sbin and lib, in the order in which every program of ours looks.

$SLURM_SHARE_SLURM, else the line of that name in /etc/default/slurm-share, else the usual places. slurm-confs says the
same to the shell (packaging/share/libexec; a test compares).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "SLURM_SHARE_SLURM"
SETTINGS_FILE = "/etc/default/slurm-share"
USUAL = ("/usr", "/usr/local", "/opt/slurm", "/cm/shared/apps/slurm/current")
"""Packages, builds by hand, and Bright (NVIDIA Base Command Manager)."""
_LINE = re.compile(rf"\s*(?:export\s+)?{VARIABLE}=(.*)")
_PROGRAMS = ("scontrol", "srun")


def slurm_homes(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> tuple[str, ...]:
    """Return the folders. `root`: the file system to read."""
    return _named(os.environ if environ is None else environ, root) or USUAL


def named_homes(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> tuple[str, ...]:
    """Return the folders named by the site; none if the usual ones apply."""
    return _named(os.environ if environ is None else environ, root)


def _named(environ: Mapping[str, str], root: Path) -> tuple[str, ...]:
    value = environ.get(VARIABLE, "")
    if not value.strip():
        try:
            text = (root / SETTINGS_FILE.lstrip("/")).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ()
        found = [match[1] for line in text.splitlines() if (match := _LINE.fullmatch(line))]
        value = re.sub(r"[\"']|(?<!\S)#.*", "", found[-1]) if found else ""
    return tuple(home.rstrip("/") or "/" for home in value.split() if home.startswith("/"))


def add_to_path(environ: dict[str, str] | os._Environ[str] | None = None, root: Path = Path("/")) -> None:
    """Make Slurm's commands be found where PATH has none of them: behind all that is in it."""
    here = os.environ if environ is None else environ
    path = here.get("PATH", os.defpath)
    folders = [folder for folder in path.split(os.pathsep) if folder]
    if any(os.access(root / folder.lstrip("/") / name, os.X_OK) for folder in folders for name in _PROGRAMS):
        return
    for home in slurm_homes(here, root):
        if any(os.access(root / home.lstrip("/") / "bin" / name, os.X_OK) for name in _PROGRAMS):
            here["PATH"] = os.pathsep.join([path, f"{home}/bin", f"{home}/sbin"])
            return

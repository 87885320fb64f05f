"""Builds our packages, once for each state of the checkout, for clusters that install them."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from . import layers, locks, paths, process
from .errors import ClusterError, CommandFailed
from .progress import stage

_MADE_OF = (
    "build.sh",
    "Makefile",
    "make",
    "deb",
    "rpm",
    "share",
    "man",
    "systemd",
    "grafana",
    "docs",
    "CHANGELOG.md",
    "LICENSE",
)
_READY_VARIABLE = "SLURM_SHARE_PACKAGES"
_KEEP = 4
"""Number of builds to keep; older ones are removed."""


@process.usual_umask()
def built(version: str = "") -> Path:
    """Return a folder with the .deb and .rpm packages of this checkout; build them only if something has changed.

    `version`: version to build instead of the checkout's. If SLURM_SHARE_PACKAGES names a folder with packages, return
    that one unchecked. Raises ClusterError if the build fails.
    """
    if os.environ.get(_READY_VARIABLE) and not version:
        return Path(os.environ[_READY_VARIABLE])
    home = paths.cache() / f"packages-{_key(version)}"

    def build(making: Path) -> None:
        argv = [str(paths.CHECKOUT / "packaging/build.sh"), "--install-tools", "--out", str(making)]
        with stage("packages of this checkout"):
            try:
                process.run([*argv, *(["--version", version] if version else [])])
            except CommandFailed as error:
                raise ClusterError(f"the packages do not build: code {error.returncode}\n{error.output}") from error

    with locks.waiting(paths.cache() / "packages.lock"):
        if not home.exists():
            locks.made_once(home, build, kind="packages-")
            for old in sorted(paths.cache().glob("packages-*/"), key=lambda path: path.stat().st_mtime)[:-_KEEP]:
                shutil.rmtree(old, ignore_errors=True)
    return home


def _key(version: str) -> str:
    files = layers.sources(paths.CHECKOUT, ["python", "plugin"])
    packaging = paths.CHECKOUT / "packaging"
    for top in (packaging / name for name in _MADE_OF):
        found = [top] if top.is_file() else [path for path in top.rglob("*") if path.is_file()]
        files += [path.relative_to(paths.CHECKOUT) for path in found if "__pycache__" not in path.parts]
    mark = layers.fingerprint(paths.CHECKOUT, sorted(files))
    return hashlib.sha256(f"{mark} {version}".encode()).hexdigest()[:16]

"""What is packaged: names, places and versions, and the folders of one build."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from localcluster import paths

CHECKOUT = paths.CHECKOUT
PACKAGING = CHECKOUT / "packaging"

BASE, SPANK, SCREEN = "slurm-share", "slurm-share-spank", "slurm-share-tui"
PACKAGES = (BASE, SPANK, SCREEN)

HOME = "opt/slurm-share"
SCREEN_HOME = "opt/slurm-share-tui"
SITE_PACKAGES = "lib/python3/site-packages"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""One package serves them all: pure Python is the same file, compiled modules lie side by side, for their file names
carry the version."""

PLUGIN_HOME = "usr/lib/slurm-share"
PLUGIN_SOURCE = "usr/src/slurm-share-spank"
SUITES = {"bookworm": "22.05", "trixie": "24.11", "forky": "26.05"}
"""Debian suites whose Slurm headers can be had from any mirror; the release is what each carries at least."""

_LEFTOVER = re.compile(r".*(~|\.sw[a-p]|\.bak|\.orig|\.rej|\.pyc|\.o|\.so)|#.*#|\.#.*|\.DS_Store")
"""Backups and locks of vim, Emacs, nano and patch, and what compilers write."""


@dataclass(frozen=True)
class Build:
    """One run: what it makes, and where."""

    version: str
    """Upstream version, for example 0.1.0."""
    work: Path
    """A folder of this run alone."""
    cache: Path
    """What other runs can use again."""
    out: Path
    suites: tuple[str, ...] = tuple(SUITES)
    """Debian suites for whose Slurm there is a plugin."""

    @property
    def debian_version(self) -> str:
        """With the packaging's own number, as Debian writes it."""
        return f"{self.version}-1"

    def tree(self, package: str) -> Path:
        """The files of a package, as they will lie below /."""
        return self.work / "trees" / package


def pyproject() -> dict[str, object]:
    """The project's own description."""
    return tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))


def checkout_version() -> str:
    """The version of the checkout."""
    project = pyproject()["project"]
    assert isinstance(project, dict)
    return str(project["version"])


def files(folder: Path) -> list[Path]:
    """Every file below a folder, sorted, without what editors and Python leave beside the sources."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not _LEFTOVER.fullmatch(path.name)
    )


def is_version(text: str) -> bool:
    """Whether dpkg and rpm both take it, and order it alike."""
    return re.fullmatch(r"[0-9]+(\.[0-9]+)*(~?[a-z]+[0-9]+)?", text) is not None

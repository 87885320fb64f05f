"""Third-party Python: wheels fetched once and kept, laid out so that one folder serves every Python version."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import sys
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from localcluster import layers, locks, process
from localcluster.errors import ClusterError
from localcluster.progress import Say, stage

from .recipe import PYTHONS

TOOLS = ("argparse-manpage>=4.6", "setuptools>=77", "shtab>=1.7")
"""For the build alone: manual pages, our own wheel, completion."""
_PURE = "-none-any.whl"


def fetched(wanted: Sequence[str], cache: Path, say: Say) -> list[Path]:
    """Wheels of `wanted` and all that they need: pure ones once, compiled ones for each of PYTHONS. Cached."""
    key = hashlib.sha256(json.dumps([sorted(wanted), PYTHONS, platform.machine()]).encode()).hexdigest()[:16]
    home = cache / f"wheels-{key}"
    with locks.waiting(cache / f"wheels-{key}.lock", say):
        if not home.exists():
            making = cache / f".making-{home.name}"
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir(parents=True)
            with stage(say, f"{len(wanted)} Python packages and what they need, for {', '.join(PYTHONS)}"):
                _fetch(wanted, making)
            making.rename(home)
    return sorted(home.glob("*.whl"))


def _fetch(wanted: Sequence[str], target: Path) -> None:
    words = target / "wanted.txt"
    words.write_text("\n".join(wanted) + "\n")
    machine = platform.machine()
    # The oldest Python needs the most: what newer ones have built in is a package there.
    process.run(layers.download_argv(sys.executable, PYTHONS[0], machine, target, [words]))
    compiled = [wheel.name.split("-")[:2] for wheel in target.glob("*.whl") if not wheel.name.endswith(_PURE)]
    exact = target / "compiled.txt"
    exact.write_text("".join(f"{name}=={version}\n" for name, version in compiled))

    def fetch(python: str) -> None:
        process.run([*layers.download_argv(sys.executable, python, machine, target, [exact]), "--no-deps"])

    with ThreadPoolExecutor() as pool:
        list(pool.map(fetch, PYTHONS[1:]))


def tools(cache: Path, say: Say) -> Path:
    """A folder with the build's own Python packages. Cached."""
    key = hashlib.sha256(json.dumps([TOOLS, sys.version_info[:2]]).encode()).hexdigest()[:16]
    home = cache / f"build-tools-{key}"
    with locks.waiting(cache / "build-tools.lock", say):
        if not home.exists():
            making = cache / f".making-{home.name}"
            shutil.rmtree(making, ignore_errors=True)
            with stage(say, "tools for manual pages and completion"):
                process.run([sys.executable, "-m", "pip", "install", "-q", "--target", str(making), *TOOLS])
            making.rename(home)
    return home


def laid_out(wheels: Sequence[Path], target: Path) -> None:
    """Unpack wheels into one folder; of a package that has one for each Python, the rest is taken once.

    Raises ClusterError where two wheels bring different files under one name.
    """
    whole: set[tuple[str, str]] = set()
    for wheel in sorted(wheels):
        name, version = wheel.name.split("-")[:2]
        first = (name, version) not in whole
        whole.add((name, version))
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                if wanted_file(entry.filename) and (first or ".cpython-" in entry.filename):
                    _unpack(archive, entry, target, wheel)


def wanted_file(name: str) -> bool:
    """Whether a file of a wheel belongs on a node: no scripts (they would name another interpreter), no records for
    pip, no folders, nothing that only compilers read, no example that came along."""
    top, _, rest = name.partition("/")
    if name.endswith(("/", ".c", ".h", ".pyx", ".pxd")) or ".data/" in name or name == "example.py":
        return False
    if top.endswith(".dist-info"):
        return rest == "METADATA" or rest.upper().startswith(("LICEN", "COPYING", "NOTICE", "AUTHORS"))
    return True


def _unpack(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path, wheel: Path) -> None:
    place = target / entry.filename
    data = archive.read(entry)
    if place.exists() and place.read_bytes() != data:
        raise ClusterError(f"{wheel.name} and another wheel bring different {entry.filename}; they cannot lie together")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    place.chmod(0o644)

"""Unpack wheels into one folder that serves every Python version: `python unpack.py TARGET WHEEL...`."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path


def unpack(wheels: Sequence[Path], target: Path) -> None:
    """Unpack wheels; of a package that has a wheel for each Python, take the common files once.

    Raises ValueError if two wheels have different files of the same name.
    """
    whole: set[tuple[str, str]] = set()
    for wheel in sorted(wheels):
        name, version = wheel.name.split("-")[:2]
        first = (name, version) not in whole
        whole.add((name, version))
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                if is_wanted(entry.filename) and (first or ".cpython-" in entry.filename):
                    _put(archive.read(entry), target / entry.filename, wheel)


def is_wanted(name: str) -> bool:
    """Return whether a file of a wheel belongs on a node: no scripts (which name another interpreter), no pip records,
    no folders, nothing for compilers, no examples."""
    top, _, rest = name.partition("/")
    if name.endswith(("/", ".c", ".h", ".pyx", ".pxd")) or ".data/" in name or name == "example.py":
        return False
    if top.endswith(".dist-info"):
        return rest == "METADATA" or rest.upper().startswith(("LICEN", "COPYING", "NOTICE", "AUTHORS"))
    return True


def _put(data: bytes, place: Path, wheel: Path) -> None:
    if place.exists() and place.read_bytes() != data:
        raise ValueError(f"{wheel.name} and another wheel bring different {place.name}; they cannot lie together")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    place.chmod(0o644)


if __name__ == "__main__":
    try:
        unpack([Path(word) for word in sys.argv[2:]], Path(sys.argv[1]))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        sys.exit(f"packaging/make/unpack.py: {error}")

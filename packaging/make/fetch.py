"""Fetch what the packages need in addition to this checkout: wheels, build tools, and headers of Slurm.

`python fetch.py TARGET [--leave-out SUITE]... [--slurm-include DIR]...`, with packaging/demo in PYTHONPATH. Puts run/
and tui/ (wheels of the library, and the additional ones of the dashboard), tools/ and slurm-RELEASE/ into TARGET.
Downloads are kept: a second build needs no network and uses the same wheels.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from localcluster import layers, locks, paths, process
from localcluster import tools as machine_tools
from localcluster.errors import ClusterError, CommandFailed
from localcluster.progress import say, stage
from localcluster.records import RELEASES

sys.path.append(str(Path(__file__).resolve().parents[1]))
from make import debian

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""One package serves all of these: pure Python is the same file, and compiled modules are in one folder, since their
file names have the version.
"""
SUITES = {release.suite: name for name, release in reversed(RELEASES.items())}
"""Debian suite -> the lowest Slurm release that it has; every mirror has the headers."""
TOOLS = ("argparse-manpage>=4.6", "setuptools>=77", "shtab>=1.7")
"""For the build only: manual pages, our own wheel, completion."""
_PURE = "-none-any.whl"
_VERSION = re.compile(r"^#define SLURM_VERSION_NUMBER (0x[0-9a-fA-F]+)", re.MULTILINE)


@process.usual_umask()
def main() -> int:
    """Fetch everything; return 0 done, 1 failed, 2 invalid call; print a sentence on stderr for each failure."""
    parser = argparse.ArgumentParser(prog="packaging/build.sh")
    parser.add_argument("target", type=Path)
    parser.add_argument("--leave-out", choices=SUITES, action="append", default=[])
    parser.add_argument("--slurm-include", type=Path, action="append", default=[])
    given = parser.parse_args()
    try:
        suites = [suite for suite in SUITES if suite not in given.leave_out]
        fetch(given.target, suites, given.slurm_include, cache())
    except ClusterError as error:
        say(f"packaging/build.sh: {error}")
        return error.exit_code
    except OSError as error:
        say(f"packaging/build.sh: {error}")
        return 1
    return 0


def fetch(target: Path, suites: Sequence[str], includes: Sequence[Path], kept: Path) -> None:
    """Put everything into `target`. Raises ClusterError if a part cannot be fetched: a package that lacks a plugin
    object would leave hosts without --share-gpu."""
    if not suites and not includes:
        raise ClusterError("no Slurm to build the plugin for: leave fewer suites out, or name headers: --slurm-include")
    headers = {release_of(folder): folder for folder in includes}
    project = (paths.CHECKOUT / "pyproject.toml").read_text(encoding="utf-8")
    _, run, show = layers.requirements(project)
    show += tomllib.loads(project)["project"]["optional-dependencies"]["serve"]
    with ThreadPoolExecutor() as pool:
        library = pool.submit(wheels, run, kept)
        # resolved together, so that both packages have the same release of what both need
        both = pool.submit(wheels, [*run, *show], kept)
        build = pool.submit(tools, kept)
        of_suites = pool.submit(debian_headers, suites, kept)
        for release, folder in {**of_suites.result(), **headers}.items():
            shutil.copytree(folder / "slurm", target / f"slurm-{release}/slurm")
        names = {wheel.name.split("-")[0] for wheel in library.result()}
        dashboard = [wheel for wheel in both.result() if wheel.name.split("-")[0] not in names]
        for name, found in (("run", library.result()), ("tui", dashboard)):
            (target / name).mkdir()
            for wheel in found:
                shutil.copyfile(wheel, target / name / wheel.name)
        shutil.copytree(build.result(), target / "tools", ignore=shutil.ignore_patterns("__pycache__", "bin"))


def cache() -> Path:
    """Return the folder for downloads: in the cache of the local clusters if that is writable, else in the checkout."""
    place = paths.cache()
    folder = place if os.access(place if place.exists() else place.parent, os.W_OK) else paths.CHECKOUT / "build/cache"
    folder = folder / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def wheels(wanted: Sequence[str], kept: Path) -> list[Path]:
    """Return wheels of `wanted` and their dependencies: pure ones once, compiled ones for each of PYTHONS. Cached."""
    key = hashlib.sha256(json.dumps([sorted(wanted), PYTHONS, platform.machine()]).encode()).hexdigest()[:16]

    def fill(making: Path) -> None:
        with stage(f"{len(wanted)} Python packages and what they need, for {', '.join(PYTHONS)}"):
            _download(wanted, making)

    return sorted(_made_once(kept / f"wheels-{key}", fill).glob("*.whl"))


def _download(wanted: Sequence[str], target: Path) -> None:
    requirements = target / "wanted.txt"
    requirements.write_text("\n".join(wanted) + "\n")
    machine = platform.machine()
    # the oldest Python needs the most packages: newer ones have some built in
    process.run(layers.download_argv(sys.executable, PYTHONS[0], machine, target, [requirements]))
    compiled = [wheel.name.split("-")[:2] for wheel in target.glob("*.whl") if not wheel.name.endswith(_PURE)]
    exact = target / "compiled.txt"
    exact.write_text("".join(f"{name}=={version}\n" for name, version in compiled))

    def of(python: str) -> None:
        process.run([*layers.download_argv(sys.executable, python, machine, target, [exact]), "--no-deps"])

    with ThreadPoolExecutor() as pool:
        list(pool.map(of, PYTHONS[1:]))


def tools(kept: Path) -> Path:
    """Return a folder with the Python packages of the build. Cached."""
    key = hashlib.sha256(json.dumps([TOOLS, sys.version_info[:2]]).encode()).hexdigest()[:16]

    def fill(making: Path) -> None:
        with stage("tools for manual pages and completion"):
            process.run([sys.executable, "-m", "pip", "install", "-q", "--target", str(making), *TOOLS])

    return _made_once(kept / f"build-tools-{key}", fill)


def release_of(include: Path) -> str:
    """Return the Slurm release of a folder with slurm/slurm_version.h, for example 26.05. Raises ClusterError."""
    try:
        found = _VERSION.search((include / "slurm/slurm_version.h").read_text(encoding="utf-8"))
    except OSError as error:
        raise ClusterError(f"{include} has no Slurm headers: {error}") from error
    if not found:
        raise ClusterError(f"{include}/slurm/slurm_version.h names no version")
    number = int(found[1], 16)
    return f"{number >> 16 & 255}.{number >> 8 & 255:02}"


def debian_headers(suites: Sequence[str], kept: Path) -> dict[str, Path]:
    """Return headers of Debian's suites by release, from libslurm-dev, which is unpacked and not installed. Cached."""
    mirror = machine_tools.debian_mirror() if any(not _home(suite, kept).exists() for suite in suites) else ""

    def of(suite: str) -> Path:
        home = _home(suite, kept)
        return _made_once(home, lambda making: fill(suite, making)) / "include"

    def fill(suite: str, making: Path) -> None:
        try:
            debian.unpacked(suite, mirror, "libslurm-dev", making / "root")
        except CommandFailed as error:
            lines = error.output.strip().splitlines() or [f"code {error.returncode}"]
            why = next((line for line in lines if "Failed to fetch" in line), lines[-1])
            raise ClusterError(
                f"no headers of Slurm {SUITES[suite]} from Debian {suite} at {mirror}: {why}; try again, "
                f"or build packages without that plugin: --leave-out {suite}"
            ) from error
        (making / "root/usr/include").rename(making / "include")
        shutil.rmtree(making / "root")

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(of, suites))
    return {release_of(include): include for include in found}


def _made_once(home: Path, fill: Callable[[Path], None]) -> Path:
    with locks.waiting(home.with_name(f"{home.name}.lock")):
        return locks.made_once(home, fill)


def _home(suite: str, kept: Path) -> Path:
    return kept / f"slurm-headers-{suite}"


if __name__ == "__main__":
    sys.exit(main())

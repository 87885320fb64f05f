"""The files of slurm-share-spank: an object of the plugin for every Slurm release whose headers can be had, its source,
and what chooses among them on the host."""

from __future__ import annotations

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from localcluster import locks, process, tools
from localcluster.errors import ClusterError, CommandFailed
from localcluster.progress import Say, stage

from . import base, debian
from .recipe import CHECKOUT, PACKAGING, PLUGIN_HOME, PLUGIN_SOURCE, SPANK, SUITES, Build, files

_VERSION = re.compile(r"^#define SLURM_VERSION_NUMBER (0x[0-9a-fA-F]+)", re.MULTILINE)


def make(build: Build, extra_headers: list[Path], say: Say) -> list[str]:
    """Lay out slurm-share-spank; return the releases it has objects for. Raises ClusterError where it has none, or not
    all that were asked for."""
    headers = debian_headers(build, say)
    for folder in extra_headers:
        headers[release_of(folder)] = folder
    if not headers:
        raise ClusterError("no Slurm to build the plugin for: leave fewer suites out, or name headers: --slurm-include")
    tree = build.tree(SPANK)
    with stage(say, f"the plugin for Slurm {', '.join(sorted(headers))}"), ThreadPoolExecutor() as pool:
        list(pool.map(lambda release: _compile(build, tree, release, headers[release]), headers))
    base.put(CHECKOUT / "plugins/job_submit.lua", tree / PLUGIN_HOME / "job_submit.lua")
    for source in files(CHECKOUT / "plugins"):
        if source.suffix in (".c", ".h", ".lds") or source.name == "Makefile":
            base.put(source, tree / PLUGIN_SOURCE / source.name)
    base.put(PACKAGING / "share/libexec/slurm-confs", tree / PLUGIN_HOME / "slurm-confs", 0o755)
    chooser = tree / "usr/sbin/slurm-share-plugin"
    base.put(PACKAGING / "share/libexec/slurm-share-plugin", chooser, 0o755)
    chooser.write_text(chooser.read_text(encoding="utf-8").replace("@VERSION@", build.version), encoding="utf-8")
    base.documents(tree, SPANK)
    return sorted(headers)


def release_of(include: Path) -> str:
    """The Slurm release of a folder with slurm/slurm_version.h, for example 26.05. Raises ClusterError."""
    try:
        found = _VERSION.search((include / "slurm/slurm_version.h").read_text(encoding="utf-8"))
    except OSError as error:
        raise ClusterError(f"{include} has no Slurm headers: {error}") from error
    if not found:
        raise ClusterError(f"{include}/slurm/slurm_version.h names no version")
    number = int(found[1], 16)
    return f"{number >> 16 & 255}.{number >> 8 & 255:02}"


def _compile(build: Build, tree: Path, release: str, include: Path) -> None:
    scratch = build.work / f"plugin-{release}"
    argv = ["make", "-s", "-j4", "-C", str(CHECKOUT / "plugins"), f"BUILD={scratch}", f"SLURM_INCLUDE={include}", "all"]
    # What -g writes would be stripped below; and where this checkout lies is nobody's business.
    argv.append(f"CFLAGS=-O2 -ffile-prefix-map={CHECKOUT}/plugins=. -ffile-prefix-map={include}=/usr/include")
    process.run(argv)
    process.run(["strip", "--strip-unneeded", str(scratch / "share_gpu.so")])
    base.put(scratch / "share_gpu.so", tree / PLUGIN_HOME / release / "share_gpu.so")


def debian_headers(build: Build, say: Say) -> dict[str, Path]:
    """Headers of Debian's suites by release, from libslurm-dev, which is unpacked and never installed. Cached.

    Raises ClusterError where one cannot be had: a package that lacks an object would leave hosts without --share-gpu.
    """
    mirror = tools.debian_mirror() if build.suites else ""

    def of_suite(suite: str) -> Path:
        home = build.cache / f"slurm-headers-{suite}"
        with locks.waiting(build.cache / f"slurm-headers-{suite}.lock", say):
            if not home.exists():
                try:
                    _fetch(suite, mirror, home)
                except CommandFailed as error:
                    lines = error.output.strip().splitlines() or [f"code {error.returncode}"]
                    why = next((line for line in lines if "Failed to fetch" in line), lines[-1])
                    raise ClusterError(
                        f"no headers of Slurm {SUITES[suite]} from Debian {suite} at {mirror}: {why}; try again, "
                        f"or build packages without that plugin: --leave-out {suite}"
                    ) from error
        return home / "include"

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(of_suite, build.suites))
    return {release_of(include): include for include in found}


def _fetch(suite: str, mirror: str, home: Path) -> None:
    root = home.with_name(f".root-{home.name}")
    debian.unpacked(suite, mirror, "libslurm-dev", root)
    kept = home.with_name(f".whole-{home.name}")
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir()
    (root / "usr/include").rename(kept / "include")
    shutil.rmtree(root)
    kept.rename(home)

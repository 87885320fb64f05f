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

from . import base
from .recipe import CHECKOUT, PACKAGING, PLUGIN_HOME, PLUGIN_SOURCE, SPANK, SUITES, Build

_SOURCE_LIST = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror} {suite} main\n"
_VERSION = re.compile(r"^#define SLURM_VERSION_NUMBER (0x[0-9a-fA-F]+)", re.MULTILINE)


def make(build: Build, extra_headers: list[Path], say: Say) -> list[str]:
    """Lay out slurm-share-spank; return the releases it has objects for. Raises ClusterError where it has none."""
    headers = debian_headers(build.cache, say)
    for folder in extra_headers:
        headers[release_of(folder)] = folder
    if not headers:
        raise ClusterError("no Slurm headers to be had: no Debian mirror answers; name a folder with --slurm-include")
    tree = build.tree(SPANK)
    with stage(say, f"the plugin for Slurm {', '.join(sorted(headers))}"), ThreadPoolExecutor() as pool:
        list(pool.map(lambda release: _compile(build, tree, release, headers[release]), headers))
    base.put(CHECKOUT / "plugins/job_submit.lua", tree / PLUGIN_HOME / "job_submit.lua")
    for source in [
        *(CHECKOUT / "plugins").glob("*.[ch]"),
        CHECKOUT / "plugins/Makefile",
        CHECKOUT / "plugins/exports.lds",
    ]:
        base.put(source, tree / PLUGIN_SOURCE / source.name)
    base.put(PACKAGING / "share/libexec/slurm-share-plugin", tree / "usr/sbin/slurm-share-plugin", 0o755)
    base.documents(tree, SPANK)
    base.put(PACKAGING / "man/slurm-share-plugin.8", tree / "usr/share/man/man8/slurm-share-plugin.8")
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
    argv.append("CFLAGS=-O2")  # what -g writes would be stripped below
    process.run(argv)
    process.run(["strip", "--strip-unneeded", str(scratch / "share_gpu.so")])
    base.put(scratch / "share_gpu.so", tree / PLUGIN_HOME / release / "share_gpu.so")


def debian_headers(cache: Path, say: Say) -> dict[str, Path]:
    """Headers of Debian's suites by release, from libslurm-dev, which is unpacked and never installed. Cached."""
    mirror = tools.debian_mirror()

    def of_suite(suite: str) -> Path | None:
        home = cache / f"slurm-headers-{suite}"
        with locks.waiting(cache / f"slurm-headers-{suite}.lock", say):
            if not home.exists():
                try:
                    _fetch(suite, mirror, home)
                except CommandFailed as error:
                    last = error.output.strip().splitlines()[-1:] or [""]
                    say(f"  no headers from Debian {suite} (Slurm {SUITES[suite]}): {last[0]}; no object for it")
                    return None
        return home / "include"

    with ThreadPoolExecutor() as pool:
        found = [include for include in pool.map(of_suite, SUITES) if include is not None]
    return {release_of(include): include for include in found}


def _fetch(suite: str, mirror: str, home: Path) -> None:
    making = home.with_name(f".making-{home.name}")
    shutil.rmtree(making, ignore_errors=True)
    for folder in ("lists/partial", "archives/partial", "deb", "etc"):
        (making / folder).mkdir(parents=True)
    (making / "etc/sources.list").write_text(_SOURCE_LIST.format(mirror=mirror, suite=suite))
    apt = ["apt-get", "-qq"]
    # Nothing of the machine's own apt is read or written, and a mirror that lags behind will do.
    for option in (
        f"Dir::Etc::sourcelist={making}/etc/sources.list",
        "Dir::Etc::sourceparts=/dev/null",
        f"Dir::State::lists={making}/lists",
        "Dir::State::status=/dev/null",
        f"Dir::Cache={making}",
        "Acquire::Languages=none",
        "Acquire::Check-Valid-Until=false",
        "Acquire::Check-Date=false",
        "APT::Sandbox::User=",
    ):
        apt += ["-o", option]
    process.run([*apt, "update"])
    process.run(["env", "-C", str(making / "deb"), *apt, "download", "libslurm-dev"])
    [package] = (making / "deb").glob("*.deb")
    process.run(["dpkg-deb", "-x", str(package), str(making / "root")])
    kept = home.with_name(f".whole-{home.name}")
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir()
    (making / "root/usr/include").rename(kept / "include")
    shutil.rmtree(making)
    kept.rename(home)

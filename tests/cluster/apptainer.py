"""A real apptainer on a host of a local cluster, and a Debian for its containers."""

from __future__ import annotations

import pytest
from clean_roots import SUITES
from make import debian

from localcluster import Cluster, locks, paths, process, rootfs, tools
from localcluster.errors import CommandFailed

IMAGE = "/srv/debian13"
SUITE = "sid"
"""The release of Debian that has it."""
_NOT_NEEDED = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/lib/gcc", "var", "dev/*", "proc/*", "sys/*")


def put_on(cluster: Cluster, host: str) -> None:
    """Install both on the host. Skips the test, with a message, if Debian's mirror does not have apptainer."""
    kept = paths.cache() / "packages/apptainer"
    with locks.waiting(kept.with_name("apptainer.lock")):
        if not kept.exists():
            try:
                debian.unpacked(SUITE, tools.debian_mirror(), "apptainer", kept)
            except CommandFailed as error:
                pytest.skip(f"NOT TESTED in a real container: no apptainer from Debian {SUITE}: {error}")
    image = rootfs.root_of(SUITES["trixie"]).path
    root = cluster.root(host)
    (root / IMAGE.lstrip("/")).mkdir(parents=True)
    leave_out = [f"--exclude=./{name}" for name in _NOT_NEEDED]
    for source, target, words in ((str(kept), root, []), (image, root / IMAGE.lstrip("/"), leave_out)):
        pipe = 'from=$1 to=$2; shift 2; tar -C "$from" "$@" -cf - . | tar -C "$to" --no-overwrite-dir -xf -'
        process.run(["bash", "-o", "pipefail", "-c", pipe, "bash", source, str(target), *words])

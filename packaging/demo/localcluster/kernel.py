"""A user-mode Linux kernel: a real kernel with cgroup v2 only, run as a program, without a virtual machine.

It comes from Debian's package user-mode-linux, of the suite of the newest root file system that can be had. Only the
program and a few modules are kept. Everything it does ends with the process that started it.

    made = kernel.provide()
    argv = kernel.start_argv(made, ["mem=2048M", "root=/dev/root", "rootfstype=hostfs", f"rootflags={kernel.MACHINE}",
                                    "ro", "init=/path/on/this/machine", *kernel.FLAGS])
    subprocess.run(argv, stdin=subprocess.DEVNULL)

A disk image is given as `ubd0=FILE`, with the path that it has below kernel.MACHINE. To load modules inside, copy
`made.modules` to /lib/modules/VERSION, where modprobe(8) finds them, or load the files of `module_files(made)` in that
order.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from . import layers, locks, paths, process, rootfs, tools
from .errors import ClusterError, Misuse
from .progress import say, stage
from .records import CURRENT, RELEASES

MACHINE = "/run/machine"
"""The machine's own root, as paths on the kernel's command line name it."""
FLAGS = ("seccomp=on", "quiet", "loglevel=3", "con=null")
"""Arguments for every start. seccomp=on: system calls are caught by seccomp, not ptrace, which takes half the time
(kernel 6.17 and later; earlier ones ignore it)."""
MODULES = ("bridge", "dummy", "fuse", "overlay", "veth")
"""Modules that are kept, with those that they need. ext4, hostfs and tmpfs are built in."""
_PACKAGE = "user-mode-linux"
_ARCHITECTURES = ("x86_64",)
"""User-mode Linux exists for x86 only, and Debian's package for i386 and amd64."""
_FETCH = """\
set -e
kept=$1 package=$2 work=$3
cd "$work"
[ ! -e "$kept/resolv.conf" ] || [ "$work" != /tmp ] || cp "$kept/resolv.conf" /etc/
apt-get download -qq "$package" 2>/dev/null || { apt-get update -qq; apt-get download -qq "$package"; }
dpkg-deb -x "$package"_*.deb package
cp package/usr/bin/linux.uml "$kept"
mkdir "$kept/modules"
cp -r package/usr/lib/uml/modules/* "$kept/modules"
"""
"""In the root file system the work folder is /tmp, and it has no resolv.conf of today."""


@dataclass(frozen=True)
class Kernel:
    """A user-mode Linux kernel in the cache."""

    folder: Path
    """Has linux.uml and modules/VERSION."""
    root: Path
    """A root file system with the C library that the kernel is linked with."""

    @property
    def version(self) -> str:
        """Return the release that `uname -r` prints inside, for example 7.2.7."""
        return self.modules.name

    @property
    def modules(self) -> Path:
        """The folder of modules, laid out as /lib/modules/VERSION."""
        return next((self.folder / "modules").iterdir())


def provide() -> Kernel:
    """Return the kernel, from the cache or made now (6 s where the root file system is there).

    Where Debian's newest suite gives none, it is that of the machine's own distribution. Raises Misuse where none can
    be had: without root, on an architecture without user-mode Linux, or where the package cannot be fetched.
    """
    tools.require_root()
    if platform.machine() not in _ARCHITECTURES:
        raise Misuse(f"there is no user-mode Linux kernel for {platform.machine()}, only for x86_64")
    try:
        return _cached(rootfs.root_for(CURRENT).path)
    except ClusterError as error:
        say(f"no user-mode Linux kernel of Debian {RELEASES[CURRENT].suite} ({error}); THAT OF THIS MACHINE IS USED")
    try:
        return _cached("/")
    except ClusterError as error:
        raise Misuse(f"no user-mode Linux kernel can be had: {error}") from None


def start_argv(kernel: Kernel, arguments: Sequence[str]) -> list[str]:
    """Return the command line that runs the kernel, with its own command line `arguments`, until it powers off.

    The kernel and all in it end with the process that starts it, even after kill -9. Its console is what `con0=`
    says, for example `con0=fd:0,fd:1`.
    """
    start = [str(paths.HERE / "start-kernel"), str(kernel.root), str(kernel.folder)]
    return process.bound_to_us([*start, *arguments])


def module_files(kernel: Kernel) -> list[Path]:
    """Return the files of the modules, in an order in which insmod(8) can load them."""
    return [kernel.modules / name for name in load_order((kernel.modules / "modules.dep").read_text(), MODULES)]


def load_order(modules_dep: str, wanted: Sequence[str]) -> list[str]:
    """Return the wanted modules and those that they need, each after what it needs, as modules.dep(5) names them.

    Names without a line are left out: they are built in, or this kernel does not have them.
    """
    needs: Mapping[str, list[str]] = {
        file: rest.split() for file, _, rest in (line.partition(":") for line in modules_dep.splitlines())
    }
    order: dict[str, None] = {}
    for file, needed in needs.items():
        if Path(file).name.partition(".")[0] in wanted:
            # a line names what is needed in the reverse of the order of loading
            order |= dict.fromkeys([*reversed(needed), file])
    return list(order)


def _cached(root: str) -> Kernel:
    recipe = hashlib.sha256(json.dumps([root, MODULES, _FETCH]).encode()).hexdigest()[:16]
    home = paths.cache() / f"kernel-{recipe}"
    with locks.waiting(paths.cache() / "kernel.lock"):
        locks.made_once(home, partial(_make, Path(root)), kind="kernel-")
    return Kernel(home, Path(root))


def _make(root: Path, making: Path) -> None:
    layer, kept = making / "layer", making / "kept"
    for folder in (layer, kept):
        folder.mkdir()
    script = ["/bin/sh", "-c", _FETCH, "sh"]
    with stage("user-mode Linux kernel"):
        if root == Path("/"):
            process.run([*script, str(kept), _PACKAGE, str(layer)])
        else:
            layers.copy_resolver(kept)
            argv = [*script, "/mnt", _PACKAGE, "/tmp"]
            rootfs.inside(root, argv, layer=layer, lower=str(root), source=kept, mirror=tools.debian_mirror())
    shutil.rmtree(layer)
    kernel = Kernel(kept, root)
    needed = set(module_files(kernel))
    for file in list(kernel.modules.rglob("*.ko*")):
        if file not in needed:
            file.unlink()
            with contextlib.suppress(OSError):  # raised by the first folder that still has something
                os.removedirs(file.parent)
    for part in ("linux.uml", "modules"):
        (kept / part).rename(making / part)
    shutil.rmtree(kept)

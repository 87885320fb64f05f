"""The disk of the whole machine: Debian with systemd, Slurm and simulated GPUs, as it is before slurm-share."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from localcluster import layers, locks, packaged, paths, process, rootfs
from localcluster.progress import stage
from localcluster.records import CURRENT, RELEASES

HERE = Path(__file__).resolve().parent
CPUS = 2
"""CPUs of the machine under qemu: few, since the host has few cores. Slurm can confine jobs to them, by cpusets."""
SIZE = "3G"
"""Size of the disk's file, which is sparse: about 800 MB of it are used."""
_KEEP = 4
_PROVISION = ("provision.sh", "runner.sh")
_MAKE = """\
mount -t overlay overlay -o "ro,lowerdir=$1" "$2"
truncate -s "$4" "$3"
mke2fs -q -t ext4 -O ^has_journal -E lazy_itable_init=1,nodiscard -d "$2" "$3"
"""
"""No journal: a power cut leaves what the machine had written, in its order."""


def made(*, linux: bool) -> Path:
    """Return the folder of the disk, from the cache or made now: `disk.img`, and with `linux` the kernel and initrd
    that boot it elsewhere than in user-mode Linux.

    Raises ClusterError if Debian's newest suite cannot be had.
    """
    root = rootfs.root_of(RELEASES[CURRENT])
    lower = layers.under_systemd(root, linux=linux)
    texts = [(HERE / name).read_text() for name in _PROVISION]
    key = hashlib.sha256(json.dumps([lower, linux, CPUS, texts, _MAKE, SIZE]).encode()).hexdigest()[:16]
    home = paths.cache() / f"machine-{key}"

    def fill(making: Path) -> None:
        with stage("disk of a machine with systemd"):
            layer = making / "layer"
            layer.mkdir()
            script = ["/bin/bash", "/mnt/provision.sh", *(("yes", str(CPUS)) if linux else ("no", "8"))]
            rootfs.inside(Path(root.path), script, layer=layer, lower=lower, source=HERE)
            image(f"{layer}/upper:{lower}", making / "disk.img", SIZE)
            process.run(["rm", "-rf", str(layer)])
        if linux:
            boot = next(Path(part) / "boot" for part in lower.split(":") if "-linux-" in part)
            for name in ("vmlinuz", "initrd"):
                process.run(["cp", str(next(boot.glob(f"{name}*"))), str(making / name)])

    with locks.waiting(paths.cache() / "machine.lock"):
        locks.made_once(home, fill, kind="machine-")
        os.utime(home)  # marks it as used
        for old in sorted(paths.cache().glob("machine-*/"), key=lambda path: path.stat().st_mtime)[:-_KEEP]:
            process.run(["rm", "-rf", str(old)])
    return home


def packages(target: Path) -> None:
    """Make a disk with the packages of this checkout, which the machine mounts in /root/packages."""
    folder = packaged.built()
    target.unlink(missing_ok=True)
    process.run(["truncate", "-s", "64M", str(target)])
    process.run(["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-L", "packages", "-d", str(folder), str(target)])


def image(lower: str, target: Path, size: str) -> None:
    """Make an ext4 image of what overlayfs shows of these layers."""
    merged = target.with_name("merged")
    merged.mkdir()
    process.run(process.bound_to_us(["/bin/bash", "-ec", _MAKE, "bash", lower, str(merged), str(target), size]))
    merged.rmdir()

"""Pieces of bash that a host runs before its Slurm daemons, on clusters with special options."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .records import Host

STOP = """\
for daemon in slurmctld slurmd sackd; do
    pkill -x "$daemon" || continue
    while pgrep -x "$daemon" >/dev/null; do sleep 0.01; done
done
"""
"""End Slurm's daemons only: a slurmstepd outlives its slurmd, and the next slurmd finds it again."""
_OWN_AUTH_CTL = "install -d -o slurm /run/slurmctld\n"
_OWN_AUTH = "chown root: /run/slurm\n"
"""slurmd and sackd put their socket there, and start only if root owns it."""
_SACKD = "sackd\n"
DESCRIBE_GPUS = r"""
# What NVIDIA's driver says of each GPU (README.txt of the driver, "/proc interface"), of the simulated ones. No
# /proc/driver/nvidia/version: that is the sign of a real driver.
for folder in /proc/driver /sys/bus/pci/drivers; do
    mountpoint -q $folder || mount -t tmpfs -o mode=755,size=1m driver $folder
done
for gpu in /run/simgpu/gpu[0-9]*; do
    value() { sed -n "s/^$1=//p" "$gpu" | tail -n 1; }
    bus=$(value bus | tr A-F a-f | sed 's/^0000\(....:\)/\1/')
    folder=/proc/driver/nvidia/gpus/$bus
    mkdir -p "$folder" "/sys/bus/pci/drivers/nvidia/$bus"
    echo "0-$(($(nproc) - 1))" >"/sys/bus/pci/drivers/nvidia/$bus/local_cpulist"  # or Slurm sees no core near it
    printf 'Model: \t\t simulated\nIRQ:   \t\t 0\nGPU UUID: \t %s\nBus Type: \t PCIe\nDevice Minor: \t %s\n' \
        "$(value uuid)" "$(value minor)" >"$folder/information"
done
"""
"""Makes slurmd with AutoDetect=nvidia find the simulated GPUs."""


def own_auth(host: Host) -> str:
    """Return the preparation for auth/slurm: the folder for the daemons' sockets, and sackd on hosts without a
    daemon."""
    if host.name == "ctl":
        return _OWN_AUTH_CTL
    return _OWN_AUTH if host.is_compute else _OWN_AUTH + _SACKD


def make_key(file: Path, root: Path) -> None:
    """Create a key for auth/slurm that only Slurm's user, as the root file system names it, can read."""
    found = re.search(r"^slurm:[^:]*:(\d+):(\d+):", (root / "etc/passwd").read_text(), re.MULTILINE)
    assert found, f"{root} has no user slurm"
    file.touch(0o600)
    file.write_bytes(os.urandom(1024))
    os.chown(file, int(found[1]), int(found[2]))

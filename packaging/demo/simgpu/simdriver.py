"""SIMULATED driver: which release the simulated GPUs pretend to have, and what follows from it.

`simgpu-init --driver N` writes the file `driver` of the state folder from PROFILES; the simulated NVML and the
simulated MPS read it. Nothing else decides by the number of a release what a driver is. SIMMPS_DRIVER is an override
for the manners of MPS alone. Source of the numbers: docs.nvidia.com/deploy/mps, releases 550 to 620 (CUDA 13.5,
2026-11-11), and NVIDIA's announcements of CUDA 13.1 to 13.5.
"""

# ruff: noqa: PTH110  (pathlib would take as long to import as all the rest of a task)
from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT = 550
FILE = "driver"
"""Name of the file in the state folder."""
OVERRIDE = "SIMMPS_DRIVER"

DMEM, MISC, OFF = "dmem", "misc", "off"
BACK_ENDS = (DMEM, MISC, OFF)
"""How the driver limits the device memory of a cgroup: by the kernel's controller dmem, by its own books, or not."""


class Profile:
    """The features of one release of the driver."""

    __slots__ = ("cuda", "has_memory_limits", "mps_clients", "release")

    def __init__(self, release: int, cuda: int, mps_clients: int = 48, has_memory_limits: bool = False) -> None:
        self.release = release
        self.cuda = cuda
        """CUDA's version as NVML tells it: 1000 x major + 10 x minor. The MPS programs have the same."""
        self.mps_clients = mps_clients
        """Most clients of an MPS server on a GPU."""
        self.has_memory_limits = has_memory_limits

    def text(self, back_end: str) -> str:
        """Return the content of the state folder's file."""
        return (
            f"release={self.release}\n"
            f"version={self.release}.0-simulated\n"
            f"nvml={self.cuda // 1000}.{self.release}.0-simulated\n"
            f"cuda={self.cuda}\n"
            f"mps_clients={self.mps_clients}\n"
        ) + (f"memory_limits={back_end}\n" if self.has_memory_limits else "")


PROFILES = {
    profile.release: profile
    for profile in (
        Profile(535, 12020),
        Profile(550, 12040),
        Profile(580, 13000),
        Profile(590, 13010, 60),
        Profile(595, 13020, 60),
        Profile(610, 13030, 60),
        Profile(615, 13040, 60, has_memory_limits=True),
        Profile(620, 13050, 60, has_memory_limits=True),
    )
}


def read_values(state: str) -> dict[str, str]:
    """Return the words of the state folder's file; empty: there is none, as an older simgpu-init left it."""
    try:
        with open(f"{state}/{FILE}") as file:
            lines = file.read(4096).splitlines()
    except OSError:
        return {}
    return dict(line.split("=", 1) for line in lines if "=" in line)


def profile_of(word: str | None) -> Profile | None:
    """Return the profile of a release, written as a number; None: there is none."""
    return next((profile for release, profile in PROFILES.items() if word == str(release)), None)


def of_mps(environ: Mapping[str, str], state: str) -> Profile:
    """Return the profile whose manners MPS has: that of SIMMPS_DRIVER, else that of the state folder."""
    return profile_of(environ.get(OVERRIDE)) or profile_of(read_values(state).get("release")) or PROFILES[DEFAULT]


def kernel_has_dmem() -> bool:
    """Return whether the kernel has the controller dmem in its tree of cgroup v2."""
    return os.path.exists("/sys/fs/cgroup/dmem.capacity")

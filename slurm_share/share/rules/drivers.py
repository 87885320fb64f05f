"""The features of each release of NVIDIA's driver for sharing a GPU.

Source: docs.nvidia.com/deploy/mps, releases 580 to 620, and NVIDIA's announcements of CUDA 13.1 to 13.5. A driver whose
release is not known counts as an old one.
"""

from __future__ import annotations

from ...core import numbers

STATIC_PARTITIONS = 590
"""MPS can divide a GPU's multiprocessors into static partitions (CUDA 13.1)."""
MORE_CLIENTS = 590
"""An MPS server has 60 clients on a GPU instead of 48 (CUDA 13.1)."""
PARTITIONED_FAULTS = 610
"""A kernel's fault ends the clients of its own static partition only (CUDA 13.3)."""
MEMORY_LIMITS = 615
"""The driver limits the device memory of a cgroup's processes, with or without MPS (CUDA 13.4)."""
MPS_V3 = 615
"""The MPS control program has protocol 3: named servers, namespaces, exit codes (CUDA 13.4)."""
ROUTES_BY_CGROUP = 620
"""A v3 daemon assigns clients to namespaces by their cgroup (CUDA 13.5, release 620 of 2026-11-11): those that connect
to the daemon's own control socket. A client whose pipe directory is unset or another one does not reach that socket."""
STATIC_CAPABILITY = (8, 0)
"""The least compute capability of a GPU with static partitions (Ampere)."""


def release(version: str | None) -> int:
    """Return the release of a driver's version, such as 590 of 590.44.01; 0: unknown."""
    return numbers.whole((version or "").partition(".")[0]) or 0


def offers(version: str | None, since: int) -> bool:
    """Return whether a driver offers what came with the release `since`."""
    return release(version) >= since


def needs(version: str | None, since: int) -> str:
    """Return why a driver does not offer what came with the release `since`, without subject."""
    number = release(version)
    return f"needs driver {since} or newer, and this node has {number or 'one of unknown version'}"

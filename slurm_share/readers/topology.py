"""The machine's cores, as the kernel lists them."""

from __future__ import annotations

import re
from pathlib import Path

_CPU = re.compile(r"cpu([0-9]+)")


def read_cores(sysfs: Path = Path("/sys")) -> tuple[tuple[int, ...], ...]:
    """Cores in Slurm's numbering, each as its operating system CPU numbers in rising order.

    Slurm numbers cores as hwloc does: by socket, then by core, each ordered by its first CPU. CPUs that are offline
    have no topology folder and are left out. Where the kernel shows no topology every CPU is a core of its own.
    """
    cores: dict[tuple[int, int], list[int]] = {}
    for folder in sorted((sysfs / "devices/system/cpu").glob("cpu[0-9]*")):
        match = _CPU.fullmatch(folder.name)
        if match and (folder / "topology").is_dir():
            cpu = int(match[1])
            socket = _number(folder / "topology/physical_package_id", 0)
            # A core id is unique within its die only; the first sibling is unique on the machine.
            core = min(read_cpu_list(folder / "topology/thread_siblings_list") or [cpu])
            cores.setdefault((socket, core), []).append(cpu)
    first_of_socket: dict[int, int] = {}
    for (socket, _), cpus in cores.items():
        first_of_socket[socket] = min(first_of_socket.get(socket, cpus[0]), *cpus)
    in_order = sorted(cores, key=lambda key: (first_of_socket[key[0]], min(cores[key])))
    return tuple(tuple(sorted(cores[key])) for key in in_order)


def read_cpu_list(file: Path) -> list[int]:
    """The CPUs of a kernel list file such as `0-3,8`; none where the file is missing."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return []
    cpus: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def _number(file: Path, otherwise: int) -> int:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return otherwise

"""Cores of the machine, from the kernel."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ..core import numbers

TYPE_CHECKING = False  # mypy takes it for True; importing `typing` would delay a Prolog
if TYPE_CHECKING:
    from .records import Core


def read_cores(sysfs: Path = Path("/sys")) -> tuple[tuple[int, ...], ...]:
    """Return the cores in Slurm's numbering, each as its operating system CPU numbers in rising order.

    Slurm numbers cores as hwloc does: by socket, then by core, each ordered by its first CPU. Offline CPUs have no
    topology folder and are left out. If the kernel shows no topology, each CPU is a core.
    """
    cores: dict[tuple[int, int], list[int]] = {}
    for folder in sorted((sysfs / "devices/system/cpu").glob("cpu[0-9]*")):
        cpu = _number_in(folder.name, "cpu")
        if cpu is not None and (folder / "topology").is_dir():
            socket = _number(folder / "topology/physical_package_id", 0)
            # Core ids repeat in each die, so name a core by its lowest CPU.
            core = min(read_cpu_list(folder / "topology/thread_siblings_list") or [cpu])
            cores.setdefault((socket, core), []).append(cpu)
    first_of_socket: dict[int, int] = {}
    for (socket, _), cpus in cores.items():
        first_of_socket[socket] = min(first_of_socket.get(socket, cpus[0]), *cpus)
    in_order = sorted(cores, key=lambda key: (first_of_socket[key[0]], min(cores[key])))
    return tuple(tuple(sorted(cores[key])) for key in in_order)


def read_machine(allowed: Collection[int] | None = None, sysfs: Path = Path("/sys")) -> tuple[Core, ...]:
    """Return the cores with their socket and NUMA node; with `allowed`, only these CPUs.

    On a machine without NUMA every core is in node 0. A CPU of `allowed` without a topology is a core of its own.
    """
    from .records import Core  # not at the top: a Prolog calls read_cores() only, and must start fast

    numa_of = _read_numa_nodes(sysfs)
    found = []
    for cpus in read_cores(sysfs):
        kept = cpus if allowed is None else tuple(cpu for cpu in cpus if cpu in allowed)
        if kept:
            socket = _number(sysfs / f"devices/system/cpu/cpu{kept[0]}/topology/physical_package_id", 0)
            found.append(Core(kept, socket, numa_of.get(kept[0], 0)))
    known = {cpu for core in found for cpu in core.cpus}
    unknown = sorted(cpu for cpu in allowed or () if cpu not in known)
    return (*found, *(Core((cpu,), 0, numa_of.get(cpu, 0)) for cpu in unknown))


def _read_numa_nodes(sysfs: Path) -> dict[int, int]:
    """Return CPU -> NUMA node (Documentation/ABI/stable/sysfs-devices-node)."""
    found: dict[int, int] = {}
    for folder in (sysfs / "devices/system/node").glob("node[0-9]*"):
        node = _number_in(folder.name, "node")
        if node is not None:
            found.update(dict.fromkeys(read_cpu_list(folder / "cpulist"), node))
    return found


def read_pci_numa(bus_id: str, sysfs: Path = Path("/sys")) -> int | None:
    """Return the NUMA node of a PCI device; None if the kernel does not know it (-1) or has no such device.

    `bus_id`: in NVML's form, capitals and a domain of eight digits (00000000:3B:00.0), or in the kernel's.
    """
    domain, _, place = bus_id.strip().lower().partition(":")
    try:
        node = _number(sysfs / f"bus/pci/devices/{int(domain, 16):04x}:{place}/numa_node", -1)
    except ValueError:
        return None
    return node if node >= 0 else None


def read_cpu_list(file: Path) -> list[int]:
    """Return the CPUs of a kernel list file such as `0-3,8`; none if the file is missing."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return []
    cpus: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def _number_in(name: str, prefix: str) -> int | None:
    """Return N of cpuN; None for any other name."""
    digits = name.removeprefix(prefix)
    return numbers.whole(digits) if digits != name else None


def _number(file: Path, default: int) -> int:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return default

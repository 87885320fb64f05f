"""Cores in Slurm's order, from kernel files as different machines show them."""

from __future__ import annotations

import pytest

from slurm_share.node import topology
from slurm_share.node.records import Core


def machine(root, cpus):
    """Write /sys for CPUs given as {cpu: (socket, siblings)}."""
    for cpu, (socket, siblings) in cpus.items():
        folder = root / f"devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{socket}\n")
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    return root


def test_hardware_threads_are_joined_to_their_core(tmp_path):
    machine(tmp_path, {0: (0, "0,2"), 1: (0, "1,3"), 2: (0, "0,2"), 3: (0, "1,3")})
    assert topology.read_cores(tmp_path) == ((0, 2), (1, 3))


def test_cores_are_numbered_socket_by_socket(tmp_path):
    """CPUs dealt alternately to two sockets: Slurm's core 1 is CPU 2."""
    machine(tmp_path, {0: (0, "0"), 1: (1, "1"), 2: (0, "2"), 3: (1, "3")})
    assert topology.read_cores(tmp_path) == ((0,), (2,), (1,), (3,))


def test_more_than_ten_cpus_stay_in_order(tmp_path):
    machine(tmp_path, {cpu: (0, str(cpu)) for cpu in range(12)})
    assert topology.read_cores(tmp_path) == tuple((cpu,) for cpu in range(12))


def test_this_machine_has_cores():
    cpus = [cpu for core in topology.read_cores() for cpu in core]
    assert len(cpus) == len(set(cpus)) > 0


@pytest.mark.parametrize(("text", "cpus"), [("0-3,8\n", [0, 1, 2, 3, 8]), ("5", [5]), ("\n", [])])
def test_kernel_lists(tmp_path, text, cpus):
    (tmp_path / "list").write_text(text)
    assert topology.read_cpu_list(tmp_path / "list") == cpus


def numa(root, nodes):
    """Write /sys for NUMA nodes given as {node: CPUs}."""
    for node, cpus in nodes.items():
        folder = root / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    return root


TWO_SOCKETS = {
    0: (0, "0,4"), 1: (1, "1,5"), 2: (0, "2,6"), 3: (1, "3,7"),
    4: (0, "0,4"), 5: (1, "1,5"), 6: (0, "2,6"), 7: (1, "3,7"),
}  # fmt: skip


def test_a_core_knows_its_socket_and_its_numa_node(tmp_path):
    """Numbers of NUMA nodes are the kernel's, not those of the sockets."""
    numa(machine(tmp_path, TWO_SOCKETS), {0: "1,3,5,7", 1: "0,2,4,6"})
    assert topology.read_machine(None, tmp_path) == (
        *(Core((0, 4), 0, 1), Core((2, 6), 0, 1)),
        *(Core((1, 5), 1, 0), Core((3, 7), 1, 0)),
    )


def test_only_what_the_job_may_use(tmp_path):
    numa(machine(tmp_path, TWO_SOCKETS), {0: "0,2,4,6", 1: "1,3,5,7"})
    assert topology.read_machine({1, 4, 5}, tmp_path) == (Core((4,), 0, 0), Core((1, 5), 1, 1))


def test_a_kernel_without_numa_is_one_node(tmp_path):
    machine(tmp_path, {0: (0, "0"), 1: (0, "1")})
    assert topology.read_machine(None, tmp_path) == (Core((0,)), Core((1,)))


def test_cpus_without_topology_are_cores_of_their_own(tmp_path):
    assert topology.read_machine({3, 1}, tmp_path) == (Core((1,)), Core((3,)))


def test_this_machine_in_full():
    assert tuple(core.cpus for core in topology.read_machine()) == topology.read_cores()


@pytest.mark.parametrize(
    ("bus_id", "text", "node"),
    [
        ("00000000:3B:00.0", "1\n", 1),
        ("0000:3b:00.0", "0\n", 0),
        ("00000000:3B:00.0", "-1\n", None),
        ("00000000:3B:00.0", "", None),
        ("00000000:AF:00.0", "1\n", None),
        ("", "1\n", None),
        ("nonsense", "1\n", None),
    ],
)
def test_where_a_pci_device_is(tmp_path, bus_id, text, node):
    """NVML's spelling of an address finds the kernel's folder; -1 is unknown."""
    folder = tmp_path / "bus/pci/devices/0000:3b:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(text)
    assert topology.read_pci_numa(bus_id, tmp_path) == node

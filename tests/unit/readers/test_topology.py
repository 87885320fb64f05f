"""Cores in Slurm's order, from kernel files as different machines show them."""

from __future__ import annotations

import pytest

from slurm_share.readers import topology


def machine(root, cpus):
    """Write /sys for CPUs given as {cpu: (socket, siblings)}."""
    for cpu, (socket, siblings) in cpus.items():
        folder = root / f"devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{socket}\n")
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    return root


def test_hardware_threads_are_joined_to_their_core(tmp_path):
    """One socket, two cores, two threads each, numbered as Linux does."""
    machine(tmp_path, {0: (0, "0,2"), 1: (0, "1,3"), 2: (0, "0,2"), 3: (0, "1,3")})
    assert topology.read_cores(tmp_path) == ((0, 2), (1, 3))


def test_cores_are_numbered_socket_by_socket(tmp_path):
    """CPUs dealt alternately to two sockets: Slurm's core 1 is CPU 2."""
    machine(tmp_path, {0: (0, "0"), 1: (1, "1"), 2: (0, "2"), 3: (1, "3")})
    assert topology.read_cores(tmp_path) == ((0,), (2,), (1,), (3,))


def test_more_than_ten_cpus_stay_in_order(tmp_path):
    """cpu10 is not before cpu2."""
    machine(tmp_path, {cpu: (0, str(cpu)) for cpu in range(12)})
    assert topology.read_cores(tmp_path) == tuple((cpu,) for cpu in range(12))


def test_this_machine_has_cores():
    """The real /sys: every online CPU once."""
    cpus = [cpu for core in topology.read_cores() for cpu in core]
    assert len(cpus) == len(set(cpus)) > 0


@pytest.mark.parametrize(("text", "cpus"), [("0-3,8\n", [0, 1, 2, 3, 8]), ("5", [5]), ("\n", [])])
def test_kernel_lists(tmp_path, text, cpus):
    """Ranges and single numbers."""
    (tmp_path / "list").write_text(text)
    assert topology.read_cpu_list(tmp_path / "list") == cpus

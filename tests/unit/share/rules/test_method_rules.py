"""Which ways of sharing a GPU a node has, and the page that lists them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurm_share.node.records import Gpu
from slurm_share.share import option
from slurm_share.share.rules import methods
from slurm_share.share.rules.methods import METHODS, NodeOffer

PAGE = Path(__file__).resolve().parents[4] / "packaging/docs/methods.md"
H100 = Gpu("GPU-1", 0, 0, "NVIDIA H100 80GB HBM3", 80000, compute_capability=(9, 0))
V100 = Gpu("GPU-2", 1, 1, "Tesla V100-SXM2-32GB", 32000, compute_capability=(7, 0))
P100 = Gpu("GPU-3", 2, 2, "Tesla P100", 16000, compute_capability=(6, 0))
PARENT = Gpu("GPU-4", 3, 3, "NVIDIA A100", 40000, mig_parent=True, compute_capability=(8, 0))
INSTANCE = Gpu("MIG-4", 3, None, "NVIDIA A100 MIG 1g.5gb", 4864)


def here(*gpus, driver="620.1", **others):
    words = {"has_mps_program": True, "mps_program": "/mps", "cgroup": 2, "controllers": ("dmem",), "mps_protocol": 3}
    offer = NodeOffer(driver=driver, gpus=gpus or (H100,), **{**words, **others})
    return {one.name: one for one in methods.judge(offer)}


def missing(found):
    return {name for name, one in found.items() if not one.is_here}


def test_the_newest_driver_on_cgroup_v2_has_all_but_mig():
    found = here()
    assert missing(found) == {"MIG"}
    assert found["driver's memory limit"].why == "the kernel's dmem controller"
    assert found["MPS, sm=static"].why == ""


@pytest.mark.parametrize(
    ("driver", "lacks"),
    [
        ("550.163.01", {"MPS, sm=static", "driver's memory limit", "elastic memory", "MPS protocol 3"}),
        ("580.1", {"MPS, sm=static", "driver's memory limit", "elastic memory", "MPS protocol 3"}),
        ("590.1", {"driver's memory limit", "elastic memory", "MPS protocol 3"}),
        ("610.1", {"driver's memory limit", "elastic memory", "MPS protocol 3"}),
        ("615.1", set()),
        ("unknown", {"MPS, sm=static", "driver's memory limit", "elastic memory", "MPS protocol 3"}),
    ],
)
def test_a_driver_lacks_what_came_later_and_is_named(driver, lacks):
    found = here(driver=driver)
    assert missing(found) - {"MIG"} == lacks
    assert all("needs driver" in found[name].why for name in lacks)


@pytest.mark.parametrize(("driver", "said"), [("595.1", True), ("610.1", False)])
def test_before_610_a_static_partition_is_said_not_to_hold_a_fault(driver, said):
    assert ("ends all tasks of the GPU" in here(driver=driver)["MPS, sm=static"].why) is said


@pytest.mark.parametrize(("driver", "routes"), [("615.1", False), ("620.1", True)])
def test_a_task_without_variables_is_said_to_have_no_cap_also_where_the_driver_routes_by_cgroup(driver, routes):
    said = here(driver=driver)["MPS protocol 3"].why
    assert "has no cap" in said
    assert ("only what reaches the daemon's own control socket" in said) is routes


@pytest.mark.parametrize(
    ("others", "name", "why"),
    [
        ({"cgroup": 1}, "driver's memory limit", "needs cgroup v2, and this host has v1"),
        ({"cgroup": None}, "elastic memory", "needs cgroup v2, and this host has none"),
        ({"memory_limits": "off"}, "driver's memory limit", 'memory_limits = "off" in config.toml'),
        ({"no_limits": "Not Supported"}, "driver's memory limit",
         "the driver does not answer for a cgroup's memory (Not Supported)"),
        ({"has_mps_program": False}, "MPS", "there is no /mps, NVIDIA's MPS control program"),
        ({"mps_program": ""}, "MPS, sm=static", 'mps_control = "" in config.toml: this site shares without MPS'),
        ({"mps_protocol": 2}, "MPS protocol 3", "mps_protocol = 2 in config.toml, the site's choice"),
    ],
)  # fmt: skip
def test_the_reason_is_the_settings_or_the_hosts(others, name, why):
    found = here(**others)
    assert (found[name].is_here, found[name].why) == (False, why)
    assert found["time-slicing"].is_here


def test_an_older_gpu_is_named_with_its_compute_capability():
    found = here(V100)
    assert found["MPS"].is_here
    assert found["MPS, sm=static"].why == (
        "needs compute capability 8.0 (Ampere) or newer, and Tesla V100-SXM2-32GB has 7.0"
    )
    assert "7.0 (Volta)" in here(P100)["MPS"].why
    assert "does not tell" in here(Gpu("GPU-9", 0, 0, "New", 80000))["MPS, sm=static"].why


def test_of_unlike_gpus_those_without_the_method_are_named():
    found = here(H100, V100)["MPS, sm=static"]
    assert found.is_here
    assert found.why.startswith("not GPU 1: needs compute capability 8.0")


def test_instances_of_mig_take_turns_and_their_memory_is_not_limited_by_the_driver():
    found = here(PARENT, INSTANCE)
    assert missing(found) == set(found) - {"MIG", "time-slicing", "exclusive"}
    assert found["MPS"].why == "tasks of a MIG instance take turns"


def test_a_gpu_that_could_be_divided_is_told_from_one_that_cannot():
    assert "only the administrator" in here(H100)["MIG"].why
    assert here(V100)["MIG"].why == "Tesla V100-SXM2-32GB cannot be divided"


def test_a_host_without_a_driver_has_nothing_and_says_why():
    gone = methods.judge(NodeOffer(problem="the driver does not answer"))
    assert {one.why for one in gone} == {"the driver does not answer"}
    assert {one.why for one in methods.judge(NodeOffer())} == {"this host has no GPU"}


def test_simulated_gpus_are_nobodys_to_share_unless_the_site_says_so():
    gpu = Gpu("GPU-5131", 0, 0, "Simulated", 1000, simulated=True, compute_capability=(9, 0))
    assert missing(here(gpu)) == set(here(gpu))
    assert missing(here(gpu, simulated_gpus=True)) == {"MIG"}


def test_a_site_that_only_observes_is_said_to_share_nothing():
    assert here(mode="observe")["time-slicing"].why == 'mode = "observe" in config.toml: jobs run unshared'


def test_every_example_is_a_request_that_slurm_share_takes():
    words = [found[1] for one in METHODS if (found := re.search(r"--share-gpu=(\S+)", one.request))]
    assert len(words) == 7
    assert all(option.parse(word) is not None for word in words)


def test_the_page_has_the_table():
    rows = [
        f"| {one.name} | {one.isolates} | {one.costs} | {one.driver} | {one.gpu} | {one.cgroup} | `{one.request}` |"
        for one in METHODS
    ]
    assert "\n".join(rows) + "\n\n" in PAGE.read_text()

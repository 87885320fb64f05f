"""MIG instances of the simulated GPU: through the real nvidia-ml-py, through our readers, and as tasks meet them."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from simulated_host import Host, until, without_driver

pytestmark = [without_driver, pytest.mark.weekly]

ASK = """
import json
import pynvml as n

def ask(name, *arguments):
    try:
        return getattr(n, name)(*arguments)
    except n.NVMLError as error:
        return type(error).__name__.removeprefix("NVMLError_")

def describe(instance):
    attributes, memory = n.nvmlDeviceGetAttributes_v2(instance), n.nvmlDeviceGetMemoryInfo(instance)
    found = {"id": n.nvmlDeviceGetUUID(instance), "name": n.nvmlDeviceGetName(instance)}
    found["numbers"] = [n.nvmlDeviceGetGpuInstanceId(instance), n.nvmlDeviceGetComputeInstanceId(instance)]
    found["memory"] = [memory.total >> 20, memory.used >> 20, attributes.memorySizeMB]
    found["sms"] = attributes.multiprocessorCount
    card = n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance)
    found["card"] = n.nvmlDeviceGetIndex(card)
    found["is"] = [bool(n.nvmlDeviceIsMigDeviceHandle(one).value) for one in (instance, card)]
    listed = n.nvmlDeviceGetComputeRunningProcesses(instance)
    found["processes"] = [[one.pid, one.gpuInstanceId, one.computeInstanceId] for one in listed]
    old = "MIG-{}/{}/{}".format(n.nvmlDeviceGetUUID(card), *found["numbers"])
    found["found"] = [n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByUUID(name)) for name in (found["id"], old)]
    calls = ("UtilizationRates", "PowerUsage", "MinorNumber", "CudaComputeCapability", "MigMode")
    found["refused"] = {ask(f"nvmlDeviceGet{call}", instance) for call in calls} == {"NotSupported"}
    return found

def instances(card):
    for number in range(n.nvmlDeviceGetMaxMigDeviceCount(card)):
        instance = ask("nvmlDeviceGetMigDeviceHandleByIndex", card, number)
        if not isinstance(instance, str):
            yield describe(instance)

n.nvmlInit()
cards = [n.nvmlDeviceGetHandleByIndex(index) for index in range(n.nvmlDeviceGetCount())]
print(json.dumps([list(instances(card)) for card in cards]))
"""

OURS = """
import json
from slurm_share.node.gpus import driver
print(json.dumps([[one.uuid, one.index, one.memory_total_mib, one.mig_parent] for one in driver.read_driver().gpus]))
"""


@pytest.fixture
def mig(host: Host) -> Host:
    assert host.init("2", "--mig", "3g.40gb,2g.20gb,1g.10gb,1g.10gb").returncode == 0
    return host


def ids(host: Host, card: int = 0) -> list[str]:
    return [one["id"] for one in host.nvml(ASK)[card]]


def test_each_instance_has_a_handle_with_its_own_name_memory_and_numbers(mig: Host) -> None:
    first, second = mig.nvml(ASK)
    assert [one["name"].rpartition(" MIG ")[2] for one in first] == ["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"]
    assert [one["numbers"] for one in first] == [[1, 0], [3, 0], [7, 0], [8, 0]]
    assert [one["memory"] for one in first] == [[size, 0, size] for size in (40960, 20480, 10240, 10240)]
    assert [one["sms"] for one in first] == [48, 32, 16, 16]
    everything: list[dict[str, Any]] = [*first, *second]
    assert len({one["id"] for one in everything}) == 8
    for one in everything:
        assert one["id"].startswith("MIG-5131")
        assert (one["is"], one["found"], one["refused"]) == ([True, False], [one["id"]] * 2, True)
    assert {one["card"] for one in second} == {1}


def test_ids_have_the_old_form_where_asked(mig: Host) -> None:
    mig.say(0, "mig_ids=old")
    card = mig.gpus()[0]["uuid"]
    assert ids(mig) == [f"MIG-{card}/{number}/0" for number in (1, 3, 7, 8)]
    assert {one["found"][0] for one in mig.nvml(ASK)[0]} == set(ids(mig))


def test_our_reader_lists_the_instances_after_their_card(mig: Host) -> None:
    ours = json.loads(mig.run(sys.executable, "-c", OURS).stdout)
    assert [one[1:] for one in ours[:5]] == [
        [0, 81920, True],
        *([0, mib, False] for mib in (40960, 20480, 10240, 10240)),
    ]
    assert [one[0] for one in ours[1:5]] == ids(mig)


def test_a_task_runs_on_the_instance_that_it_is_given_by_either_id(mig: Host) -> None:
    card, small = mig.gpus()[0]["uuid"], ids(mig)[2]
    for name in (small, f"MIG-{card}/7/0"):
        task = mig.start_and_hear("--memory", "2G", "--seconds", "60", CUDA_VISIBLE_DEVICES=name)
        found = mig.nvml(ASK)[0]
        assert [one["processes"] for one in found] == [[], [], [[task.pid, 7, 0]], []]
        assert [one["memory"][1] for one in found] == [0, 0, 2048, 0]
        assert mig.gpus()[0]["memory"][2] >> 20 == 2048
        task.kill()
        assert until(lambda: mig.clients() == [] or mig.nvml(ASK)[0][2]["memory"][1] == 0)


def test_an_instances_memory_is_its_own(mig: Host) -> None:
    small, other = ids(mig)[2:]
    mig.start_and_hear("--memory", "9G", "--seconds", "60", CUDA_VISIBLE_DEVICES=small)
    assert "CUDA_ERROR_OUT_OF_MEMORY" in mig.task("--memory", "2G", CUDA_VISIBLE_DEVICES=small)[2]
    said = mig.task("--memory", "9G", "--mem-info", "after", "--seconds", "0.05", CUDA_VISIBLE_DEVICES=other)[1]
    assert "free 1024 MiB, total 10240 MiB" in said
    assert f"gpu {other}, memory 9216 MiB" in said


def test_a_task_sees_one_instance_only(mig: Host) -> None:
    first, _, third, _ = ids(mig)
    words = ("--memory", "1M", "--seconds", "0.05")
    assert f"gpu {third}," in mig.task(*words, CUDA_VISIBLE_DEVICES=f"{third},{first}")[1]
    assert "CUDA_ERROR_INVALID_DEVICE" in mig.task(*words, "--device", "1", CUDA_VISIBLE_DEVICES=f"{third},{first}")[2]
    # a card in MIG mode, named or not, stands for its first instance
    assert f"gpu {first}," in mig.task(*words)[1]
    assert f"gpu {ids(mig, 1)[0]}," in mig.task(*words, CUDA_VISIBLE_DEVICES="1")[1]
    assert "CUDA_ERROR_NO_DEVICE" in mig.task(*words, CUDA_VISIBLE_DEVICES="MIG-5131")[2]


@pytest.mark.parametrize("profiles", ["1g", "8g.80gb", "1g.10", "4g.40gb,4g.40gb", "7g.80gb,1g.10gb", "1g.tengb"])
def test_profiles_that_do_not_fit_are_refused(host: Host, profiles: str) -> None:
    refused = host.init("1", "--mig", profiles)
    assert (refused.returncode, f"'{profiles}'" in refused.stderr or "is no MIG profile" in refused.stderr) == (2, True)

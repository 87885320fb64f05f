"""The sampler through NVIDIA's own binding, over the simulated driver: real processes, real /proc."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from simulated_host import Host, without_driver

pytestmark = without_driver

SAMPLER = """
import sys
from slurm_share.load import snapshot
from slurm_share.node.gpus.load import NvmlSession
from slurm_share.load.sampler import NodeSampler
sampler = NodeSampler("here", driver=NvmlSession(retry_s=0.1))
for word in sys.stdin:
    if word == "restart\\n":
        memory = sampler.remember()
        sampler.close()
        sampler = NodeSampler("here", driver=NvmlSession(retry_s=0.1))
        sampler.recall(memory)
    sys.stdout.write(snapshot.render(sampler.sample()).decode() + "\\n")
    sys.stdout.flush()
"""


class Node(Host):
    """A host with a sampler that looks when it is told to."""

    sampler: subprocess.Popen[str] | None = None

    def begin(self, *words: str, **environ: str) -> subprocess.Popen[str]:
        """Start a task that runs until it is ended."""
        return self.start_and_hear("--seconds", "600", *words, **environ)

    def look(self, word: str = "look") -> dict[str, Any]:
        if self.sampler is None:
            pipe = subprocess.PIPE
            argv = [sys.executable, "-c", SAMPLER]
            self.sampler = subprocess.Popen(argv, env=self.environ(), stdin=pipe, stdout=pipe, text=True)
            self.running.append(self.sampler)
        assert self.sampler.stdin is not None
        assert self.sampler.stdout is not None
        time.sleep(0.12)  # GPM's shortest time between two samples
        self.sampler.stdin.write(word + "\n")
        self.sampler.stdin.flush()
        found: dict[str, Any] = json.loads(self.sampler.stdout.readline())
        return found


@pytest.fixture
def node(tmp_path: Path, library: Path) -> Iterator[Node]:
    node = Node(tmp_path, library)
    yield node
    node.end()


def test_a_loaded_gpu_is_read_whole(node: Node) -> None:
    """Memory, load, GPM, process, slot and cap; power, energy and heat where the simulated card states them."""
    node.init("2")
    for line in ("power_w=310", "energy_j=123456", "temperature_c=61"):
        node.say(0, line)
    task = node.begin("--memory", "2G", "--load", "30", "--tensor", "20", "--dram", "10", SLURM_SHARE_SLOT="3")
    node.look()
    seen = node.look()
    first, second = seen["gpus"]
    assert (seen["driver"], first["simulated"], first["clients"]) == ("550.0-simulated", True, 1)
    assert (first["memory_total_mib"], first["memory_used_mib"], first["utilization_percent"]) == (81920, 2048, 30.0)
    assert (first["power_w"], first["energy_j"], first["temperature_c"]) == (310.0, 123456.0, 61)
    assert (first["activity"]["sm"], first["activity"]["tensor"], first["activity"]["dram"]) == (30.0, 20.0, 10.0)
    assert first["activity"]["fp64"] is None
    assert first["unknown"]["activity.fp64"]
    assert first["sm"]["m1"] == pytest.approx(30.0)
    assert (second["clients"], second["power_w"], second["activity"]["fp64"]) == (0, 52.0, 0.0)
    (process,) = seen["processes"]
    assert (process["pid"], process["name"], process["slot"], process["job"]) == (task.pid, "simgpu-task", 3, None)
    expected = {"uuid": first["uuid"], "memory_mib": 2048, "peak_mib": 2048, "sm_time_percent": 30.0}
    assert process["gpus"] == [expected]


@pytest.mark.parametrize("lists", ["both", "mps", "compute"])
@pytest.mark.parametrize("detail", ["0", "1"])
def test_every_client_is_seen_whichever_list_names_it(node: Node, lists: str, detail: str) -> None:
    node.init("1")
    node.say(0, f"mps_lists={lists}")
    node.say(0, f"detail_list={detail}")
    pids = {node.begin("--memory", "1G").pid for _ in range(2)}
    for _ in range(3):
        seen = node.look()
        assert {one["pid"] for one in seen["processes"]} == pids
        assert seen["gpus"][0]["clients"] == 2


def test_an_older_card_has_no_gpm_and_says_so(node: Node) -> None:
    node.init("1", "--cc", "8.0")
    node.begin("--load", "70")
    node.look()
    (gpu,) = node.look()["gpus"]
    assert (gpu["sm"], gpu["activity"]["sm"], gpu["utilization"]["m1"]) == (None, None, 70.0)
    assert "Hopper" in gpu["unknown"]["sm"]


def test_a_card_that_is_lost_and_comes_back(node: Node) -> None:
    """Its neighbour is read all the while; back again, its windows and its process's peak go on."""
    node.init("2")
    node.begin("--memory", "3G", "--device", "0")
    other = node.begin("--memory", "1G", "--device", "1")
    node.look()
    uuid = node.look()["gpus"][0]["uuid"]
    node.say(0, "lost=1")
    first, second = (seen := node.look())["gpus"]
    assert (first["uuid"], first["memory_used_mib"], first["clients"]) == (uuid, None, None)
    assert first["problem"] == "GPU is lost"
    assert seen["problems"] == ["GPU 0 does not answer (GPU is lost); see nvidia-smi on this node"]
    assert (second["memory_used_mib"], second["problem"]) == (1024, None)
    assert [one["pid"] for one in seen["processes"]] == [other.pid]
    node.say(0, "lost=0")
    node.look()
    first = node.look()["gpus"][0]
    assert (first["problem"], first["uuid"]) == (None, uuid)


def test_without_a_driver_and_with_one_that_comes_later(node: Node) -> None:
    seen = node.look()
    assert (seen["driver"], seen["gpus"]) == (None, [])
    assert "no NVIDIA driver" in seen["problems"][0]
    assert seen["memory_total_mib"] > 0
    node.init("2")
    node.look()
    seen = node.look()
    assert (len(seen["gpus"]), seen["problems"]) == (2, [])


def test_a_task_that_is_killed_between_two_looks_is_gone(node: Node) -> None:
    node.init("1")
    first, second = (node.begin("--memory", "1G") for _ in range(2))
    assert len(node.look()["processes"]) == 2
    first.send_signal(signal.SIGKILL)
    first.wait()
    seen = node.look()
    assert [one["pid"] for one in seen["processes"]] == [second.pid]
    assert (seen["gpus"][0]["clients"], seen["gpus"][0]["memory_used_mib"]) == (1, 1024)


@pytest.mark.weekly
def test_sixty_clients_on_one_card(node: Node) -> None:
    """All are there, with what they have; their shares of the card's time add up to it."""
    node.init("1")
    tasks = [node.begin("--memory", "1G", "--load", "1") for _ in range(60)]
    node.look()
    seen = node.look()
    (gpu,) = seen["gpus"]
    assert (gpu["clients"], gpu["memory_used_mib"], gpu["utilization_percent"]) == (60, 60 * 1024, 60.0)
    assert {one["pid"] for one in seen["processes"]} == {task.pid for task in tasks}
    assert sum(one["gpus"][0]["sm_time_percent"] for one in seen["processes"]) == pytest.approx(60.0)


def test_a_sampler_that_was_restarted_goes_on(node: Node) -> None:
    """Windows, peaks and the time that was watched; the first look after it has rates at once."""
    node.init("1")
    task = node.begin("--memory", "4G", "--load", "50")
    node.look()
    before = node.look()
    after = node.look("restart")
    assert after["measured_s"] > before["measured_s"] > 0
    assert after["processes"][0]["gpus"][0]["peak_mib"] == 4096
    assert after["processes"][0]["cpu_cores"] is not None
    assert after["gpus"][0]["sm"]["over_s"] >= before["gpus"][0]["sm"]["over_s"]
    assert task.poll() is None

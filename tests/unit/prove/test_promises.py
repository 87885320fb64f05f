"""Whether a measurement bears out a promise, and the page that lists the promises."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from slurm_share.node.records import Gpu
from slurm_share.prove.probes import Probes
from slurm_share.prove.rules import promises
from slurm_share.prove.rules.promises import PROMISES
from slurm_share.share import methods

PAGE = Path(__file__).resolve().parents[3] / "packaging/docs/security.md"
GPU = Gpu("GPU-1", 0, 0, "NVIDIA H100", 80000, compute_capability=(9, 0))
BY_NAME = {one.name: one for one in PROMISES}


def offer(driver="620.1", **others):
    words = {"has_mps_program": True, "mps_program": "/mps", "cgroup": 2, "controllers": ("dmem",), **others}
    return methods.NodeOffer(driver=driver, gpus=(GPU,), **words)


def judged(name, measured, **words):
    return promises.judge(BY_NAME[name], offer(**words), measured)


@pytest.mark.parametrize(
    ("got", "outcome"),
    [(4000, "holds"), (4096, "holds"), (4177, "holds"), (4179, "does not hold here"), (8192, "does not hold here"),
     (1000, "does not hold here")],
)  # fmt: skip
def test_a_task_may_get_its_cap_and_two_percent_more(got, outcome):
    found = judged("memory-fork", {"got_mib": got, "cap_mib": 4096})
    assert found.outcome == outcome
    assert found.is_promised
    assert promises.is_broken(found) is (outcome != "holds")
    assert found.measured == {"got_mib": got, "cap_mib": 4096}
    if got == 8192:
        assert found.why == "got 8192 MiB with a cap of 4096 MiB"


def test_below_615_an_escape_is_shown_and_is_no_broken_promise():
    found = judged("memory-fork", {"got_mib": 8192, "cap_mib": 4096}, driver="580.1")
    assert (found.outcome, found.is_promised, promises.is_broken(found)) == ("not on this driver", False, False)
    assert found.why == ("needs driver 615 or newer, and this node has 580; here got 8192 MiB with a cap of 4096 MiB")


@pytest.mark.parametrize(
    ("words", "why"),
    [({"cgroup": 1}, "needs cgroup v2"), ({"memory_limits": "off"}, "memory_limits"), ({"no_limits": "no"}, "(no)")],
)
def test_a_node_whose_driver_does_not_limit_memory_is_promised_no_limit(words, why):
    found = judged("memory-unset", {"got_mib": 8192, "cap_mib": 4096}, **words)
    assert not promises.is_broken(found)
    assert found.outcome == "not on this node"  # its driver has it
    assert why in found.why


def test_a_cap_of_mps_that_does_not_hold_is_a_broken_promise_on_any_driver():
    assert promises.is_broken(judged("cap-under-mps", {"got_mib": 8192, "cap_mib": 4096}, driver="550.1"))


def test_managed_memory_is_no_broken_promise():
    found = judged("memory-managed", {"got_mib": 8192, "cap_mib": 4096})
    assert (found.outcome, promises.is_broken(found)) == ("does not hold here", False)


def test_a_probe_that_could_not_be_carried_out_proves_nothing():
    found = judged("total", {"error": "libcuda.so.1: cannot open"})
    assert promises.is_broken(found)
    assert found.why == "could not be examined: libcuda.so.1: cannot open"


@pytest.mark.parametrize(
    ("name", "measured", "why"),
    [
        ("total", {"total_mib": 80000, "cap_mib": 4096}, "it sees 80000 MiB with a cap of 4096 MiB"),
        ("sm-percentage", {"sms": 132, "all_sms": 132, "percent": 25}, "it sees 132 of 132 SM at 25 %"),
        ("sm-percentage", {"sms": 0, "all_sms": 132, "percent": 25}, "it sees 0 of 132 SM at 25 %"),
        ("fault-alone", {"ended": True, "neighbour": "CUDA_ERROR_LAUNCH_FAILED"},
         "its neighbour ended with CUDA_ERROR_LAUNCH_FAILED"),
        ("fault-alone", {"ended": False, "neighbour": ""}, "could not be examined: the task that was to fail did not"),
        ("daemon-gone", {"ended": False}, "the task went on"),
        ("elastic", {"is_above": True, "within": "CUDA_ERROR_MPS_CLIENT_TERMINATED"},
         "the task within its first size ended with CUDA_ERROR_MPS_CLIENT_TERMINATED"),
        ("elastic", {"is_above": False, "within": ""}, "could not be examined: no task got more than its first size"),
        ("partition-needed", {"refused": ""}, "it was served"),
    ],
)  # fmt: skip
def test_what_breaks_a_promise_is_said(name, measured, why):
    found = judged(name, measured)
    assert promises.is_broken(found)
    assert found.why == why


@pytest.mark.parametrize(
    ("name", "measured"),
    [
        ("total", {"total_mib": 4090, "cap_mib": 4096}),
        ("sm-percentage", {"sms": 32, "all_sms": 132, "percent": 25}),
        ("kill-alone", {"ended": True, "neighbour": ""}),
        ("daemon-gone", {"ended": True}),
        ("elastic", {"is_above": True, "within": ""}),
        ("partition-known", {"refused": "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"}),
    ],
)
def test_what_bears_out_a_promise_holds(name, measured):
    assert judged(name, measured).outcome == "holds"


def test_a_probe_is_not_run_where_its_method_is_missing():
    assert "590" in promises.needs_of_probe(BY_NAME["partition-needed"], offer("580.1"))
    assert promises.needs_of_probe(BY_NAME["memory-fork"], offer("580.1")) == ""
    assert "615" in promises.needs_of_probe(BY_NAME["elastic"], offer("580.1"))
    assert promises.judge(BY_NAME["elastic"], offer("580.1"), None).outcome == "not on this driver"
    assert promises.judge(BY_NAME["namespace-sm"], offer("620.1"), None).outcome == "not on this node"
    without_mps = offer("620.1", mps_program="")
    assert promises.judge(BY_NAME["partition-needed"], without_mps, None).outcome == "not on this node"


@pytest.mark.parametrize(
    ("states", "jobs", "pids", "why"),
    [
        (("IDLE",), (), (), ""),
        (("IDLE", "DRAIN"), (), (), ""),
        (None, (), (), ""),
        (("ALLOCATED", "DRAIN"), (), (), "Slurm says that the node is ALLOCATED+DRAIN"),
        (("MIXED",), (), (), "Slurm says that the node is MIXED"),
        (("IDLE",), (7, 8), (), "job 7, 8 runs here"),
        (None, (), (42,), "process 42 is on the GPU"),
    ],
)
def test_a_node_in_use_is_not_touched(states, jobs, pids, why):
    found = promises.why_not_now(states, jobs, pids)
    assert found.startswith(why)
    assert bool(found) is bool(why)


def test_every_promise_has_a_probe_and_every_probe_a_promise():
    probes = {name for name, _ in inspect.getmembers(Probes, inspect.isfunction) if not name.startswith("_")}
    assert {one.probe for one in PROMISES} == probes - {"run"}
    assert len(BY_NAME) == len(PROMISES)


def test_the_page_has_the_promises_in_the_same_words():
    section = PAGE.read_text().partition("## What a node can prove")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+?) \| (.+?) \|$", section, re.MULTILINE)
    assert [(name, says) for name, says, _ in rows] == [(one.name, one.says) for one in PROMISES]
    for name, _, since in rows:
        one = BY_NAME[name]
        release = "" if one.since is None else f"driver {one.since}"
        assert since == ", ".join(filter(None, (one.method, release, "" if one.is_promised else "not promised")))

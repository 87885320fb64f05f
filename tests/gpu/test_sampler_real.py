"""The sampler on a real GPU: what it says of programs whose memory is known, with and without MPS, as root and as an
ordinary user. The answers go to tests/gpu/results/sampler-<driver>.json, with what a round costs.

Needs what mps_questions.py needs: root, PyTorch, nvidia-ml-py and nvidia-cuda-mps-control.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import mps_questions
from mps_questions import OTHER, OWNER, Lab, as_user, daemon, facts_of

from slurm_share.core.records import Owner
from slurm_share.load import snapshot as snapshots
from slurm_share.load.sampler import NodeSampler
from slurm_share.load.snapshot import GpuLoad, Snapshot

pytestmark = pytest.mark.gpu

HELD_MIB = 2048
HOME = Path(__file__).resolve().parents[2]
SAMPLE = """
import time
from slurm_share.load import snapshot
from slurm_share.load.sampler import NodeSampler
sampler = NodeSampler("gpu")
sampler.sample()
time.sleep(2)
print(snapshot.render(sampler.sample()).decode())
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = mps_questions.open_lab()
    if isinstance(lab, str):
        pytest.skip(f"NOT TESTED: {lab}")
    yield lab
    lab.close()


@pytest.fixture(scope="module")
def found(lab: Lab) -> Iterator[dict[str, Any]]:
    """Yield a record for what the tests learn; write it at the end in any case."""
    rows: dict[str, Any] = {}
    yield rows
    mps_questions.RESULTS.mkdir(exist_ok=True)
    head = {**mps_questions.head_of(lab, "sampler"), "slurm": None}
    cost = rows.pop("cost", [])
    file = mps_questions.RESULTS / f"sampler-{lab.driver}.json"
    file.write_text(json.dumps({**head, "rows": cost, "answers": rows}, indent=1, default=str) + "\n")


def of_gpu(seen: Snapshot, lab: Lab) -> GpuLoad:
    return next(gpu for gpu in seen.gpus if gpu.uuid == lab.gpu)


def held(seen: Snapshot, lab: Lab) -> dict[int, int | None]:
    return {one.pid: on.memory_mib for one in seen.processes for on in one.gpus if on.uuid == lab.gpu}


def sample_as(owner: Owner) -> Snapshot | str:
    environ = {**os.environ, "PYTHONPATH": str(HOME), "HOME": "/tmp"}
    done = subprocess.run(
        [sys.executable, "-c", SAMPLE], capture_output=True, text=True, timeout=120, check=False, cwd="/",
        env=environ, **as_user(owner),
    )  # fmt: skip
    return snapshots.parse_snapshot(done.stdout, "sampler") if done.returncode == 0 else done.stderr[-1000:]


def test_programs_that_share_by_time_are_seen(lab: Lab, found: dict[str, Any]) -> None:
    """Both are clients; each has at least what it holds, and nvidia-smi says the same of each."""
    clients = [lab.client(None, mib=HELD_MIB, seconds=60) for _ in range(2)]
    facts = [facts_of(client) for client in clients]
    sampler = NodeSampler("gpu")
    sampler.sample()
    time.sleep(2)
    seen = sampler.sample()
    smi = subprocess.run(
        ["nvidia-smi", "-i", lab.gpu, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    sampler.close()
    for client in clients:
        client.kill()
    gpu = of_gpu(seen, lab)
    found["time-sliced"] = {"clients": facts, "gpu": gpu, "processes": seen.processes, "nvidia-smi": smi.splitlines()}
    found["time-sliced"] = json.loads(json.dumps(found["time-sliced"], default=_plain))
    pids = {client.pid for client in clients}
    assert pids <= held(seen, lab).keys()
    for line in smi.splitlines():
        pid, used = line.split(", ")
        if int(pid) in pids:
            assert held(seen, lab)[int(pid)] == int(used) >= HELD_MIB
    assert gpu.memory_used_mib is not None
    assert gpu.memory_used_mib >= 2 * HELD_MIB
    assert gpu.power_w is not None
    assert gpu.temperature_c is not None
    assert gpu.problem is None


@pytest.mark.parametrize("name", ["root", "owner", "other"])
def test_clients_of_mps_are_seen_by_whoever_looks(lab: Lab, found: dict[str, Any], name: str) -> None:
    """Root must see both clients and their memory; what an ordinary user is told, GPM above all, is written down, and
    what is not told has a reason."""
    owner = {"root": Owner(0, 0), "owner": OWNER, "other": OTHER}[name]
    with daemon(lab, f"s{name[0:2]}") as started:
        clients = [lab.client(started.place, mib=HELD_MIB, seconds=60) for _ in range(2)]
        facts = [facts_of(client) for client in clients]
        lists = {**mps_questions.nvml_lists(lab), "whole": _whole_list(lab)}
        seen = sample_as(owner)
        for client in clients:
            client.kill()
            client.wait()
    assert isinstance(seen, Snapshot), seen
    gpu = of_gpu(seen, lab)
    answer = {"clients": facts, "lists": lists, "gpu": gpu, "processes": seen.processes}
    found[f"mps, as {name}"] = json.loads(json.dumps(answer, default=_plain))
    if name == "root":
        assert {client.pid for client in clients} <= held(seen, lab).keys()
        assert all((held(seen, lab)[client.pid] or 0) >= HELD_MIB for client in clients)
    for field in ("sm", "utilization", "power_w", "clients", "memory_used_mib"):
        assert getattr(gpu, field) is not None or field in gpu.unknown, field


def test_what_a_round_costs(lab: Lab, found: dict[str, Any]) -> None:
    clients = [lab.client(None, mib=64, seconds=120) for _ in range(8)]
    for client in clients:
        facts_of(client)
    sampler = NodeSampler("gpu")
    sampler.sample()
    rounds = 50
    begin = time.process_time()
    for _ in range(rounds):
        time.sleep(0.12)
        seen = sampler.sample()
    cpu_ms = 1000 * (time.process_time() - begin) / rounds
    sampler.close()
    for client in clients:
        client.kill()
    found["cost"] = [
        {
            "what": f"sampler, a round with {len(seen.gpus)} GPUs and {len(seen.processes)} clients",
            "value": round(cpu_ms, 2),
            "unit": "ms CPU",
            "bar": 25,
            "better": "lower",
            "holds": cpu_ms <= 25,
        }
    ]
    assert len(held(seen, lab)) >= len(clients)


def _whole_list(lab: Lab) -> Any:
    """Return the answer of the one process query of Hopper and newer, or its error."""
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(lab.gpu)
        answer = pynvml.nvmlDeviceGetRunningProcessDetailList(
            handle, pynvml.nvmlProcessDetailList_v1, pynvml.NVML_PROCESS_MODE_ALL
        )
        return {one.pid: one.usedGpuMemory // mps_questions.MIB for one in answer}
    except (pynvml.NVMLError, TypeError) as error:
        return repr(error)
    finally:
        pynvml.nvmlShutdown()


def _plain(value: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(value)

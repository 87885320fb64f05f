"""A thousand tasks that try to get more memory than their cap: python tests/bench/prove_escapes.py [TASKS] [DRIVER].

Needs root; makes its own local cluster of one node, whose simulated driver is of that release (620 if not given). On
the node the probes of `slurm-share prove` run one after the other, under one MPS daemon, until they have started TASKS
tasks (1000 if not given), which takes three minutes at most on a quiet machine. From 615 on, with cgroup v2
(tests/kernel.sh), no task may get more than its cap and 2 %, except of managed memory; below, the rows say what got
around the cap of MPS, how often, and how much it got. With fewer tasks than 1000 no file is written. On the kernel of
tests/kernel.sh, whose files are lost with it, the file is in build/kernel, to be copied to tests/bench/results.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))

from bench import RESULTS, Row, report, show
from clusters import ON_V2

from localcluster import Cluster

UNCOUNTED = "managed"
MOST_RATIO = 1.02
ALL_TASKS, MOST_S = 1000, 180
ENFORCED_SINCE = 615
KEPT = Path(__file__).parents[2] / "build/kernel"
TASKS_OF = {"forked": 2}
"""Probes that start more than one process."""
# Runs on the node as root. Prints a JSON object: by probe, the memory of each of its tasks as a part of the cap.
ROUNDS = """
import json, sys, time
from slurm_share.core.config import load
from slurm_share.mps import daemons
from slurm_share.prove import proof, stage
from slurm_share.prove.probes import Probes
from slurm_share.share import node_offer
count, has_limits, of = int(sys.argv[1]), sys.argv[2] == "1", json.loads(sys.argv[3])
settings, got, tasks, began = load().settings, {}, 0, time.monotonic()
gpu = node_offer.read_offer(settings).gpus[0]
names = ("device_under_mps", "device_without_mps", "unset", "mangled", "wrong_pipe", "unseen_gpu", "forked",
         "second_context", "asynchronous", "created", "managed")
with stage.alone(settings.mps_control):
    made = stage.Stage(gpu, daemons.owner(65534, 65534), settings.mps_control, 1024, gpu.memory_total_mib)
    probes = Probes(made, has_limits=has_limits, has_mps=True)
    try:
        while tasks < count:
            print(f"{tasks} tasks, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            for name in names:
                found = probes.run(name)
                got.setdefault(name, []).append(found["got_mib"] / found["cap_mib"])
                tasks += of.get(name, 1)
                made.end_clients()
    finally:
        made.reset()
print(json.dumps({"tasks": tasks, "seconds": time.monotonic() - began, "got": got}))
"""


def main(tasks: int, release: int) -> bool:
    is_enforced = release >= ENFORCED_SINCE and ON_V2
    with Cluster.up("prove-bench", nodes=1, driver=release, cgroup_v2=ON_V2) as cluster:
        argv = ["/opt/slurm-share/bin/python", "-c", ROUNDS, str(tasks), str(int(is_enforced)), json.dumps(TASKS_OF)]
        found = json.loads(cluster.exec("n1", argv, check=True, timeout=None).stdout)
        version = cluster.slurm_version
    rows = [Row("tasks", found["tasks"], "tasks", tasks, better="higher")]
    rows.append(Row("all tasks", found["seconds"], "s", MOST_S if tasks >= ALL_TASKS else None))
    for name, got in found["got"].items():
        has_bar = name == "device_under_mps" or (is_enforced and name != UNCOUNTED)
        number, above = len(got) * TASKS_OF.get(name, 1), sum(one > MOST_RATIO for one in got)
        rows.append(Row(f"{name}: probes above the cap, of {number} tasks", above, "probes", 0 if has_bar else None))
        rows.append(Row(f"{name}: the most of its cap", max(got), "x", MOST_RATIO if has_bar else None))
    if tasks < ALL_TASKS:
        return show("prove_escapes", version, rows)
    name = f"prove_escapes_{release}"
    holds = report(name, version, rows, driver=release, enforced=is_enforced)
    if ON_V2 and KEPT.is_dir():
        shutil.copy(RESULTS / f"{name}.json", KEPT)
    return holds


if __name__ == "__main__":
    number, driver = (*sys.argv[1:], *("1000", "620")[len(sys.argv) - 1 :])
    sys.exit(not main(int(number), int(driver)))

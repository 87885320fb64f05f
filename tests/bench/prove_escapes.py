"""A thousand tasks that try to get more memory than their cap: python tests/bench/prove_escapes.py [TASKS] [DRIVER].

Needs root; makes its own local cluster of one node, whose simulated driver is of that release (620 if not given). Each
round is `slurm-share prove` with the promises about memory; TASKS (1000 if not given) is how many tasks the rounds
start. From 615 on, with cgroup v2 (tests/kernel.sh), no task may get more than its cap and 2 %, except of managed
memory; below, the rows say what got around the cap of MPS, and how much it got.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))

from bench import Row, report
from clusters import ON_V2

from localcluster import Cluster

PROMISES = ("cap-under-mps", "memory-without-mps", "memory-unset", "memory-mangled", "memory-wrong-pipe",
            "memory-unseen-gpu", "memory-fork", "memory-second-context", "memory-async", "memory-vmm",
            "memory-managed")  # fmt: skip
UNCOUNTED = ("memory-managed",)
MOST_RATIO = 1.02
ENFORCED_SINCE = 615


def main(tasks: int, release: int) -> None:
    got: dict[str, list[float]] = defaultdict(list)
    with Cluster.up("prove-bench", nodes=1, driver=release, cgroup_v2=ON_V2) as cluster:
        while sum(map(len, got.values())) < tasks:
            argv = ["slurm-share", "prove", "--yes", "--json", "-", "--only", ",".join(PROMISES)]
            done = cluster.exec("n1", argv)
            for one in json.loads(done.stdout)["verdicts"]:
                measured = one["measured"]
                got[one["promise"]].append(measured["got_mib"] / measured["cap_mib"])
        version = cluster.slurm_version
    is_enforced = release >= ENFORCED_SINCE and ON_V2
    rows = [Row("tasks", sum(map(len, got.values())), "tasks", tasks, better="higher")]
    for name in PROMISES:
        has_bar = name == "cap-under-mps" or (is_enforced and name not in UNCOUNTED)
        rows.append(Row(f"{name}: the most of its cap", round(max(got[name]), 3), "x",
                        MOST_RATIO if has_bar else None, better="lower"))  # fmt: skip
    report("prove_escapes", version, rows, driver=release, enforced=is_enforced)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000, int(sys.argv[2]) if len(sys.argv) > 2 else 620)

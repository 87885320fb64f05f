"""What Prolog and Epilog cost a job: python tests/bench/hooks.py (root; makes a local cluster of its own).

On a node with 8 simulated GPUs, the hooks run as slurmd runs them, interpreter start included, one after the other.
The time they wait for MPS is told apart: they write it into their log, and it is mostly the daemon's own start (the
simulated one is a Python program and slower than NVIDIA's).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "packaging/demo"))

from bench import Row, median, report

from localcluster import Cluster

ROUNDS = 15
GPUS = 8

# Runs inside the node: pairs of (wall, waited for MPS) in milliseconds.
TIMER = r"""
import json, os, re, subprocess, sys, time
LOG, HOOK = "/var/log/slurm-share.log", "/opt/slurm-share/bin/slurm-share-"
def run(hook, job, share):
    env = {"SLURM_JOB_ID": str(job), "SLURM_JOB_UID": "2001", "SLURM_JOB_GID": "2001", "SLURMD_NODENAME": "n1",
           "SLURM_JOB_USER": "alice", "SLURM_JOB_PARTITION": "gpu"}
    if share:
        env |= {"SPANK_SHARE_GPU": "4", "CUDA_VISIBLE_DEVICES": share}
    open(LOG, "a").close()
    at = os.path.getsize(LOG)
    begin = time.perf_counter()
    code = subprocess.run([HOOK + hook], env=env, stderr=subprocess.DEVNULL).returncode
    wall = time.perf_counter() - begin
    with open(LOG) as log:
        log.seek(at)
        text = log.read()
    assert code == 0, text
    waited = max([float(s) for s in re.findall(r"(?:started|joined|quit) in ([0-9.]+) s", text)], default=0)
    return 1000 * wall, 1000 * waited
rounds, gpus = int(sys.argv[1]), int(sys.argv[2])
half = gpus // 2
low, high = ",".join(map(str, range(half))), ",".join(map(str, range(half, gpus)))
every = f"{low},{high}"
out = {"ordinary prolog": [], "ordinary epilog": [], "first prolog": [], "first epilog": [],
       "next prolog": [], "next epilog": []}
for _ in range(rounds):
    out["ordinary prolog"].append(run("prolog", 9, None))
    out["ordinary epilog"].append(run("epilog", 9, None))
    out["first prolog"].append(run("prolog", 1, every))
    out["first epilog"].append(run("epilog", 1, every))
    # a further job of the same user beside the first one, on the other half of the GPUs
    run("prolog", 2, low)
    out["next prolog"].append(run("prolog", 3, high))
    out["next epilog"].append(run("epilog", 3, high))
    run("epilog", 2, low)
print(json.dumps(out))
"""


def measure(cluster: Cluster) -> dict[str, list[tuple[float, float]]]:
    """Every kind of hook, ROUNDS times: (wall, of it waiting for MPS) in milliseconds."""
    argv = ["python3", "-c", TIMER, str(ROUNDS), str(GPUS)]
    found: dict[str, list[tuple[float, float]]] = json.loads(cluster.exec("n1", argv, check=True, timeout=600).stdout)
    return found


def both(times: dict[str, float], what: str) -> float:
    """Prolog and Epilog of one kind of job."""
    return times[f"{what} prolog"] + times[f"{what} epilog"]


def main() -> int:
    """Measure, print, write; 1 where a bar does not hold."""
    with Cluster.up("bench-hooks", nodes=1) as cluster:
        cluster.exec("n1", ["simgpu-init", str(GPUS), "--replace"], check=True)
        with_mps = measure(cluster)
        config = cluster.site / "config.toml"
        base = 'simulated_gpus = true\nmps_control = ""\n'
        config.write_text(f'{base}mode = "on"\n')
        without = measure(cluster)
        other = {}
        for name, line in (
            ("off", 'mode = "off"'),
            ("observe", 'mode = "observe"'),
            ("listed", 'mode = "on"\nexclusive_user_nodes = ["n1"]'),
        ):
            config.write_text(f"{base}{line}\n")
            other[name] = {what: median([wall for wall, _ in pairs]) for what, pairs in measure(cluster).items()}
        version = cluster.slurm_version
    own = {what: median([wall - waited for wall, waited in pairs]) for what, pairs in with_mps.items()}
    waited = {what: median([waited for _, waited in pairs]) for what, pairs in with_mps.items()}
    bare = {what: median([wall for wall, _ in pairs]) for what, pairs in without.items()}
    rows = [
        Row("first job of a user: Prolog + Epilog, own time", own["first prolog"] + own["first epilog"], "ms", 150),
        Row("  of it the Prolog", own["first prolog"], "ms"),
        Row("  beside it, the slowest of 8 MPS daemons to start", waited["first prolog"], "ms"),
        Row("  beside it, the slowest of 8 MPS daemons to end", waited["first epilog"], "ms"),
        Row("  the same share where the node has no MPS", bare["first prolog"] + bare["first epilog"], "ms"),
        Row("next job of that user: Prolog + Epilog, own time", own["next prolog"] + own["next epilog"], "ms", 60),
        Row("  of it the Prolog", own["next prolog"], "ms"),
        Row("  the same share where the node has no MPS", bare["next prolog"] + bare["next epilog"], "ms"),
        Row("ordinary job: Prolog", bare["ordinary prolog"], "ms", 30),
        Row("ordinary job: Epilog", bare["ordinary epilog"], "ms", 30),
        Row("ordinary job on a node kept to one user: Prolog + Epilog", both(other["listed"], "ordinary"), "ms"),
        Row("shared job where the mode is observe: Prolog + Epilog", both(other["observe"], "first"), "ms"),
        Row("shared job where the mode is off: Prolog + Epilog", both(other["off"], "first"), "ms"),
        Row("ordinary job where the mode is off: Prolog + Epilog", both(other["off"], "ordinary"), "ms"),
    ]
    return 0 if report("hooks", version, rows) else 1


if __name__ == "__main__":
    sys.exit(main())

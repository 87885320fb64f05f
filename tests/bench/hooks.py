"""What Prolog and Epilog cost a job: python tests/bench/hooks.py (root; makes a local cluster of its own).

On a node with 8 simulated GPUs, the hooks run as slurmd runs them, interpreter start included, one after the other.
The time they wait for MPS is told apart: they write it into their log, and it is mostly the daemon's own start (the
simulated one is a Python program and slower than NVIDIA's).

Beside the time stands the hooks' own CPU time, user and system, of all their threads and of none of the programs that
they start: the kernel keeps it until a process is waited for. On a machine with other work it is the figure to trust.

python tests/bench/hooks.py --cpu [ROUNDS]: print the CPU times alone, of a node with MPS; a minute.
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

# Runs inside the node: (wall, waited for MPS, CPU) of each hook in milliseconds.
TIMER = r"""
import json, os, re, subprocess, sys, time
CPUCLOCK_SCHED = 2  # of a whole process, in nanoseconds: clock_getcpuclockid(3)
LOG, HOOK = "/var/log/slurm-share.log", "/opt/slurm-share/bin/slurm-share-"
def run(hook, job, share):
    env = {"SLURM_JOB_ID": str(job), "SLURM_JOB_UID": "2001", "SLURM_JOB_GID": "2001", "SLURMD_NODENAME": "n1",
           "SLURM_JOB_USER": "alice", "SLURM_JOB_PARTITION": "gpu"}
    if share:
        env |= {"SPANK_SHARE_GPU": "4", "CUDA_VISIBLE_DEVICES": share}
    open(LOG, "a").close()
    at = os.path.getsize(LOG)
    begin = time.perf_counter()
    process = subprocess.Popen([HOOK + hook], env=env, stderr=subprocess.DEVNULL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    wall = time.perf_counter() - begin
    cpu = time.clock_gettime((~process.pid << 3) | CPUCLOCK_SCHED)
    code = process.wait()
    with open(LOG) as log:
        log.seek(at)
        text = log.read()
    assert code == 0, text
    waited = max([float(s) for s in re.findall(r"(?:started|joined|quit) in ([0-9.]+) s", text)], default=0)
    return 1000 * wall, 1000 * waited, 1000 * cpu
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


def measure(cluster: Cluster, rounds: int = ROUNDS) -> dict[str, list[tuple[float, float, float]]]:
    """Every kind of hook, `rounds` times: (wall, of it waiting for MPS, CPU) in milliseconds."""
    argv = ["python3", "-c", TIMER, str(rounds), str(GPUS)]
    found: dict[str, list[tuple[float, float, float]]] = json.loads(
        cluster.exec("n1", argv, check=True, timeout=600).stdout
    )
    return found


def both(times: dict[str, float], what: str) -> float:
    """Prolog and Epilog of one kind of job."""
    return times[f"{what} prolog"] + times[f"{what} epilog"]


def cpu_rows(
    with_mps: dict[str, list[tuple[float, float, float]]], without: dict[str, list[tuple[float, float, float]]]
) -> list[Row]:
    """The CPU times of Prolog and Epilog together."""
    spent = {what: median([one[2] for one in found]) for what, found in with_mps.items()}
    bare = {what: median([one[2] for one in found]) for what, found in without.items()}
    return [
        Row("first job of a user, no MPS on the node: CPU time of both hooks", both(bare, "first"), "ms", 100),
        Row("  the same share with 8 MPS daemons to start and end", both(spent, "first"), "ms"),
        Row("next job of that user, no MPS on the node: CPU time of both hooks", both(bare, "next"), "ms", 60),
        Row("  the same share with 4 MPS daemons to start and end", both(spent, "next"), "ms"),
        Row("ordinary job: CPU time of both hooks", both(bare, "ordinary"), "ms", 25),
    ]


def print_cpu(rounds: int = ROUNDS) -> int:
    """Print the CPU time of every hook on a node with MPS: the least, a quarter, the median."""
    with Cluster.up("bench-hooks-cpu", nodes=1) as cluster:
        cluster.exec("n1", ["simgpu-init", str(GPUS), "--replace"], check=True)
        for what, found in measure(cluster, rounds).items():
            spent = sorted(one[2] for one in found)
            print(f"{what:16} {spent[0]:6.1f} {spent[len(spent) // 4]:6.1f} {median(spent):6.1f} ms")
    return 0


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
            other[name] = {what: median([one[0] for one in found]) for what, found in measure(cluster).items()}
        version = cluster.slurm_version
    own = {what: median([wall - waited for wall, waited, _ in found]) for what, found in with_mps.items()}
    waited = {what: median([one[1] for one in found]) for what, found in with_mps.items()}
    bare = {what: median([one[0] for one in found]) for what, found in without.items()}
    rows = [
        Row("first job of a user: Prolog + Epilog, own time", own["first prolog"] + own["first epilog"], "ms", 100),
        Row("  of it the Prolog", own["first prolog"], "ms"),
        Row("  beside it, the slowest of 8 MPS daemons to start", waited["first prolog"], "ms"),
        Row("  beside it, the slowest of 8 MPS daemons to end", waited["first epilog"], "ms"),
        Row("  the same share where the node has no MPS", bare["first prolog"] + bare["first epilog"], "ms"),
        Row("next job of that user: Prolog + Epilog, own time", own["next prolog"] + own["next epilog"], "ms", 60),
        Row("  of it the Prolog", own["next prolog"], "ms"),
        Row("  the same share where the node has no MPS", bare["next prolog"] + bare["next epilog"], "ms"),
        Row("ordinary job: Prolog + Epilog", both(bare, "ordinary"), "ms", 25),
        Row("  of it the Prolog", bare["ordinary prolog"], "ms"),
        *cpu_rows(with_mps, without),
        Row("ordinary job on a node kept to one user: Prolog + Epilog", both(other["listed"], "ordinary"), "ms"),
        Row("shared job where the mode is observe: Prolog + Epilog", both(other["observe"], "first"), "ms"),
        Row("shared job where the mode is off: Prolog + Epilog", both(other["off"], "first"), "ms"),
        Row("ordinary job where the mode is off: Prolog + Epilog", both(other["off"], "ordinary"), "ms"),
    ]
    return 0 if report("hooks", version, rows) else 1


if __name__ == "__main__":
    sys.exit(print_cpu(*map(int, sys.argv[2:])) if sys.argv[1:2] == ["--cpu"] else main())

"""Measure what Prolog and Epilog cost a job: python tests/bench/hooks.py (root; makes a local cluster of its own).

On a node with 8 simulated GPUs, the hooks run as slurmd runs them, one after the other. The time they wait for MPS is
told apart: they write it into their log, and it is mostly the daemon's own start (the simulated one is a Python program
and slower than NVIDIA's).

Beside the time stands the hooks' own CPU time, user and system: that of the program which slurmd starts, and all that
the helper and its processes take meanwhile. The kernel keeps the first until the program is waited for. The second is
the growth of utime, stime, cutime and cstime in the helper's /proc/PID/stat over all rounds of one kind of job: exact
sums, shown in hundredths of a second. On a machine with other work the CPU time is the figure to trust.

Every figure is taken with the helper, and without (`hook_helper = false`, as on a node where none runs yet); what the
start of a helper takes, once in a while, has a row of its own.

python tests/bench/hooks.py --cpu [ROUNDS]: print the CPU times alone, of a node without MPS; a minute.
"""

from __future__ import annotations

import json
import sys
from statistics import median
from typing import Any

from bench import Row, report

from localcluster import Cluster

ROUNDS = 15
GPUS = 8
BASE = 'simulated_gpus = true\nmps_control = ""\n'
"""The configuration of a node without MPS."""

# Runs inside the node: of each kind of job (wall, waited for MPS, CPU) of each hook, and the helper's CPU for both
# hooks, in milliseconds.
TIMER = r"""
import json, os, re, subprocess, sys, time
CPUCLOCK_SCHED = 2  # of a whole process, in nanoseconds: clock_getcpuclockid(3)
LOG, HOOK, HELPER = "/var/log/slurm-share.log", "/opt/slurm-share/bin/slurm-share-", "/run/slurm-share.hooks"
TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
def run(hook, job, share):
    env = {"SLURM_JOB_ID": str(job), "SLURM_JOB_UID": "2001", "SLURM_JOB_GID": "2001", "SLURMD_NODENAME": "n1",
           "SLURM_JOB_USER": "alice", "SLURM_JOB_PARTITION": "gpu"}
    if share:
        env |= {"SPANK_SHARE_GPU": "4", "SLURM_JOB_EXTRA": "slurm-share=on", "CUDA_VISIBLE_DEVICES": share}
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
def helper():
    return subprocess.run(["pgrep", "-x", "slurm-share-hoo"], capture_output=True, text=True).stdout.split()
def helper_ms():
    spent = 0
    for pid in helper():
        fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
        spent += sum(map(int, fields[11:15])) * TICK_MS
    return spent
def both(job, share):
    return run("prolog", job, share), run("epilog", job, share)
rounds, gpus, with_helper = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "True"
half = gpus // 2
low, high = ",".join(map(str, range(half))), ",".join(map(str, range(half, gpus)))
every = f"{low},{high}"
both(1, every)  # ends the helper that knew another configuration, and starts one where there is to be one
end = time.monotonic() + 20
while os.path.exists(HELPER + "/socket") is not with_helper or os.path.exists(HELPER + "/started"):
    assert time.monotonic() < end, "the helper"
    time.sleep(0.05)
out = {"start": helper_ms()}
def measure(what, job, share):
    both(job, share)
    pids, before = helper(), helper_ms()
    pairs = [both(job, share) for _ in range(rounds)]
    # the last process of the helper's is counted when it has been waited for
    time.sleep(0.1)
    assert helper() == pids and bool(pids) is with_helper, "the helper did not stay"
    out[what + " prolog"], out[what + " epilog"] = zip(*pairs)
    out[what + " helper"] = (helper_ms() - before) / rounds
measure("ordinary", 9, None)
measure("first", 1, every)
# a further job of the same user beside another one, on the other half of the GPUs
run("prolog", 2, low)
measure("next", 3, high)
run("epilog", 2, low)
print(json.dumps(out))
"""

Found = dict[str, Any]
"""For each hook of each kind of job the rounds' (wall, of it waiting for MPS, CPU); the time of the helper for both
hooks of a kind, and for its own start. All in milliseconds."""


def measure(cluster: Cluster, rounds: int = ROUNDS, *, with_helper: bool = True) -> Found:
    """Every kind of job, `rounds` times."""
    argv = ["python3", "-c", TIMER, str(rounds), str(GPUS), str(with_helper)]
    found: Found = json.loads(cluster.exec("n1", argv, check=True, timeout=600).stdout)
    return found


def walls(found: Found) -> dict[str, float]:
    """Every hook's median time."""
    return {what: median([one[0] for one in rounds]) for what, rounds in found.items() if what.endswith("log")}


def cpu_of(found: Found, what: str) -> float:
    """The CPU time of Prolog and Epilog of one kind of job, the helper's with it."""
    own = sum(median([one[2] for one in found[f"{what} {hook}"]]) for hook in ("prolog", "epilog"))
    return own + float(found[f"{what} helper"])


def both(times: dict[str, float], what: str) -> float:
    """Prolog and Epilog of one kind of job."""
    return times[f"{what} prolog"] + times[f"{what} epilog"]


def cpu_rows(with_mps: Found, bare: Found, alone: Found) -> list[Row]:
    return [
        Row("first job of a user, no MPS on the node: CPU time of both hooks", cpu_of(bare, "first"), "ms", 100),
        Row("  without the helper", cpu_of(alone, "first"), "ms"),
        Row(
            "  the same share with 8 MPS daemons to start and end, these programs included",
            cpu_of(with_mps, "first"),
            "ms",
        ),
        Row("next job of that user, no MPS on the node: CPU time of both hooks", cpu_of(bare, "next"), "ms", 60),
        Row("  without the helper", cpu_of(alone, "next"), "ms"),
        Row(
            "  the same share with 4 MPS daemons to start and end, these programs included",
            cpu_of(with_mps, "next"),
            "ms",
        ),
        Row("ordinary job: CPU time of both hooks", cpu_of(bare, "ordinary"), "ms", 25),
        Row("start of a helper, once before a first job: CPU time", bare["start"], "ms"),
    ]


def print_cpu(rounds: int = ROUNDS) -> int:
    """Print the CPU times of a node without MPS, with the helper and without."""
    with Cluster.up("bench-hooks-cpu", nodes=1) as cluster:
        cluster.exec("n1", ["simgpu-init", str(GPUS), "--replace"], check=True)
        for word in (True, False):
            cluster.write_config(f'{BASE}mode = "on"\nhook_helper = {str(word).lower()}\n')
            found = measure(cluster, rounds, with_helper=word)
            for what in ("ordinary", "first", "next"):
                said = f"{what:10} {'with' if word else 'without'} the helper: {cpu_of(found, what):6.1f} ms, of it"
                own = {hook: sorted(one[2] for one in found[f"{what} {hook}"]) for hook in ("prolog", "epilog")}
                parts = [f"{hook} {of[0]:.1f} to {of[-1]:.1f}, median {median(of):.1f}" for hook, of in own.items()]
                print(said, "; ".join([*parts, f"helper {found[f'{what} helper']:.1f}"]))
            print(f"start of the helper: {found['start']:.1f} ms")
    return 0


def main() -> int:
    with Cluster.up("bench-hooks", nodes=1) as cluster:
        cluster.exec("n1", ["simgpu-init", str(GPUS), "--replace"], check=True)
        with_mps = measure(cluster)
        cluster.write_config(f'{BASE}mode = "on"\n')
        without = measure(cluster)
        cluster.write_config(f'{BASE}mode = "on"\nhook_helper = false\n')
        alone = measure(cluster, with_helper=False)
        other = {}
        for name, line in (
            ("off", 'mode = "off"'),
            ("observe", 'mode = "observe"'),
            ("listed", 'mode = "on"\nexclusive_user_nodes = ["n1"]'),
        ):
            cluster.write_config(f"{BASE}{line}\n")
            other[name] = walls(measure(cluster, with_helper=name != "off"))
        version = cluster.slurm_version
    hooks = {what: found for what, found in with_mps.items() if what.endswith("log")}
    own = {what: median([wall - waited for wall, waited, _ in found]) for what, found in hooks.items()}
    waited = {what: median([one[1] for one in found]) for what, found in hooks.items()}
    bare = walls(without)
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
        *cpu_rows(with_mps, without, alone),
        Row("ordinary job on a node kept to one user: Prolog + Epilog", both(other["listed"], "ordinary"), "ms"),
        Row("shared job where the mode is observe: Prolog + Epilog", both(other["observe"], "first"), "ms"),
        Row("shared job where the mode is off: Prolog + Epilog", both(other["off"], "first"), "ms"),
        Row("ordinary job where the mode is off: Prolog + Epilog", both(other["off"], "ordinary"), "ms"),
    ]
    return 0 if report("hooks", version, rows) else 1


if __name__ == "__main__":
    sys.exit(print_cpu(*map(int, sys.argv[2:])) if sys.argv[1:2] == ["--cpu"] else main())

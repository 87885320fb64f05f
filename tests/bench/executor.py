"""Measure what a call of an executor costs: python tests/bench/executor.py [CALLS] (root; four minutes).

slurm_share's Executor with `local=True` beside ProcessPoolExecutor, executorlib and submitit's local executor, one
after the other, with two workers each; then on a cluster, with two workers on each of two nodes. executorlib and
submitit come from PyPI into an environment of their own in the cache. Tools that start a process for each call run
fewer calls.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from bench import Row, report

from localcluster import Cluster, locks, paths

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))
import users_python

PROGRAM = Path(__file__).parent / "executor_calls.py"
CALLS = 10_000
MANY = 100_000
FEW = 16
"""Calls of tools that start a process for each."""
PEERS = ("executorlib", "submitit")
BARS = {"rate": (1000, "higher"), "client_s": (1.0, "lower")}


def peers_python() -> str:
    """Return a Python with the other tools, made once."""
    home = paths.cache() / f"executor-peers-{platform.python_version()}"
    with locks.waiting(paths.cache() / f"{home.name}.lock"):
        if not (home / "complete").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
            subprocess.run([home / "bin/pip", "install", "-q", *PEERS], check=True, timeout=300)
            (home / "complete").touch()
    return str(home / "bin/python")


def figures(python: str, tool: str, calls: int, many: int) -> dict[str, float]:
    """Return what executor_calls.py measured on this machine."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # with llsub
    argv = [python, str(PROGRAM), tool, str(calls), str(many)]
    done = subprocess.run(argv, env={**os.environ, "PATH": path}, stdout=subprocess.PIPE, check=True, timeout=1800)
    return json.loads(done.stdout)


def on_a_cluster(calls: int, many: int) -> tuple[str, dict[str, float]]:
    """Return the release of Slurm, and the figures of two nodes."""
    with Cluster.up("executor-bench", nodes=2) as cluster:
        users_python.give(cluster, "alice", "cloudpickle")
        (cluster.home / "alice" / PROGRAM.name).write_text(PROGRAM.read_text())
        argv = ["python3", PROGRAM.name, "slurm_share on two nodes", str(calls), str(many)]
        done = cluster.as_user("alice", argv, check=True, timeout=1800)
        return cluster.slurm_version, json.loads(done.stdout)


def rows(tool: str, found: dict[str, float], bars: bool) -> list[Row]:
    """Return the lines of one tool."""
    shown = {
        "first_s": ("from its creation to its first result", "s", 1),
        "one_s": ("a call alone", "ms", 1000),
        "rate": ("calls submitted at once", "calls/s", 1),
        "client_s": ("CPU time of the client for a call", "ms", 1000),
        "submit_s": ("time in submit()", "ms", 1000),
        "many_rate": (f"{MANY:,} calls", "calls/s", 1),
        "map_rate": (f"{MANY:,} calls, map(chunksize=100)", "calls/s", 1),
    }
    made = []
    for name, (what, unit, factor) in shown.items():
        if name in found:
            bar, better = BARS[name] if bars and name in BARS else (None, "lower")
            made.append(Row(f"{tool}: {what}", found[name] * factor, unit, bar, better))
    return made


def main(calls: int) -> int:
    load = round(os.getloadavg()[0], 1)
    made = rows("slurm_share", figures(sys.executable, "slurm_share", calls, MANY), bars=True)
    made += rows("ProcessPoolExecutor", figures(sys.executable, "ProcessPoolExecutor", calls, MANY), bars=False)
    peers: str | None = None
    try:
        peers = peers_python()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"NOT MEASURED: {' and '.join(PEERS)} could not be had ({error})")
    if peers is not None:
        made += rows("executorlib", figures(peers, "executorlib", calls, 0), bars=False)
        for tool in ("executorlib, a process for each call", "submitit"):
            made += rows(tool, figures(peers, tool, FEW, 0), bars=False)
    slurm, found = on_a_cluster(calls, MANY)
    made += rows("slurm_share on two nodes", found, bars=False)
    return not report("executor", slurm, made, load_average=load)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else CALLS))

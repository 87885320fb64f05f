"""Other programs that run many short tasks, in the launcher's place: xargs, GNU parallel and HyperQueue.

GNU parallel comes from its Debian package, HyperQueue from PyPI; both are unpacked below build/peers and nothing is
installed. The wheel of HyperQueue has no `hq`, but its Python interface starts the same server and worker. A peer that
cannot be had is left out, and that is said.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

BUILD = Path(__file__).parents[2] / "build/peers"

WORKER = r"""#!/bin/bash
# peer.sh WHICH TASKS AT_ONCE: on each node of the job.
log=peer.$SLURMD_NODENAME
mkdir $log
begin=$(date +%s.%N)
case $1 in
    "xargs, no log") seq $2 | xargs -P$3 -n1 ./true ;;
    xargs) seq $2 | xargs -P$3 -I@ sh -c "./true >$log/@ 2>&1" ;;
    parallel)
        export PATH=$PWD/peers/parallel/usr/bin:$PATH
        seq $2 | parallel --will-cite -j$3 --joblog $log/joblog --results $log/results ./true
        ;;
    hyperqueue) PYTHONPATH=peers/hyperqueue /opt/slurm-share/bin/python peer.py $log $2 $3 >/dev/null ;;
esac || exit
end=$(date +%s.%N)
case $1 in
    "xargs, no log") ended=$2 ;;
    parallel) ended=$(awk '$7 == 0 && $8 == 0' $log/joblog | wc -l) ;;
    *) ended=$(ls $log | grep -c '^[0-9]*$') ;;
esac
[ "$ended" = "$2" ] || { echo "$ended of $2"; exit 1; }
echo "[$begin, $end]" >bare.$SLURMD_NODENAME.json
"""
HYPERQUEUE = r"""
import os, sys
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig
log, tasks, at_once = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with LocalCluster(os.path.abspath(log + "/server"), WorkerConfig(cores=at_once)) as cluster:
    client, job = cluster.client(), Job()
    for number in range(tasks):
        job.program(["./true"], stdout=f"{log}/{number}", stderr=None)
    client.wait_for_jobs([client.submit(job)])
"""
NAMES = {
    "xargs, no log": "xargs, no log",
    "xargs": "xargs, a log for each task",
    "parallel": "GNU parallel, --joblog --results",
    "hyperqueue": "HyperQueue, a log for each task",
}


def _parallel(folder: Path) -> None:
    # apt's own user may not write there, and says so; root does it then
    subprocess.run(["apt-get", "-q", "download", "parallel"], cwd=folder.parent, check=True, capture_output=True)
    package = next(folder.parent.glob("parallel_*.deb"))
    subprocess.run(["dpkg", "-x", package, folder], check=True, capture_output=True)


def _hyperqueue(folder: Path) -> None:
    argv = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), "hyperqueue"]
    subprocess.run(argv, check=True, capture_output=True, timeout=120)


def bring(home: Path) -> list[str]:
    """Put what there is of the peers into a folder that the nodes see, and return which there are."""
    found = ["xargs, no log", "xargs"]
    ways: dict[str, Callable[[Path], None]] = {"parallel": _parallel, "hyperqueue": _hyperqueue}
    for name, get in ways.items():
        folder = BUILD / name
        try:
            if not folder.exists():
                BUILD.mkdir(parents=True, exist_ok=True)
                get(folder)
        except (OSError, StopIteration, subprocess.SubprocessError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            print(f"NOT MEASURED: {name} could not be had ({error})")
            continue
        shutil.copytree(folder, home / "peers" / name)
        found.append(name)
    (home / "peer.sh").write_text(WORKER)
    (home / "peer.py").write_text(HYPERQUEUE)
    return found

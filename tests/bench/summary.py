"""Measure what reading the results of a large run costs: python tests/bench/summary.py [TASKS]

Writes the results of 1,000,000 tasks on four nodes, one in a thousand failed, and then reads them as the end of a job
does (summary, summary.json included), as a launcher does at its start, and as `llsub --watch` does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import Row, report

from slurm_share.triples import run_folder
from slurm_share.triples.records import Ended, Run, Triple

NODES, PER_NODE, CHUNK = 4, 48, 50
READ_DONE = """
import sys
from pathlib import Path
from slurm_share.triples import run_folder
from slurm_share.triples.result_files import read_done
folder = Path(sys.argv[1])
print(len(read_done(folder, run_folder.read_run(folder))))
"""


def make(folder: Path, tasks: int) -> None:
    """Write a run's folder as dynamic distribution leaves it: a chunk of tasks here, the next one there."""
    run = Run(
        name="task.sh", command=("/home/alice/task.sh",), cwd="/home/alice", triple=Triple(NODES, PER_NODE, 1),
        processes=NODES * PER_NODE, tasks=tasks, distribution="dynamic", logs="rank",
    )  # fmt: skip
    (folder / run_folder.RUN).write_bytes(run_folder.render_run(run))
    (folder / run_folder.JOBS).write_text("4711 1763820000\n")
    files = []
    for node in range(NODES):
        place = run_folder.node_folder(folder, run, PER_NODE * node, PER_NODE * (node + 1) - 1, f"n{node + 1}")
        place.mkdir()
        files.append(open(place / run_folder.RESULTS, "wb"))  # noqa: SIM115
    for task in range(tasks):
        node, failed = task // CHUNK % NODES, task % 1000 == 999
        ended = Ended(
            task=task, rank=PER_NODE * node + task % PER_NODE, attempt=1, outcome="failed" if failed else "done",
            node=f"n{node + 1}", job="4711", started=1763820000 + task * 0.01, seconds=0.312, code=int(failed),
            slot=task % PER_NODE, gpu=task % 2, gpu_uuid=f"GPU-5131c0de-0000-4000-8000-00000000000{task % 2}",
            cpus=str(task % PER_NODE), peak_gpu_mib=2300, cpu_seconds=0.2, why="exit code 1" if failed else "",
        )  # fmt: skip
        files[node].write(run_folder.render_ended(ended))
    for file in files:
        file.close()


def measure(argv: list[str]) -> tuple[float, float]:
    """Run a program; return its seconds and the largest it was, in MB."""
    began = time.monotonic()
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0  # waited for here
    return time.monotonic() - began, usage.ru_maxrss * 1024 / 1e6


def main(tasks: int) -> int:
    folder = Path(tempfile.mkdtemp(prefix="LLSUB."))
    try:
        make(folder, tasks)
        os.sync()
        python = [sys.executable, "-I"]
        summary = measure([*python, "-m", "slurm_share.cli.main", "launch", "--summary", str(folder)])
        start = measure([*python, "-c", READ_DONE, str(folder)])
        size = sum(file.stat().st_size for file in folder.glob(f"*/{run_folder.RESULTS}")) / 1e6
    finally:
        shutil.rmtree(folder)
    return not report(
        "summary",
        None,
        [
            Row(f"results of {tasks:,} tasks on {NODES} nodes", size, "MB"),
            Row("  summary and summary.json: time", summary[0], "s", 5),
            Row("  summary and summary.json: memory", summary[1], "MB", 200),
            Row("  what is done, at a launcher's start and in llsub --watch: time", start[0], "s", 5),
            Row("  what is done, at a launcher's start and in llsub --watch: memory", start[1], "MB", 200),
        ],
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))

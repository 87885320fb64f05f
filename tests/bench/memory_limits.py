"""The time that the driver's memory limit adds to a task's start: the request to the keeper, and the
program before the task of a launcher.

The cgroups are real ones of v2, the driver is simulated (615), so its two calls cost what their files cost. The time is
that of the process that starts. As root: python tests/bench/memory_limits.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "contract"), str(HERE.parents[1] / "packaging/demo")]

from bench import Row, report  # noqa: E402
from simulated_host import Host, build  # noqa: E402
from test_limits_keeper import ALICE, Job  # noqa: E402
from test_memory_limits import removed  # noqa: E402

from localcluster import namespaces  # noqa: E402
from slurm_share.core import names  # noqa: E402

TASKS, STARTS = 300, 200
BAR_MS = 5.0


def start_ms(job: Job, cgroup: Path, argv: list[str], more: dict[str, str]) -> float:
    """Return the median time of starts of a program by a process of the user in a cgroup, as a launcher starts it."""
    times = []
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        (cgroup / "cgroup.procs").write_text(str(os.getpid()))
        os.setgid(ALICE)
        os.setuid(ALICE)
        environment = job.host.environ(more)
        for _ in range(STARTS):
            begin = time.perf_counter()
            assert os.waitpid(os.posix_spawn(argv[0], argv, environment), 0)[1] == 0
            times.append(time.perf_counter() - begin)
        os.write(write, repr(statistics.median(times)).encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        said = file.read()
    os.waitpid(pid, 0)
    return 1000 * float(said)


def task_ms(job: Job) -> list[float]:
    """Return the time of each task's request for its own limits."""
    found = []
    for number in range(TASKS):
        folder = job.task(number)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            (folder / "cgroup.procs").write_text(str(os.getpid()))
            os.setgid(ALICE)
            os.setuid(ALICE)
            from slurm_share.share import memory_limits

            begin = time.perf_counter()
            why = memory_limits.ask(job.socket, "task 0")
            os.write(write, f"{time.perf_counter() - begin!r} {why}".encode())
            os._exit(0)
        os.close(write)
        with open(read, "rb") as file:
            took, _, why = file.read().decode().partition(" ")
        os.waitpid(pid, 0)
        assert not why, why
        while not removed(folder):  # as slurmstepd does
            time.sleep(0.001)
        found.append(1000 * float(took))
    return found


def main() -> int:
    """Measure, print and write the results."""
    mounted = namespaces.v2_tree()
    assert mounted is not None, "needs a tree of cgroup v2"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)
        host = Host(folder, build(folder / "simgpu"))
        assert host.init("2", "--driver", "615", "--memory-limits", "misc").returncode == 0
        source = HERE.parents[1] / "prolog"
        subprocess.run(["make", "-s", "-C", source, f"BUILD={folder}", folder / "slurm-share-limits"], check=True)
        tree = mounted / f"bench-{os.getpid()}"
        tree.mkdir()
        job = Job(host, tree, folder / "slurm-share-limits", None)
        begin = time.perf_counter()
        assert job.keep() == 0
        keeper_ms = 1000 * (time.perf_counter() - begin)
        try:
            tasks = task_ms(job)
            leaf = job.task(TASKS)
            group = {names.ENV_LIMITS: f"{job.socket} w0 {host.gpus()[0]['uuid']}=0:8192"}
            bare = start_ms(job, leaf, ["/bin/true"], {})
            limited = start_ms(job, leaf, [str(job.program), "run", "/bin/true"], group)
        finally:
            job.end()
            for one in sorted((Path(name) for name, _, _ in os.walk(tree)), reverse=True):
                while not removed(one):
                    time.sleep(0.01)
    rows = [
        Row("a task of srun: its limits on 2 GPUs, median", statistics.median(tasks), "ms", BAR_MS),
        Row("  the slowest of a hundred", sorted(tasks)[int(0.99 * len(tasks))], "ms"),
        Row("a task of a launcher: entering its slot's cgroup, median", limited - bare, "ms", BAR_MS),
        Row("  its start without a limit", bare, "ms"),
        Row("once a job: the keeper's start, in slurmstepd", keeper_ms, "ms"),
    ]
    return 0 if report("memory_limits", None, rows) else 1


if __name__ == "__main__":
    sys.exit(main())

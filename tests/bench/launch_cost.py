"""The cost of one short task: CPU time and system calls of the bare loop and of the launcher, with all their processes.

A rate depends on what else the machine does; CPU time does so less, and counts of system calls hardly. Each way runs
few and many tasks, and the difference is that of the further tasks, without the start of the launcher and its end. In
each round all ways take turns. System calls are counted once, by strace, which is brought to the node; it makes each
call many times slower, so those of the sampler, once a second, weigh more than they do without it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench import Row

if TYPE_CHECKING:
    from localcluster import Cluster

PYTHON = "/opt/slurm-share/bin/python"
FEW, MANY = 200, 1_700
AT_ONCE = 8
LLSUB = ["llsub", "./true", f"[1,{AT_ONCE},1]", "--local", "--logs=rank", "-g", "1", "--ntasks", "TASKS"]
WAYS = {
    "bare loop": [PYTHON, "-I", "loop.py", "PWD/true", "TASKS", str(AT_ONCE)],
    "triples, static": [*LLSUB, "--distribution=block"],
    "triples, dynamic": [*LLSUB, "--distribution=dynamic"],
    "packed": [*LLSUB, "--distribution=dynamic", "--pack"],
}
SHOWN = ("openat", "write", "fstat", "newfstatat", "fsync", "flock", "rename", "futex", "wait4", "waitid")
"""System calls with a row of their own; the file of results has all."""

ON_THE_NODE = r"""
import json, os, shutil
from pathlib import Path
asked = json.loads(Path("cost.json").read_text())

def run(way, tasks, before=()):
    for folder in Path().glob("LLSUB.*"):
        shutil.rmtree(folder)
    argv = [*before, *(one.replace("PWD", os.getcwd()).replace("TASKS", str(tasks)) for one in asked["ways"][way])]
    out = (os.POSIX_SPAWN_OPEN, 1, "cost.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    pid = os.posix_spawnp(argv[0], argv, os.environ, file_actions=[out, (os.POSIX_SPAWN_DUP2, 1, 2)])
    status, usage = os.wait4(pid, 0)[1:]
    if status:
        raise SystemExit(f"{argv} ended with {status}: {Path('cost.out').read_text()}")
    return usage.ru_utime + usage.ru_stime

few, many = asked["few"], asked["many"]
cpu = {way: [] for way in asked["ways"]}
for turn in range(asked["rounds"]):
    for way in asked["ways"] if turn % 2 == 0 else reversed(asked["ways"]):
        cpu[way].append((run(way, many) - run(way, few)) / (many - few))
counts = {}
for way in asked["ways"] if asked["strace"] else ():
    for tasks in (few, many):
        run(way, tasks, [*asked["strace"], "-f", "-c", "-o", f"{way}.{tasks}"])
    counts[way] = [Path(f"{way}.{tasks}").read_text() for tasks in (few, many)]
Path("cost.part").write_text(json.dumps({"cpu": cpu, "counts": counts}))
os.rename("cost.part", "cost.done")
"""


def bring_strace(folder: Path) -> list[str]:
    """Copy this machine's strace and its libraries into a folder that the nodes see; return how to start it there."""
    program = shutil.which("strace")
    if program is None:
        print("  no strace here: system calls are not counted")
        return []
    there = folder / "strace.parts"
    there.mkdir()
    found = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    for file in (program, *re.findall(r"=> (/\S+)", found)):
        shutil.copy(file, there)
    loader = re.search(r"^\s*(/\S*ld-linux\S*)", found, re.MULTILINE)
    assert loader is not None, found
    shutil.copy(loader[1], there)
    home = Path("/home/alice") / folder.name / there.name
    return [str(home / Path(loader[1]).name), "--library-path", str(home), str(home / "strace")]


def measure(cluster: Cluster, folder: Path, rounds: int) -> tuple[list[Row], dict[str, dict[str, float]]]:
    """Return the rows of all ways, and the system calls per task of each, by name."""
    asked = {"ways": WAYS, "rounds": rounds, "few": FEW, "many": MANY, "strace": bring_strace(folder)}
    (folder / "cost.json").write_text(json.dumps(asked))
    (folder / "cost.py").write_text(ON_THE_NODE)
    script = f"cd bench && {PYTHON} -I cost.py"
    command = f"sbatch -Q --wait -N1 -n{AT_ONCE} --gres=gpu:1 -o cost.log --wrap '{script}'; cat cost.log >&2"
    cluster.as_user("alice", command, timeout=3600)
    done = folder / "cost.done"
    if not done.exists():
        raise RuntimeError((folder.parent / "cost.log").read_text())
    found = json.loads(done.read_text())
    calls = {way: per_task(*texts) for way, texts in found["counts"].items()}
    return [row for way in WAYS for row in rows(way, found["cpu"], calls.get(way, {}))], calls


def rows(way: str, cpu: Mapping[str, list[float]], calls: Mapping[str, float]) -> list[Row]:
    """Return the rows of one way."""
    ratios = [one / bare for one, bare in zip(cpu[way], cpu["bare loop"], strict=True)]
    return [
        Row(f"{way}: CPU time of a task", 1000 * median(cpu[way]), "ms"),
        Row("  beside the bare loop's of the same round", median(ratios), "x"),
        *([Row("  system calls of a task", calls["total"], "calls")] if calls else []),
        *(Row(f"    {name}", calls[name], "calls") for name in SHOWN if calls.get(name, 0.0) >= 0.01),
    ]


def per_task(few: str, many: str) -> dict[str, float]:
    """Return the system calls of each further task, by name, from two tables of `strace -c`."""
    before, after = counted(few), counted(many)
    found = {name: (number - before.get(name, 0)) / (MANY - FEW) for name, number in after.items()}
    return {name: round(number, 3) for name, number in sorted(found.items()) if number >= 0.005}


def counted(table: str) -> dict[str, int]:
    """Return the number of calls by name: % time, seconds, usecs/call, calls, errors if any, name."""
    lines = [line.split() for line in table.splitlines()]
    return {words[-1]: int(words[3]) for words in lines if len(words) >= 5 and words[0][0].isdigit()}

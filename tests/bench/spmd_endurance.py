"""Kill, stop and burden ranks on this machine, and hold what the others see to a bar.

python tests/bench/spmd_endurance.py [--kills 200] [--only kills,sends,waits] [--seed N]

Each of the kills is a run of 4 ranks in which one is killed from outside at a random moment: while it sends and
receives, in a collective call, in a redistribution, or while it starts. The others write down when they are told and
who it was. After each run none of its processes may be there, and after all of them no descriptor, socket, or file in
/dev/shm and /tmp that was not there before.

Then 8 ranks send each other messages before any of them receives, three ranks wait while the fourth computes for a
minute, and a rank is stopped for half a minute. The results go to results/spmd_endurance.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import bench

from slurm_share.spmd import local, names

ROOT = Path(__file__).parents[2]
SIZE = 4
TOLD_S = 2.0
MIB = 1 << 20
ALL_FIRST_GIB = 16
"""8 ranks keep 5.5 GiB of messages that nobody has taken, and receive them."""
KINDS = ("messages", "bcast", "Bcast", "barrier", "gather", "Allreduce", "agg", "redistribution", "start")
KILLED = """
import json, os, sys, time
folder, kind = sys.argv[1:]
me = int(os.environ["LLSUB_RANK"])

def note(name, **what):
    with open(f"{folder}/.{name}.{me}", "w") as stream:
        json.dump({"at": time.time(), **what}, stream)
    os.rename(f"{folder}/.{name}.{me}", f"{folder}/{name}.{me}")

note("began")
import numpy as np
from slurm_share.spmd import COMM_WORLD as comm, Map, ones
from slurm_share.spmd.errors import PeerEnded

def messages():
    comm.send(small, (me + 1) % comm.size, "x")
    comm.Send(array, (me + 1) % comm.size)
    comm.Recv(room, (me - 1) % comm.size, 0)
    comm.recv((me - 1) % comm.size, "x")

try:
    comm.barrier()
    note("ready")
    small, array, room = {"a": me}, np.ones(100_000), np.empty(100_000)
    rows, columns = Map((comm.size, 1)), Map((1, comm.size), "c")
    whole = [ones(400, 300, map=rows)]
    calls = {
        "messages": messages,
        "bcast": lambda: comm.bcast(array if me == 0 else None),
        "Bcast": lambda: comm.Bcast(array, 1),
        "barrier": comm.barrier,
        "gather": lambda: (comm.gather(array), comm.barrier()),
        "Allreduce": lambda: comm.Allreduce(array, room),
        "agg": lambda: (whole[0].gather(0), comm.barrier()),
        "redistribution": lambda: whole.append(whole.pop().redistribute(columns).redistribute(rows)),
        "start": comm.barrier,
    }
    while True:
        calls[kind]()
except PeerEnded as error:
    note("told", rank=error.rank, signal=error.signal)
    raise
"""
ALL_FIRST = """
import sys
import numpy as np
from slurm_share.spmd import COMM_WORLD as comm
count, size = map(int, sys.argv[1:])
others = [(comm.rank + step) % comm.size for step in range(1, comm.size)]
array = np.zeros(size // 8)
comm.barrier()
for number in range(count):
    for other in others:
        array[0] = array[-1] = comm.rank * count + number
        comm.Send(array, other)
right = 0
for other in others:
    for number in range(count):
        comm.Recv(array, other)
        right += array[0] == array[-1] == other * count + number
total = comm.allreduce(right)
if comm.rank == 0:
    print(total, flush=True)
"""
COMPUTES = """
import time
from slurm_share.spmd import COMM_WORLD as comm
comm.barrier()
until = time.monotonic() + 60 * (comm.rank == 3)
while time.monotonic() < until:
    sum(range(10_000))
print(comm.allreduce(1), flush=True)
"""
STOPPED = """
import os
from slurm_share.spmd import COMM_WORLD as comm
comm.barrier()
if comm.rank == 0:
    print("met", flush=True)
for turn in range(3000):
    comm.send(turn, (comm.rank + 1) % comm.size)
    assert comm.recv((comm.rank - 1) % comm.size) == turn
print(comm.allreduce(1), flush=True)
"""


@dataclass
class Round:
    """The outcome of one run with a kill."""

    kind: str
    delays_s: list[float]
    """From the kill until each of the others was told."""
    problems: list[str]


def run(folder: Path, text: str, size: int, *args: object, during: Callable[[], None] | None = None) -> tuple[int, str]:
    """Run a program of ranks here; return the exit code and what all of them printed. `during` runs in a thread."""
    program = folder / "program.py"
    program.write_text(text)
    environ = {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    thread = threading.Thread(target=during) if during is not None else None
    with (folder / "said").open("w+") as said:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            if thread is not None:
                thread.start()
            outcome = local.run_local(program, size, [str(one) for one in args], env=environ)
        if thread is not None:
            thread.join()
        said.seek(0)
        return outcome.code, said.read() + outcome.why


def rank_pid(rank: int) -> int | None:
    """Return the process of a rank that this process has started; None: it is not there."""
    for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        with contextlib.suppress(OSError):
            if f"{names.ENV_RANK}={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                return int(child)
    return None


def wait_for(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    """Return as soon as the condition holds."""
    until = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError("the ranks did not come as far as they should")
        time.sleep(0.002)


def kill_one(kind: str, rand: random.Random) -> Round:
    """Kill a rank of a run, and collect what the others saw."""
    victim, pause_s = rand.randrange(SIZE), rand.uniform(0, 0.3 if kind == "start" else 0.5)
    killed: list[float] = []
    with tempfile.TemporaryDirectory(prefix="spmd-endurance-") as name:
        folder = Path(name)

        def kill() -> None:
            if kind == "start":
                wait_for(lambda: (folder / f"began.{victim}").exists())
            else:
                wait_for(lambda: len(list(folder.glob("ready.*"))) == SIZE)
            time.sleep(pause_s)
            pid = rank_pid(victim)
            assert pid is not None
            killed.append(time.time())
            os.kill(pid, signal.SIGKILL)

        code, said = run(folder, KILLED, SIZE, folder, kind, during=kill)
        told = {int(file.suffix[1:]): json.loads(file.read_text()) for file in folder.glob("told.*")}
    problems = []
    if code != 1:
        problems.append(f"exit code {code}")
    if set(told) != set(range(SIZE)) - {victim}:
        problems.append(f"told were {sorted(told)}, killed was {victim}: {said[-1000:]}")
    wrong = [one for one in told.values() if (one["rank"], one["signal"]) != (victim, signal.SIGKILL)]
    if wrong:
        problems.append(f"told of another end than that of rank {victim}: {wrong}")
    if f"rank {victim} on {os.uname().nodename} was killed by SIGKILL" not in said:
        problems.append(f"the sentence is missing: {said[-1000:]}")
    if left := processes_of_runs():
        problems.append(f"left: {left}")
    return Round(kind, [one["at"] - moment for one in told.values() for moment in killed], problems)


def processes_of_runs() -> list[int]:
    """Return the processes that have a run of this process in their environment."""
    mark = f"{names.ENV_RENDEZVOUS}=slurm-share/local-{os.getpid()}/".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def traces() -> dict[str, set[str]]:
    """Return what a run may leave behind: descriptors, files and sockets."""
    return {
        "descriptors": set(os.listdir("/proc/self/fd")),  # noqa: PTH208
        "/dev/shm": {one.name for one in Path("/dev/shm").iterdir()},
        "/tmp": {one.name for one in Path("/tmp").iterdir() if "spmd" in one.name or "slurm-share" in one.name},
        "sockets": {
            line.split()[-1]
            for line in Path("/proc/net/unix").read_text().splitlines()
            if f"@slurm-share/local-{os.getpid()}" in line
        },
    }


def kills(count: int, rand: random.Random) -> list[bench.Row]:
    """Kill a rank in so many runs."""
    before, done = traces(), []
    for number in range(count):
        one = kill_one(KINDS[number % len(KINDS)], rand)
        done.append(one)
        if one.problems:
            print(f"round {number + 1}, {one.kind}: " + "; ".join(one.problems), flush=True)
        elif number % 20 == 19:
            print(f"{number + 1} of {count}, at most {max(map(max, (one.delays_s for one in done))):.2f} s", flush=True)
    after = traces()
    left = {name: sorted(after[name] - before[name]) for name in before if after[name] - before[name]}
    if left:
        print("left behind:", left, flush=True)
    rows = [bench.Row("kills", count, "", 200, "higher")]
    for kind in KINDS:
        found = [delay for one in done if one.kind == kind for delay in one.delays_s]
        if found:
            what = f"until the others are told of a kill, {kind}, {len(found) // (SIZE - 1)} kills"
            rows.append(bench.Row(f"{what}: median", statistics.median(found), "s"))
            rows.append(bench.Row(f"{what}: longest", max(found), "s", TOLD_S))
    rows.append(
        bench.Row("kills after which something was not as it should be", sum(bool(one.problems) for one in done), "", 0)
    )
    rows.append(bench.Row("descriptors, files and sockets left behind", sum(map(len, left.values())), "", 0))
    return rows


def sends() -> list[bench.Row]:
    """Let 8 ranks send all of their messages before they receive one."""
    rows, ranks = [], 8
    lines = Path("/proc/meminfo").read_text().splitlines()
    free_gib = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / MIB
    for count, size in ((10_000, 8), (100, MIB)):
        if size == MIB and free_gib < ALL_FIRST_GIB:
            print(f"NOT MEASURED: {free_gib:.0f} GiB are free, and {count} messages of 1 MiB need {ALL_FIRST_GIB} GiB")
            continue
        with tempfile.TemporaryDirectory(prefix="spmd-endurance-") as name:
            began = time.monotonic()
            code, said = run(Path(name), ALL_FIRST, ranks, count, size)
        right = int(said.split()[0]) if code == 0 else 0
        if code:
            print(said, flush=True)
        all_of_them = ranks * (ranks - 1) * count
        what = f"messages of {size} B, {count} of each rank to each other before the first receive, that came right"
        rows.append(bench.Row(what, right, "", all_of_them, "higher"))
        rows.append(bench.Row(f"time of {all_of_them} messages of {size} B", time.monotonic() - began, "s"))
    return rows


def waits() -> list[bench.Row]:
    """Let ranks wait for one that computes, and for one that is stopped."""
    with tempfile.TemporaryDirectory(prefix="spmd-endurance-") as name:
        code, said = run(Path(name), COMPUTES, 4)
    rows = [bench.Row("exit code where one rank computes for 60 s and three wait", code, "", 0)]

    def stop() -> None:
        wait_for(lambda: "met" in (Path(folder) / "said").read_text())
        pid = rank_pid(1)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        time.sleep(30)
        os.kill(pid, signal.SIGCONT)

    with tempfile.TemporaryDirectory(prefix="spmd-endurance-") as folder:
        began = time.monotonic()
        code, said = run(Path(folder), STOPPED, 3, during=stop)
        took_s = time.monotonic() - began
    rows.append(bench.Row("exit code where a rank is stopped for 30 s", code, "", 0))
    rows.append(bench.Row("time of that run", took_s, "s", 30, "higher"))
    if any(row.holds is False for row in rows):
        print(said, flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--only", default="kills,sends,waits", help="parts, such as kills,waits; no file then")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    parts: dict[str, Callable[[], list[bench.Row]]] = {
        "kills": lambda: kills(asked.kills, random.Random(asked.seed)),
        "sends": sends,
        "waits": waits,
    }
    rows = [row for name, part in parts.items() if name in asked.only.split(",") for row in part()]
    is_whole = asked.only == "kills,sends,waits" and asked.kills >= 200
    write = bench.report if is_whole else bench.show
    return 0 if write("spmd_endurance", None, rows) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Send one large message many times, and compare the memory of both ranks with a bar.

python tests/bench/spmd_memory.py [--messages 10000] [--mib 64]

Rank 0 sends, rank 1 receives each message into a new array and answers every fourth. Both read their memory after every
25th message: the increase of resident memory since the first message, and the shared memory of all files that they have
open or mapped. The bar of each is one message and 512 MiB. Then the same without answers: a send does not wait for its
receiver, so rank 0 keeps messages that rank 1 has not taken yet, up to LLSUB_SEND_LIMIT. The results go to
results/spmd_memory.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import bench

ROOT = Path(__file__).parents[2]
KEPT_MIB = 512
AHEAD = 400
"""Number of messages without an answer."""
AHEAD_LIMIT_MIB = 256
PROGRAM = """
import json, os, sys
import numpy as np
from slurm_share.spmd import COMM_WORLD as comm

count, size, every = map(int, sys.argv[1:])
array = np.arange(size // 8, dtype=float)

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def shared():
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink("/proc/self/fd/" + fd).startswith("/memfd:"):
                about = os.stat("/proc/self/fd/" + fd)
                found[about.st_ino] = about.st_size
        except FileNotFoundError:
            pass
    for line in open("/proc/self/maps"):
        words = line.split()
        if len(words) > 5 and words[5].startswith("/memfd:"):
            begin, end = (int(word, 16) for word in words[0].split("-"))
            found.setdefault(int(words[4]), 0)
            found[int(words[4])] = max(found[int(words[4])], end - begin)
    return found

comm.barrier()
before, most, segments, right = resident(), 0, {}, 0
for number in range(count):
    if comm.rank == 0:
        array[0] = number
        comm.Send(array, 1)
    else:
        comm.Recv(array, 0)
        right += array[0] == number and array[-1] == array.size - 1
    if every and number % every == every - 1:
        comm.recv(1) if comm.rank == 0 else comm.send("taken", 0)
    if number % 25 == 24 or number == count - 1:
        most = max(most, resident() - before)
        now = shared()
        if sum(now.values()) >= sum(segments.values()):
            segments = now
found = comm.gather((before, most, segments, int(right)))
if comm.rank == 0:
    print(json.dumps({
        "before": [one[0] for one in found],
        "grown": [one[1] for one in found],
        "shared": sum({**found[0][2], **found[1][2]}.values()),
        "right": found[1][3],
    }))
"""


def measure(messages: int, size: int, answer_every: int, limit: int | None = None) -> tuple[dict[str, Any], float]:
    """Return the memory that the ranks saw, and the seconds that they took."""
    words = map(str, (messages, size, answer_every))
    limits = {} if limit is None else {"LLSUB_SEND_LIMIT": str(limit)}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM)
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "slurm_share.spmd", "-n", "2", str(program), *words],
            env={**os.environ, "PYTHONPATH": str(ROOT), **limits},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout), time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--mib", type=int, default=64)
    asked = parser.parse_args()
    found, seconds = measure(asked.messages, asked.mib << 20, 4)
    ahead, _ = measure(AHEAD, asked.mib << 20, 0, AHEAD_LIMIT_MIB << 20)
    bar = asked.mib + KEPT_MIB
    rows = [
        bench.Row(f"messages of {asked.mib} MiB that came right", found["right"], "", asked.messages, "higher"),
        *(
            bench.Row(f"resident memory of rank {rank} beyond its start", grown / 2**20, "MiB", bar)
            for rank, grown in enumerate(found["grown"])
        ),
        bench.Row("shared memory of both ranks together", found["shared"] / 2**20, "MiB", bar),
        bench.Row("time of all", seconds, "s"),
        bench.Row(f"of {AHEAD} without an answer, those that came right", ahead["right"], "", AHEAD, "higher"),
        bench.Row(
            f"resident memory of rank 0, which may keep {AHEAD_LIMIT_MIB} MiB",
            ahead["grown"][0] / 2**20,
            "MiB",
            bar + AHEAD_LIMIT_MIB,
        ),
    ]
    return 0 if bench.report("spmd_memory", None, rows) else 1


if __name__ == "__main__":
    sys.exit(main())

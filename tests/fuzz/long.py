"""Fuzzing for minutes: tests/fuzz.sh --minutes N [--seed TEXT]. Writes tests/bench/results/fuzz.json, and every input
that something failed on into build/fuzz/.

Half of the time is for the parsers in C, which are led by the code they run through (see tests/plugins/fuzz_parsers.c),
half for those in Python and for job_submit.lua, whose inputs are changed at random. The same seed gives the same
inputs; how many of them there are depends on the machine.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests/bench")]

import in_c as readers  # noqa: E402
import running  # noqa: E402
from bench import Row, report  # noqa: E402
from in_lua import SEEDS, Controller  # noqa: E402
from target import Target  # noqa: E402
from targets import TARGETS  # noqa: E402

FOUND = ROOT / "build/fuzz"
C_PARSERS = 7
MEMORY_BYTES = 2 << 30


def in_c(seconds: float, seed: str) -> tuple[list[Row], int]:
    """Return rows and crashes of the plugin's parsers."""
    build = FOUND / "build"
    build.mkdir(parents=True, exist_ok=True)
    subprocess.run(["make", "-s", "-C", ROOT / "plugins", f"BUILD={build}", build / "fuzz_parsers"], check=True)
    number = int(hashlib.sha256(seed.encode()).hexdigest()[:8], 16)
    argv = [build / "fuzz_parsers", f"{seconds / C_PARSERS:.3f}", "0", str(number), FOUND / "input"]
    done = subprocess.run(argv, capture_output=True, text=True)
    rows = []
    for line in done.stdout.splitlines():
        name, executions, kept, ways = line.split(",")
        rows.append(Row(f"C, slurmstepd and srun: {name}", int(executions), "inputs"))
        rows.append(Row("  that took a new way through the code", int(kept), "inputs"))
        rows.append(Row("  ways, times taken apart", int(ways), "ways"))
    if done.returncode:
        print(f"a sanitizer spoke; its input is {FOUND / 'input'}\n{done.stderr[-4000:]}")
    return rows, int(done.returncode != 0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/fuzz.sh", description=__doc__.partition(":")[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="all together (default: 5)")
    parser.add_argument("--seed", default="", help="of the inputs (default: the time, which is printed)")
    args = parser.parse_args()
    seed = args.seed or str(int(time.time()))
    print(f"seed {seed}", flush=True)
    warnings.simplefilter("error")  # as in the tests
    FOUND.mkdir(parents=True, exist_ok=True)
    rows, crashes = in_c(30 * args.minutes, seed)
    readers.build(FOUND / "build")
    both = readers.Readers(FOUND / "build")
    # A parser that would fill the memory fails by that, and the machine goes on. Not before: sanitizers need more.
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    controller = Controller(FOUND / "config.toml")
    targets = (*TARGETS, *both.targets(), Target("job_submit.lua", "slurmctld", SEEDS, controller.try_job))
    each = 30 * args.minutes / len(targets)
    for target in targets:
        count, found = running.run(target, seed, None, running.after(each))
        language = "Lua" if target.reader == "slurmctld" else "Python"
        rows.append(Row(f"{language}, {target.reader}: {target.name}", count, "inputs"))
        for crash in found:
            file = (
                FOUND
                / f"{hashlib.sha256(crash.data).hexdigest()[:12]}.{target.name.replace('/', '').replace(' ', '-')}"
            )
            file.write_bytes(crash.data)
            print(f"{target.name}: {file}\n{crash.error}", flush=True)
            crashes += 1
    controller.close()
    both.close()
    total = sum(row.value for row in rows if not row.what.startswith(" "))
    parsers = len([row for row in rows if not row.what.startswith(" ")])
    rows = [
        Row("parsers", parsers, "parsers", C_PARSERS + len(targets), "higher"),
        Row("inputs", total, "inputs"),
        Row("inputs that something failed on, each kind of failure once", crashes, "inputs", 0),
        Row("minutes", args.minutes, "min"),
        *rows,
    ]
    return 0 if report("fuzz", None, rows) else 1


if __name__ == "__main__":
    sys.exit(main())

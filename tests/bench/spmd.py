"""Compare messages and arrays with pPython, mpi4py and a plain copy: python tests/bench/spmd.py --ppython PATH.

PATH is a checkout of pPython; give it twice for two versions. --ppython-python is a Python with pPython's requirements
(NumPy 1.26, SciPy, SymPy, multipledispatch). mpi4py and `mpiexec` are those of this Python. All peers run in turn, in
several rounds, and no rank is bound to a core. Each rank writes its process and the versions that it loaded; the bench
fails if a peer did not run with all its ranks. Measurements that a peer does not finish are printed as NOT MEASURED.

With more ranks than cores, MPI's polling would dominate, so it yields the core after each poll
(MPIR_CVAR_POLLS_BEFORE_YIELD=1); "mpi4py as it comes" is without that. A sample of a collective call includes a barrier
after it, for all peers; pPython's barrier is an agg of one number per rank. mpi4py fills existing arrays; agg and
redistribution of ours and of pPython return new ones. Two nodes are two network namespaces on a veth pair, without
Slurm (spmd_nodes.py; needs root).

  --quick                                    one minute, for a busy machine: bars for ratios only, no file
  --rounds N, --ranks 2,8, --starts 1,8, --only WORD    fewer or more measurements; no file with --only
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import Row, report, show
from spmd_peers import CORES, OURS_APART, PLAIN_APART, PROGRAM, Item, Peer, clean, peers, run
from spmd_rows import (
    AGGS,
    BCASTS,
    COPIES,
    IMPORT,
    LATENCIES,
    MIB,
    MOVES,
    SMALL,
    START,
    UNEQUAL,
    WORK,
    Figures,
    agg,
    apart,
    as_object,
    as_ppython,
    bcast,
    move,
    table,
    unequal,
    way,
)

REQUIRED = ("ours", "mpi4py", "pPython", OURS_APART, PLAIN_APART)
"""Required peers: without one of them there is no result."""
MOST_RANKS = {"mpi4py": 192, "mpi4py as it comes": 0, "ours over mpi4py": 8}
"""Limit of ranks: with more, pPython's start takes minutes, and MPI's start-up polls on all cores."""
PPYTHON_RANKS = 8
ONCE = 64
"""Larger numbers of ranks are measured only in the first round."""
IDLE_S = 5.0
PPYTHON_UNTIL_S = 600
"""Time limit of the slowest peer, whose rows show its number of samples (n), so that a run ends within 15 minutes."""

Plan = list[tuple[str, Item]]


@dataclass
class Bench:
    options: argparse.Namespace
    work: Path
    found: list[Peer]
    figures: Figures = field(default_factory=Figures)
    begin: float = field(default_factory=time.monotonic)

    def count(self, wanted: int) -> int:
        """Return the samples of a round, so that all rounds have at least `wanted`."""
        return min(10, wanted) if self.options.quick else math.ceil(wanted / self.options.rounds)

    def peer(self, name: str) -> Peer | None:
        return next((peer for peer in self.found if peer.name == name), None)

    def wanted(self, plan: Plan) -> Plan:
        return [(name, item) for name, item in plan if self.options.only in name]

    def measure(self, peer: Peer, ranks: int, plan: Plan) -> None:
        """Measure a plan with one peer, which stops in some calls; another run does the rest."""
        if peer.kind == "pPython" and time.monotonic() - self.begin > PPYTHON_UNTIL_S:
            print(f"no more of {peer.name}: {PPYTHON_UNTIL_S / 60:.0f} minutes are over", flush=True)
            return
        left = [(name, item) for name, item in self.wanted(plan) if (ranks, name) not in peer.failures]
        while left:
            ran = run(peer, ranks, [item for _, item in left], self.work)
            for (name, _), values in zip(left, ran.samples, strict=False):
                self.figures.samples[name, ranks, peer.name.removesuffix(" on two nodes")] += values
            if not ran.error:
                return
            begins_at = len(ran.samples)
            failed = left[begins_at : begins_at + 1] if ran.has_begun else left
            for name, _ in failed or [("its end", None)]:
                peer.fail(ranks, name, ran.error)
            left = left[begins_at + len(failed) :]

    def limits(self) -> None:
        """Measure copies of an array: by one process, and by one on each core at once."""
        sizes = LATENCIES if not self.options.quick else LATENCIES[::3]
        one = [(way(size), ("copy", size, self.count(40))) for size in sizes]
        one.append((WORK, ("work", 0, self.count(20))))
        for (name, _), values in zip(one, self._limit(1, [item for _, item in one]), strict=True):
            self.figures.samples[name, 1 if name == WORK else 2, "memcpy"] += values
        self.figures.samples[COPIES, CORES, "memcpy"] += self._limit(CORES, [("copies", 8 * MIB, 100)])[0]

    def _limit(self, processes: int, what: Sequence[Item]) -> list[list[float]]:
        folder = Path(tempfile.mkdtemp(prefix="limit-", dir=self.work))
        plan = folder / "plan"
        plan.write_text(json.dumps({"peer": "limit", "what": what, "folder": str(folder)}))
        argv, env = [sys.executable, str(PROGRAM)], clean(SPMD_BENCH=str(plan))
        begun = [subprocess.Popen(argv, env=env) for _ in range(processes)]
        if any([process.wait(60) for process in begun]):  # noqa: C419 - all of them are awaited
            raise RuntimeError("the limit was not measured")
        files = [json.loads(file.read_text()) for file in sorted(folder.glob("limit.*.json"))]
        return [[value for file in files for value in file[number]] for number in range(len(what))]

    def starts(self, ranks: int) -> None:
        """Measure the time from the command to the first barrier of all ranks, and of as many `import numpy`."""
        samples = self.figures.samples
        for peer in self.found:
            if "nodes" in peer.name or peer.name == "ours over mpi4py" or not _is_for(peer, ranks, most_mpi=64):
                continue
            if peer.name.startswith("pPython ") or (ranks, START) in peer.failures:
                continue
            ran = run(peer, ranks, [], self.work)
            if ran.error:
                peer.fail(ranks, START, ran.error)
                continue
            samples[START, ranks, peer.name].append(ran.seconds)
            if peer.name == "ours":
                samples[f"CPU: {START}", ranks, "ours"].append(ran.cpu_s)
                samples[f"notes: {START}", ranks, "ours"].append(ran.notes)
                self._imports_of_numpy(ranks)

    def _imports_of_numpy(self, ranks: int) -> None:
        before, begin = _children_s(), time.monotonic()
        begun = [subprocess.Popen([sys.executable, "-c", "import numpy"], env=clean()) for _ in range(ranks)]
        if any([process.wait() for process in begun]):  # noqa: C419 - all of them are awaited
            raise RuntimeError("python -c 'import numpy' failed")
        self.figures.samples[START, ranks, "import numpy"].append(time.monotonic() - begin)
        self.figures.samples[f"CPU: {START}", ranks, "import numpy"].append(_children_s() - before)

    def imports(self) -> None:
        """Measure the import time of slurm_share.spmd after NumPy."""
        code = (
            "import numpy, sys, time; t = time.perf_counter(); from slurm_share.spmd import COMM_WORLD, Map, zeros; "
            "print(time.perf_counter() - t)"
        )
        for _ in range(10):
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean())
            self.figures.samples[IMPORT, 1, "ours"].append(float(done.stdout))

    def plan(self, peer: Peer, ranks: int) -> Plan:
        if self.options.quick:
            return self._quick_plan(ranks, 2 if peer.kind == "pPython" else 10)
        slow, large = ranks > ONCE or peer.kind == "pPython", self.count(6)
        found: Plan = []
        if ranks == 2:
            many = self.count(60 if slow else 180)
            found += [(way(size), ("latency", size, large if size > 8 * MIB else many)) for size in LATENCIES]
            found += [(way(size), ("latency", size, many)) for size in SMALL if size not in LATENCIES]
            found += [(as_object(size), ("object", size, many)) for size in SMALL]
            if peer.kind == "pPython" or peer.name == "ours":
                found.append((as_ppython(8), ("ppython", 8, many)))
            found.append(("one way, a small object", ("object", 0, many)))
            found.append((f"{way(64 * MIB)} array as an object", ("object", 64 * MIB, large)))
        few, some = (20, 20) if ranks > ONCE else (self.count(20), self.count(20 if slow else 60))
        found.append(("barrier", ("barrier", 0, some)))
        if ranks > ONCE:
            return [*found, (bcast(8 * MIB), ("bcast", 8 * MIB, few))]
        found += [(bcast(size), ("bcast", size, few)) for size in BCASTS]
        found += [(agg(size), ("agg", size, few)) for size in AGGS if ranks <= 8 or size < MIB]
        return found + [(move(to), ("move", to, large)) for to in MOVES]

    def _quick_plan(self, ranks: int, few: int) -> Plan:
        found: Plan = []
        if ranks == 2:
            found += [(way(size), ("latency", size, 50 if size < MIB else 5)) for size in LATENCIES[::3]]
        found += [("barrier", ("barrier", 0, 20)), (bcast(8), ("bcast", 8, few)), (agg(8 * MIB), ("agg", 8 * MIB, few))]
        return [*found, (move("columns"), ("move", "columns", min(few, 5)))]

    def round(self, number: int, sizes: Sequence[int], begun: Sequence[int]) -> None:
        """Measure all once, with the peers in turn."""
        self.limits()
        for peer in self.found:
            if "nodes" in peer.name:
                many, large = (50, 2) if self.options.quick else (self.count(180), self.count(6))
                sizes_here = ((8, many), (64 * MIB, large))
                self.measure(peer, 2, [(apart(size), ("latency", size, count)) for size, count in sizes_here])
        for ranks in sizes:
            for peer in self.found:
                if "nodes" not in peer.name and _is_for(peer, ranks) and (ranks <= ONCE or number == 0):
                    self.measure(peer, ranks, self.plan(peer, ranks))
        for peer in self.found:
            if peer.name in ("ours", "mpi4py", "mpi4py as it comes"):
                plan: Plan = [(unequal(how), ("unequal", how, self.count(20))) for how in UNEQUAL]
                self.measure(peer, 4 * CORES, plan)
        if self.options.only in START:
            for ranks in begun:
                if ranks <= ONCE or number == 0:
                    self.starts(ranks)


def _is_for(peer: Peer, ranks: int, most_mpi: int = 192) -> bool:
    most = PPYTHON_RANKS if peer.kind == "pPython" else min(MOST_RANKS.get(peer.name, ranks), ranks)
    return ranks <= (min(most, most_mpi) if peer.kind == "mpi4py" else most)


def _children_s() -> float:
    import resource

    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def arguments() -> argparse.Namespace:
    """Return the parsed arguments; `--quick` and the memory of this machine set the rest."""
    parser = argparse.ArgumentParser(description="Compare slurm_share.spmd with pPython, mpi4py and a copy")
    parser.add_argument(
        "--ppython", type=Path, action="append", metavar="PATH", help="a checkout of pPython; twice: two"
    )
    parser.add_argument("--ppython-python", type=Path, metavar="PYTHON", help="a Python with pPython's requirements")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--ranks", metavar="N,...", help="numbers of ranks for messages and collectives")
    parser.add_argument("--starts", metavar="N,...", help="numbers of ranks for starts")
    parser.add_argument("--only", default="", metavar="WORD", help="only measurements with this in the name; no file")
    parser.add_argument("--quick", action="store_true", help="one minute, bars for ratios only; no file")
    options = parser.parse_args()
    if (options.ppython is None) != (options.ppython_python is None):
        parser.error("--ppython and --ppython-python belong together")
    options.rounds = options.rounds or (1 if options.quick else 2)
    options.ranks = options.ranks or ("2,8" if options.quick else "2,8,64,192")
    options.starts = options.starts or ("1,8" if options.quick else "1,8,64,256")
    return options


def main() -> int:
    options = arguments()
    # peers have separate sessions, which do not end with this process; an orderly exit ends them
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sizes, begun = ([int(word) for word in text.split(",")] for text in (options.ranks, options.starts))
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="spmd-bench-", ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        bench = Bench(options, work, peers(options, work))
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}, after {time.monotonic() - begin:.0f} s", flush=True)
            bench.round(number, sizes, begun)
        for name in ("ours", "mpi4py"):
            peer = bench.peer(name)
            if peer is not None:
                bench.measure(peer, 2, [("idle", ("idle", 1.0 if options.quick else IDLE_S, 1))])
        if options.only in IMPORT:
            bench.imports()
    rows = table(bench.figures, sizes, begun, options.quick) + _peer_rows(bench.found)
    has_run = {peer.name for peer in bench.found if peer.versions}
    missing = [name for name in REQUIRED if name not in has_run]
    is_result = not (missing or options.only or options.quick)
    holds = report("spmd", None, rows) if is_result else show("spmd", None, rows)
    print(f"{time.monotonic() - begin:.0f} s in all; " + ("" if is_result else "no result was written"))
    if missing:
        print(f"NOT MEASURED, so this is no result: {', '.join(missing)}")
    fails = [peer.name for peer in bench.found if peer.name.startswith("ours") and peer.failures]
    return 0 if holds and not missing and not fails else 1


def _peer_rows(found: Sequence[Peer]) -> list[Row]:
    """Return a row for each version that ran, and one for the missing ones, whose reason was printed earlier."""
    rows = []
    for peer in found:
        rows += [Row(f"{peer.name} is {version}", 1, "peer") for version in sorted(peer.versions)]
        for (ranks, name), why in peer.failures.items():
            text = f"{peer.name} NOT MEASURED: {ranks} ranks: {name} ({why.partition(':')[0]})"
            rows.append(Row(text, 0, "peer", 1 if peer.kind == "ours" else None, "higher"))
    return rows


if __name__ == "__main__":
    sys.exit(main())

"""Messages and distributed arrays beside pPython, mpi4py and a plain copy: python tests/bench/spmd.py --ppython PATH.

PATH is a checkout of pPython, --ppython-python a Python with what that needs (NumPy 1.26, SciPy, SymPy,
multipledispatch); mpi4py and `mpiexec` are those of this Python. All peers run here, in turn, in several rounds, and no
rank is bound to a core. Each rank writes its process and the versions that it loaded: the bench fails where a peer was
not there with all its ranks. Where more ranks than cores take part it is MPI's polling that is measured, not its code;
it is told to yield the core each time then (MPIR_CVAR_POLLS_BEFORE_YIELD=1).

  --rounds N, --ranks 2,8,64, --starts 1,8,64,256, --only WORD   less or more of it
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import Row, median, report

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
PROGRAM = HERE / "spmd_ranks.py"
CORES = len(os.sched_getaffinity(0))
KIB, MIB = 1 << 10, 1 << 20
LATENCIES = (8, 8 * KIB, MIB, 64 * MIB)
BCASTS = AGGS = (8, 8 * KIB, 8 * MIB)
MOVES = ("columns", "bc3")
LIMIT_S = {"ours": 120, "ours over mpi4py": 120, "mpi4py": 120, "pPython": 300}
"""A run that takes longer has not ended."""
MOVE_LIMIT_S = 60
"""Of a redistribution alone: one takes a second or two, or never ends."""
MOST_RANKS = {"mpi4py": 64, "ours over mpi4py": 64, "pPython": 8}
"""With more, pPython's start alone takes minutes, and MPI's start-up polls on each core against all others."""
SLOW = {"pPython": {"bcast": 4, "agg": 4, "barrier": 10, "move": 3}}
"""Fewer samples of what takes half a second and more each."""

Item = tuple[str, Any, int]


@dataclass
class Peer:
    """How one of them is started."""

    name: str
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    versions: set[str] = field(default_factory=set)
    failures: dict[str, str] = field(default_factory=dict)

    def started(self, ranks: int, folder: Path) -> list[str]:
        return [word.format(ranks=ranks, folder=folder, program=PROGRAM) for word in self.argv]


class NotRun(Exception):
    """A peer did not do its part."""


def clean(**more: str) -> dict[str, str]:
    """An environment without another run's variables; one thread for NumPy in each rank."""
    unwanted = ("PMI", "OMPI", "MPI", "SLURM", "LLSUB", "PPYTHON", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return {**kept, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **more}


def peers(options: argparse.Namespace, work: Path) -> list[Peer]:
    """Return the peers of this run."""
    python = sys.executable
    found = [Peer("ours", [python, "-m", "slurm_share.spmd", "-n", "{ranks}", "{program}"])]
    mpiexec = shutil.which("mpiexec", path=f"{Path(python).parent}:{os.environ['PATH']}")
    if mpiexec is not None:
        under_mpi = [mpiexec, "-n", "{ranks}", python, "{program}"]
        found.append(Peer("mpi4py", under_mpi))
        found.append(Peer("ours over mpi4py", under_mpi, {"LLSUB_TRANSPORT": "mpi"}))
    if options.ppython is not None:
        found.append(_ppython(options.ppython.resolve(), options.ppython_python.absolute(), work))
    return found


def _ppython(checkout: Path, python: Path, work: Path) -> Peer:
    """pPython as its own documents start it: a program that calls pRUN, and settings in the home folder."""
    home = work / "home"
    settings = home / "ppython_conf"
    shutil.copytree(checkout / "src/pPython/ppython_conf", settings)
    file = settings / "pyMPI_Comm_settings_local.py"
    text = re.sub(r"(\['local_dir_map'\] =).*", rf"\1 [{str(work)!r}] * 7", file.read_text())
    file.write_text(text.replace("python_location = 'python'", f"python_location = {str(python)!r}"))
    (work / "RUN.py").write_text(
        "import os, sys, time, pPython\nfrom pRUN import pRUN\n"
        "os.chdir(sys.argv[2])\npRUN('program.py', int(sys.argv[1]), {})\n"
    )
    env = {"HOME": str(home), "USER": "bench", "PYTHONPATH": str(checkout / "src")}
    return Peer("pPython", [str(python), str(work / "RUN.py"), "{ranks}", "{folder}"], env)


def run(peer: Peer, ranks: int, what: Sequence[Item], work: Path) -> tuple[list[list[float]], float]:
    """Run a plan; return the samples of each item, and the seconds until all ranks had met. Raises NotRun."""
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=work))
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"peer": peer.name, "what": what, "folder": str(folder)}))
    # pPython runs a program's text inside a function, where functions of its own do not see each other
    (folder / "program.py").write_text(
        f"import sys\nsys.path.insert(0, {str(HERE)!r})\nimport spmd_ranks\nspmd_ranks.main()\n"
    )
    env = clean(SPMD_BENCH=str(plan), **peer.env)
    if "mpi4py" in peer.name and ranks > CORES:
        env["MPIR_CVAR_POLLS_BEFORE_YIELD"] = "1"
    limit_s = MOVE_LIMIT_S if what and all(item[0] == "move" for item in what) else LIMIT_S[peer.name]
    log = folder / "log"
    begin = time.monotonic()
    with log.open("w") as output:
        # its own session: pPython leaves ranks behind where one of them stops
        process = subprocess.Popen(
            peer.started(ranks, folder), env=env, cwd=folder, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process.pid, folder)
    who = [json.loads(file.read_text()) for file in sorted(folder.glob("rank.*.json"))]
    if not (folder / "samples.json").exists():
        said = " ".join(log.read_text(errors="replace").split())[-300:]
        how = f"did not end within {limit_s} s" if code is None else f"ended with {code}"
        raise NotRun(f"{peer.name} on {ranks} ranks {how}: {said or _written_by_ppython(folder)}")
    if len({one["pid"] for one in who}) != ranks or {one["size"] for one in who} != {ranks}:
        raise NotRun(f"{peer.name} was to run on {ranks} ranks, and {len(who)} said who they are: {who}")
    peer.versions |= {f"{one['version']}, Python {one['python']}" for one in who}
    samples: list[list[float]] = json.loads((folder / "samples.json").read_text())
    ready = max(one["ready"] for one in who) - begin
    shutil.rmtree(folder)
    return samples, ready


def _end(session: int, folder: Path) -> None:
    """End what is left of a run: processes of its session."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and os.getsid(int(entry.name)) == session:
                os.kill(int(entry.name), 9)
        except (ProcessLookupError, PermissionError):
            continue


def _written_by_ppython(folder: Path) -> str:
    texts = [file.read_text(errors="replace") for file in sorted(folder.glob("PythonMPI/*.out"))]
    return " ".join(" ".join(texts).split())[-300:]


@dataclass
class Figures:
    """Samples by measurement and peer, in seconds."""

    samples: dict[tuple[str, int, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    rows: list[Row] = field(default_factory=list)

    def middle(self, what: str, ranks: int, peer: str) -> float | None:
        found = self.samples.get((what, ranks, peer))
        return median(found) if found else None

    def show(self, what: str, ranks: int, peer: str, unit: str = "us", bar: float | None = None) -> None:
        found = self.samples.get((what, ranks, peer))
        if not found:
            return
        scale = {"us": 1e6, "ms": 1e3, "s": 1.0}[unit]
        low, high = (scale * value for value in _spread(found))
        name = f"{what}, {ranks} ranks on {CORES} cores: {peer} (n={len(found)}, {low:.3g} to {high:.3g})"
        self.rows.append(Row(name, median(found) * scale, unit, bar))

    def compare(self, what: str, ranks: int, other: str, bar: float | None, better: str, times: float = 1.0) -> None:
        """A row with how much longer ours takes (`lower`), or how much longer the other (`higher`)."""
        ours, theirs = self.middle(what, ranks, "ours"), self.middle(what, ranks, other)
        if ours is None or theirs is None:
            return
        ratio = ours / (theirs * times) if better == "lower" else theirs * times / ours
        name = f"  {what}, {ranks} ranks: " + (f"ours / {other}" if better == "lower" else f"{other} / ours")
        self.rows.append(Row(name, ratio, "x", bar, better))


def _spread(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    parts = statistics.quantiles(values, n=10, method="inclusive")
    return parts[0], parts[-1]


def size_name(nbytes: int) -> str:
    """8 B, 8 KiB, 64 MiB."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


def plan_for(peer: str, ranks: int) -> list[tuple[str, Item]]:
    """Return what is measured with so many ranks, by its name."""
    slow = SLOW.get(peer, {})
    found: list[tuple[str, Item]] = []
    if ranks == 2:
        for size in LATENCIES:
            found.append((f"one way {size_name(size)}", ("latency", size, 8 if size > 8 * MIB else 60)))
        found.append(("one way, a small object", ("object", 0, 60)))
        found.append((f"one way {size_name(64 * MIB)} array as an object", ("object", 64 * MIB, 6)))
    found.append(("barrier", ("barrier", 0, slow.get("barrier", 40))))
    found += [(f"bcast {size_name(size)}", ("bcast", size, slow.get("bcast", 20))) for size in BCASTS]
    found += [(f"agg {size_name(size)} a rank", ("agg", size, slow.get("agg", 10))) for size in AGGS]
    found += [(f"4096 x 4096 rows to {to}", ("move", to, slow.get("move", 6))) for to in MOVES]
    return found


def measure(figures: Figures, peer: Peer, ranks: int, only: str, work: Path) -> None:
    """One round of one peer. pPython stops in some calls: each of those has a run of its own, and says so."""
    plan = [(name, item) for name, item in plan_for(peer.name, ranks) if only in name]
    alone = [one for one in plan if peer.name == "pPython" and one[1][0] in ("move", "agg")]
    groups = [[one for one in plan if one not in alone], *([one] for one in alone)]
    for group in groups:
        names = ", ".join(name for name, _ in group)
        if not group or f"{ranks} ranks: {names}" in peer.failures:
            continue
        try:
            samples, _ = run(peer, ranks, [item for _, item in group], work)
        except NotRun as error:
            if peer.name != "pPython" or len(group) > 1:
                raise
            peer.failures[f"{ranks} ranks: {names}"] = str(error)
            print(f"NOT MEASURED: {names}: {error}", flush=True)
            continue
        for (name, _), values in zip(group, samples, strict=True):
            figures.samples[name, ranks, peer.name] += values


def copies(figures: Figures, only: str, work: Path) -> None:
    """The limit: one process copies an array."""
    folder = Path(tempfile.mkdtemp(prefix="limit-", dir=work))
    sizes = [size for size in LATENCIES if only in f"one way {size_name(size)}"]
    plan = {"peer": "limit", "what": [(size, 10) for size in sizes], "folder": str(folder)}
    (folder / "plan.json").write_text(json.dumps(plan))
    env = clean(SPMD_BENCH=str(folder / "plan.json"))
    subprocess.run([sys.executable, str(PROGRAM)], check=True, env=env, timeout=60)
    for size, values in zip(sizes, json.loads((folder / "samples.json").read_text()), strict=True):
        figures.samples[f"one way {size_name(size)}", 2, "memcpy"] += values


def starts(figures: Figures, peer: Peer, ranks: int, work: Path) -> None:
    """Seconds from the command to the first barrier of all ranks, and of as many `import numpy` at once."""
    name = "start to the first barrier"
    figures.samples[name, ranks, peer.name].append(run(peer, ranks, [], work)[1])
    if peer.name == "ours":
        begin = time.monotonic()
        argv = [sys.executable, "-c", "import numpy"]
        begun = [subprocess.Popen(argv, env=clean()) for _ in range(ranks)]
        if any(process.wait() for process in begun):
            raise NotRun("python -c 'import numpy' failed")
        figures.samples[name, ranks, "import numpy"].append(time.monotonic() - begin)


def imports(figures: Figures) -> None:
    """Seconds that slurm_share.spmd takes to import where NumPy is there already."""
    code = (
        "import numpy, sys, time; t = time.perf_counter(); from slurm_share.spmd import COMM_WORLD, Map, zeros; "
        "print(time.perf_counter() - t)"
    )
    for _ in range(10):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean())
        figures.samples["import slurm_share.spmd beyond NumPy", 1, "ours"].append(float(done.stdout))


def rows(figures: Figures, sizes: Sequence[int], begun: Sequence[int]) -> None:
    """The table with its bars."""
    ways = [f"one way {size_name(size)}" for size in LATENCIES]
    small, large = ways[0], ways[-1]
    others = ("ours over mpi4py", "pPython", "mpi4py", "memcpy")
    in_cores = CORES >= 2
    for way in ways:
        unit = "us" if way != large else "ms"
        figures.show(way, 2, "ours", unit, 25.0 if way == small and in_cores else None)
        for other in others:
            figures.show(way, 2, other, unit)
        figures.compare(way, 2, "pPython", {small: 50.0, large: 5.0}.get(way), "higher")
        figures.compare(way, 2, "mpi4py", 0.8 if way == large and in_cores else None, "higher")
    found = figures.samples.get((small, 2, "ours"))
    if found:
        p99 = sorted(found)[int(len(found) * 0.99)] * 1e6
        figures.rows.append(Row(f"  {small}: ours, 99 of 100", p99, "us", 100.0 if in_cores else None))
    # two copies: the sender's and the receiver's
    figures.compare(large, 2, "memcpy", 0.5, "higher", times=2.0)
    for name, bar in (("one way, a small object", 1.5), (f"{large} array as an object", None)):
        unit = "us" if bar else "ms"
        for peer in ("ours", "ours over mpi4py", "pPython", "mpi4py"):
            figures.show(name, 2, peer, unit)
        figures.compare(name, 2, "mpi4py", bar or 5.0, "lower" if bar else "higher")
    for ranks in sizes:
        _collective_rows(figures, ranks)
    for ranks in begun:
        _start_rows(figures, ranks)
    figures.show("import slurm_share.spmd beyond NumPy", 1, "ours", "ms", 60.0)


def _collective_rows(figures: Figures, ranks: int) -> None:
    fits = ranks <= CORES
    barrier_ms = next((limit for most, limit in ((8, 0.5), (64, 3.0), (192, 10.0)) if ranks <= most), None)
    for name, _ in plan_for("ours", ranks):
        if not name.startswith(("barrier", "bcast", "agg", "4096")):
            continue
        figures.show(name, ranks, "ours", "ms", barrier_ms if name == "barrier" and fits else None)
        for other in ("ours over mpi4py", "pPython", "mpi4py"):
            figures.show(name, ranks, other, "ms")
        than_mpi: dict[str, float] = {f"agg {size_name(8 * MIB)} a rank": 1.2, "4096 x 4096 rows to columns": 2.0}
        than_mpi |= {f"bcast {size_name(8 * MIB)}": 2.0} if fits else {"barrier": 1.0}
        than_ppython = {"bcast 8 B": 20.0, "bcast 8 KiB": 20.0, f"agg {size_name(8 * MIB)} a rank": 50.0}
        figures.compare(name, ranks, "mpi4py", than_mpi.get(name), "lower")
        figures.compare(name, ranks, "pPython", than_ppython.get(name), "higher")
    ours = figures.middle("4096 x 4096 rows to bc3", ranks, "ours")
    theirs = figures.middle("4096 x 4096 rows to columns", ranks, "mpi4py")
    if ours is not None and theirs is not None:
        name = f"  4096 x 4096, {ranks} ranks: ours rows to bc3 / mpi4py rows to columns"
        figures.rows.append(Row(name, ours / theirs, "x", 3.0))


def _start_rows(figures: Figures, ranks: int) -> None:
    name = "start to the first barrier"
    bare = figures.middle(name, ranks, "import numpy")
    figures.show(name, ranks, "ours", "s", None if bare is None else round(1.3 * bare + 0.3, 3))
    for other in ("import numpy", "pPython", "mpi4py"):
        figures.show(name, ranks, other, "s")


def main() -> int:
    """Measure; 1 where a bar does not hold or a peer was not there."""
    parser = argparse.ArgumentParser(description="slurm_share.spmd beside pPython, mpi4py and a copy")
    parser.add_argument("--ppython", type=Path, metavar="PATH", help="a checkout of pPython")
    parser.add_argument("--ppython-python", type=Path, metavar="PYTHON", help="a Python with what pPython needs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", default="2,8", metavar="N,...")
    parser.add_argument("--starts", default="1,8,64,256", metavar="N,...")
    parser.add_argument("--only", default="", metavar="WORD", help="measurements with this in their names; no file")
    options = parser.parse_args()
    if (options.ppython is None) != (options.ppython_python is None):
        parser.error("--ppython and --ppython-python belong together")
    sizes, begun = ([int(word) for word in text.split(",") if word] for text in (options.ranks, options.starts))
    figures, missing = Figures(), []
    with tempfile.TemporaryDirectory(prefix="spmd-bench-") as folder:
        work = Path(folder)
        found = peers(options, work)
        missing = [name for name in ("ours", "mpi4py", "pPython") if name not in {peer.name for peer in found}]
        try:
            _measure_all(figures, found, options, sizes, begun, work)
        except NotRun as error:
            print(f"spmd.py: {error}", file=sys.stderr)
            return 1
    rows(figures, sizes, begun)
    for peer in found:
        if len(peer.versions) != 1:
            print(f"spmd.py: {peer.name} did not run, or in several versions: {peer.versions}", file=sys.stderr)
            return 1
        print(f"{peer.name}: {next(iter(peer.versions))}")
        figures.rows.append(Row(f"{peer.name} is {next(iter(peer.versions))}", 1, "peer"))
        # the whole reason was printed when it happened
        figures.rows += [Row(f"{peer.name} NOT MEASURED: {what}", 0, "peer") for what in _failed(peer)]
    holds = report("spmd" if not (options.only or missing) else "spmd_part", None, figures.rows)
    if missing:
        print(f"NOT MEASURED, so this is no result: {', '.join(missing)}")
    return 0 if holds and not missing else 1


def _failed(peer: Peer) -> list[str]:
    return [f"{what} ({why.partition(':')[0]})" for what, why in peer.failures.items()]


def _measure_all(
    figures: Figures,
    found: Sequence[Peer],
    options: argparse.Namespace,
    sizes: Sequence[int],
    begun: Sequence[int],
    work: Path,
) -> None:
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", flush=True)
        copies(figures, options.only, work)
        for ranks in sizes:
            for peer in found:
                if ranks <= MOST_RANKS.get(peer.name, ranks):
                    measure(figures, peer, ranks, options.only, work)
        if options.only in "start to the first barrier":
            for ranks in begun:
                for peer in found:
                    if ranks <= MOST_RANKS.get(peer.name, ranks):
                        starts(figures, peer, ranks, work)
    if options.only in "import slurm_share.spmd beyond NumPy":
        imports(figures)


if __name__ == "__main__":
    sys.exit(main())

"""Run pPython's 13 example programs unchanged: python tests/bench/ppython_examples.py CHECKOUT [--ranks 1,2,3,4,6,8]
        [--where local,launcher,pRUN,cluster]

CHECKOUT is a clone of github.com/Accla/pPython; the programs are read from commit 59d3abd and compared with their
sha256. Python needs NumPy, SciPy, SymPy and Matplotlib for the programs. Edits are printed: Beamformer gets its small
constants (unchanged it needs 57 GB), FFT and RandomAccess validate, HPL verifies. Each rank has a memory limit.

Each program runs on this machine; under a launcher on this machine (`llsub --spmd --local`); through the RUN.py that
comes with it, whose pRUN starts it here; and on two nodes of a local Slurm cluster (root), with `llsub --spmd` and
through RUN.py again. On two nodes there are the even ones of --ranks, and through RUN.py 4, if that is one of them.

The results go to results/ppython_examples.json: the place of each run, how often each program printed SUCCESS, the
result of its own check, and whether its gathered arrays equal those of a serial run with all maps 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bench
import ppython_places as places

COMMIT = "59d3abd"
ROOT = Path(__file__).parents[2]
RECORDER = Path(__file__).parent / "ppython_recorder.py"
LIMIT_GIB = 6
PATIENCE_S = 900
RANKS_ELSEWHERE = 4
LLSUB = str(Path(sys.executable).parent / "llsub")
RESULTS = bench.RESULTS / "ppython_examples.json"
FILES: dict[str, dict[str, str]] = {one["name"]: one["sha256"] for one in json.loads(RESULTS.read_text())["programs"]}
"""The sha256 of each file of each program, from the recorded results."""


@dataclass(frozen=True)
class Example:
    """One program, and the signs that it worked."""

    folder: str
    program: str
    edits: tuple[tuple[str, str], ...] = ()
    """File and expression of `sed -E`."""
    says: str | None = None
    """Output of rank 0 when the program's own check has passed."""
    never_says: str = "Traceback|Failed|Failure|ERROR|WARNING"
    least_ranks: int = 1
    compared: tuple[str, ...] = ()
    """Edits that make it serial; its gathered arrays are compared then."""
    only_powers_of_two: bool = False
    """It cannot divide its work among another number of ranks."""
    folders: tuple[str, ...] = ()
    """Made before it starts: its ranks make them at once, and only one of them can."""
    columns: tuple[int, ...] | None = None
    """Names of the compared arrays; others depend on the number of ranks."""


PLACES = {
    "local": (places.LOCAL,),
    "launcher": (places.LAUNCHED,),
    "pRUN": (places.DRIVEN,),
    "cluster": (places.NODES, places.NODES_DRIVEN),
}
_SERIAL = ("s/^PARALLEL = 1/PARALLEL = 0/",)
EXAMPLES = (
    Example("AddOne", "pAddOne.py"),
    Example("Beamformer", "pBeamformer.py", (("pBeamformer.py", r"/^Nt = 600; Ns = 90;/d; /^Nt = int\(16\*Nt\);/d"),)),
    Example("Blurimage", "pBlurimage.py"),
    Example(
        "FFT", "pFFT.py", (("pFFT.py", "s/^VALIDATE = 0/VALIDATE = 1/"),), "Validation Passed", only_powers_of_two=True
    ),
    Example("HPL", "pHPL.py", (("pHPL.py", "s/^VERIFY = 0/VERIFY = 1/"),), "Verification Passed"),
    Example("IO", "pIO.py", folders=("dat",)),
    Example("Mandelbrot", "pMandelbrot.py", compared=_SERIAL),
    Example("Param_Sweep", "param_sweep_parallel.py", compared=(r"s/^pmap = Dmap\(.*/pmap = 1/",), columns=(0, 2)),
    Example(
        "RandomAccess",
        "pRandomAccess.py",
        (("pRandomAccess.py", "s/^VALIDATE = 0/VALIDATE = 1/"),),
        "Validation Passed",
        only_powers_of_two=True,
    ),
    Example("Speedtest", "pSpeedtest.py", least_ranks=2),
    Example("Stream", "pStream.py"),
    Example("ZoomImage", "pZoomImage.py", compared=_SERIAL),
    Example("pBlurimage", "pBlurimage.py", compared=_SERIAL),
)


@dataclass
class Ran:
    """The end of one run of a program."""

    ranks: int
    code: int
    success: int
    """Number of ranks that printed SUCCESS."""
    seconds: float
    check: str
    """Output of the program's own check; empty: it has none."""
    serial: str
    """"equal", "differs" or empty: not compared."""
    trouble: list[str] = field(default_factory=list)
    where: str = places.LOCAL

    @property
    def is_right(self) -> bool:
        """Whether all results are as required."""
        return self.code == 0 and self.success == self.ranks and not self.trouble and self.serial != "differs"


def prepare(example: Example, checkout: Path, folder: Path) -> list[str]:
    """Copy a program's files, compare their sha256, and edit them; return the edits."""
    folder.mkdir(parents=True)
    for name, expected in FILES[example.folder].items():
        source = f"{COMMIT}:examples/{example.folder}/{name}"
        data = subprocess.run(["git", "-C", str(checkout), "show", source], capture_output=True, check=True).stdout
        found = hashlib.sha256(data).hexdigest()
        if found != expected:
            raise SystemExit(f"{source} is another file than was run before: sha256 {found}, not {expected}")
        (folder / name).write_bytes(data)
    for name in example.folders:
        (folder / name).mkdir()
    made = []
    for name, expression in example.edits:
        made.append(f"sed -E -i '{expression}' {name}")
        print(f"  {made[-1]}", flush=True)
        subprocess.run(["sed", "-E", "-i", expression, str(folder / name)], check=True)
    return made


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_GIB << 30, LIMIT_GIB << 30))


def _done(command: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder with a memory limit."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LLSUB_", "SLURM_"))} | more
    env |= {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE_S, preexec_fn=_limit
    )


def run(
    example: Example,
    folder: Path,
    ranks: int,
    python: str,
    *,
    where: str = places.LOCAL,
    nodes: places.TwoNodes | None = None,
    recorder: Sequence[str] = (),
) -> Ran:
    """Run a program here, by itself, under a launcher or through its driver, or on two nodes."""
    began = time.monotonic()
    if nodes is not None:
        code, said, errors = nodes.run(folder, example.program, ranks, where, PATIENCE_S)
    elif where == places.LAUNCHED:
        done = _done([LLSUB, "--spmd", "--local", example.program, f"[1,{ranks},1]"], folder, LLSUB_PYTHON=python)
        code, errors = done.returncode, done.stdout + done.stderr
        said = places.logs(folder, example.program, ranks)[0]
    else:
        here = ["-n", str(ranks), "--logs", "PythonMPI", *recorder, example.program]
        words = here if where == places.LOCAL else [places.DRIVER]
        done = _done([python, "-m", "slurm_share.spmd", *words], folder)
        code, errors = done.returncode, done.stderr
        said = [done.stdout, *places.outputs(folder, recorder[0] if recorder else example.program, ranks)]
    seconds = time.monotonic() - began
    success = sum(bool(re.search(r"^\s*SUCCESS\s*$", one, re.MULTILINE)) for one in said)
    trouble = [line for one in (*said, errors) for line in one.splitlines() if re.search(example.never_says, line)]
    check = ""
    if example.says is not None:
        check = "passed" if example.says in said[0] else "not passed"
        trouble += [] if check == "passed" else [f"rank 0 did not say: {example.says}"]
    if code:
        trouble.append(errors[-2000:])
    return Ran(ranks, code, success, round(seconds, 2), check, "", trouble, where)


def compare(example: Example, checkout: Path, folder: Path, ranks: Sequence[int], python: str) -> dict[int, str]:
    """Return for each number of ranks whether rank 0 gathered the arrays of a serial run."""
    import numpy as np

    serial = folder / "serial"
    prepare(example, checkout, serial)
    for expression in example.compared:
        print(f"  serial: sed -E -i '{expression}' {example.program}", flush=True)
        subprocess.run(["sed", "-E", "-i", expression, str(serial / example.program)], check=True)
    found = {}
    for count in (0, *ranks):
        where = serial
        if count:
            where = folder / f"recorded-{count}"
            prepare(example, checkout, where)
        ran = run(example, where, max(count, 1), python, recorder=[str(RECORDER)])
        if not ran.is_right:
            print("\n".join(ran.trouble))
        with np.load(where / "recorded.npz") as arrays:
            found[count] = [arrays[name] for name in arrays.files]
    columns = slice(None) if example.columns is None else list(example.columns)
    return {
        count: "equal"
        if len(found[count]) == len(found[0]) > 0
        and all(
            one.shape == other.shape and np.allclose(one[:, columns], other[:, columns], rtol=1e-9, atol=1e-9)
            for one, other in zip(found[count], found[0], strict=True)
        )
        else "differs"
        for count in ranks
    }


def versions(python: str) -> dict[str, str]:
    """Return the releases of Python and of the libraries that the programs use."""
    code = (
        "import json, platform, numpy, scipy, sympy, matplotlib as m\n"
        "print(json.dumps(dict(python=platform.python_version(), matplotlib=m.__version__, "
        "**{one.__name__: one.__version__ for one in (numpy, scipy, sympy)})))"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{python} has not what the examples import: {done.stderr.splitlines()[-1]}")
    return dict(json.loads(done.stdout))


def show(ran: Ran) -> None:
    words = [f"{ran.success} of {ran.ranks} SUCCESS", f"check {ran.check}" * bool(ran.check)]
    words += [f"{ran.serial} to serial" * bool(ran.serial), f"{ran.seconds:.1f} s", *ran.trouble[:3]]
    print(f"  {ran.where}, {ran.ranks} ranks: " + ", ".join(word for word in words if word), flush=True)


def written(example: Example, edits: list[str], runs: Sequence[Ran]) -> dict[str, Any]:
    """Return the results of a program for the file."""
    return {
        "name": example.folder,
        "sha256": FILES[example.folder],
        "edits": edits,
        "runs": [{**vars(one), "right": one.is_right} for one in runs],
    }


def run_all(
    chosen: Sequence[Example], checkout: Path, folder: Path, wanted: Sequence[str], counts: Sequence[int], python: str
) -> list[dict[str, Any]]:
    """Run programs in the wanted places, on each number of ranks; return their results."""
    found: dict[str, tuple[list[str], list[Ran]]] = {example.folder: ([], []) for example in chosen}
    on_cluster = set(PLACES["cluster"]) & set(wanted)
    with places.two_nodes(LIMIT_GIB) if on_cluster else nullcontext() as cluster:
        for where in (place for place in places.PLACES if place in wanted):
            nodes = cluster if where in on_cluster else None
            for example in chosen:
                print(example.folder, flush=True)
                home, ranks_here = folder / example.folder, ranks_of(example, where, counts)
                is_compared = where == places.LOCAL and example.compared
                serial = compare(example, checkout, home / "compared", ranks_here, python) if is_compared else {}
                edits, runs = found[example.folder]
                for ranks in ranks_here:
                    here = home / f"{where} {ranks}"
                    made = prepare(example, checkout, here)
                    if where in (places.DRIVEN, places.NODES_DRIVEN):
                        more = places.edit_driver(here, where, ranks)
                        print("".join(f"  {edit}\n" for edit in more), end="", flush=True)
                        made += more
                    ran = run(example, here, ranks, python, where=where, nodes=nodes)
                    ran.serial = serial.get(ranks, "")
                    show(ran)
                    edits += made if where == places.LOCAL else [f"{where}: {edit}" for edit in made]
                    runs.append(ran)
    return [written(example, *found[example.folder]) for example in chosen]


def ranks_of(example: Example, where: str, counts: Sequence[int]) -> list[int]:
    """Return with which of these numbers of ranks a program runs in a place."""
    if where in (places.DRIVEN, places.NODES_DRIVEN):
        return [count for count in counts if count == RANKS_ELSEWHERE]
    return [
        count
        for count in counts
        if count >= example.least_ranks
        and (not example.only_powers_of_two or count.bit_count() == 1)
        and (where != places.NODES or count % 2 == 0)
    ]


def with_others(programs: Sequence[dict[str, Any]], before: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the results, merged with earlier ones of other programs, places and numbers of ranks."""
    now = {program["name"]: program for program in programs}
    kept = {program["name"]: program for program in before}
    for name, program in now.items():
        old = kept.get(name, {"edits": [], "runs": []})
        runs = {_place_of(run): run for run in (*old["runs"], *program["runs"])}
        program["runs"] = [runs[place] for place in sorted(runs)]
        program["edits"] = [*dict.fromkeys(old["edits"] + program["edits"])]
    return [(kept | now)[one.folder] for one in EXAMPLES if one.folder in kept | now]


def _place_of(run: dict[str, Any]) -> tuple[int, int]:
    return places.PLACES.index(run.get("where", places.LOCAL)), run["ranks"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, default=os.environ.get("PPYTHON_CHECKOUT"), nargs="?")
    parser.add_argument("--ranks", default="1,2,3,4,6,8")
    parser.add_argument("--only", default="")
    parser.add_argument("--where", default=",".join(PLACES), help=f"of {', '.join(PLACES)}; the default is all")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--show", action="store_true", help="write no results")
    asked = parser.parse_args()
    if asked.checkout is None:
        raise SystemExit("which checkout of pPython? Give its path, or PPYTHON_CHECKOUT")
    chosen = [example for example in EXAMPLES if not asked.only or example.folder in asked.only.split(",")]
    counts = [int(count) for count in asked.ranks.split(",")]
    wanted = [place for name in asked.where.split(",") for place in PLACES[name]]
    used = versions(asked.python)
    folder = Path(tempfile.mkdtemp(prefix="ppython-examples-"))
    try:
        programs = run_all(chosen, asked.checkout, folder, wanted, counts, asked.python)
    finally:
        shutil.rmtree(folder)
    right = [run["right"] for program in programs for run in program["runs"]]
    if not asked.show:
        whole = with_others(programs, json.loads(RESULTS.read_text())["programs"])
        about = {"pPython": COMMIT, "versions": used, "memory_limit_gib": LIMIT_GIB}
        bench.write("ppython_examples", **about, programs=whole)
    print(f"{sum(right)} of {len(right)} runs of {len(programs)} programs are right")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())

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

sys.path.insert(0, str(Path(__file__).parent))
import bench
import ppython_places as places

COMMIT = "59d3abd"
ROOT = Path(__file__).parents[2]
RECORDER = Path(__file__).parent / "ppython_recorder.py"
LIMIT_GIB = 6
PATIENCE_S = 900
RANKS_ELSEWHERE = 4
LLSUB = str(Path(sys.executable).parent / "llsub")
FILES = {
    "AddOne": {
        "RUN.py": "d06337ce4355f84626109bb2e6bfefcf8c478faa08cbbf8f1388b4d6c1950c6e",
        "pAddOne.py": "e674a417e68226482c0b6ae7aa63ca2e7a77802250d9aa65d15cf93eec7bc752",
    },
    "Beamformer": {
        "RUN.py": "8ad3e4b15f3a26caeeee042d9adf50433c5a64e7dc0d2cc9db2868ed9dcc3010",
        "beamformer_vectors.py": "eeaad5e3b8c5bf4a7c0c321a0678b72315a7dcf397de3334f02b49eb2ab9337e",
        "pBeamformer.py": "89e75c233185ac2611dc9bc648c3ac2673d97b0ca344dbbe1fbfa5795f9c9d3b",
    },
    "Blurimage": {
        "RUN.py": "fdf85126d20a9185767df4d83ab68acf14f529d9977a698eab5f3c75da4ad7c6",
        "pBlurimage.py": "f7c6c5c38567e5e44b0092b211f700602ffa62e8050033809b782e8a1caf2bc2",
    },
    "FFT": {
        "RUN.py": "568388d20bc6752a6366747a1ba604b39626b7c5a01f35f6e7a851f5ef16b052",
        "pFFT.py": "cb16e8abc6303381210a80f9fc058a15ec07deaf0ed52e3fc3d4e95f51f908b7",
    },
    "HPL": {
        "RUN.py": "00f3695103f2c828dded35efd8730a68a55f68100be162f6981cfca9191b61d3",
        "pHPL.py": "e57f5fc13b0e1a6507ee8729d396cafebd82a065de9f9d448432a7b50e42e380",
        "pLUfactor.py": "054b7d523b666cf3febd24b1468c8120548b5a22865f9bdd2d5dde6704686200",
        "pLUsolve.py": "2e8807527855cb7d46d7c10070bde9475f5d4e11af74af2018c8d8bf7c910eb9",
    },
    "IO": {
        "RUN.py": "3d630f579e91fd03351ad568f6d248e27b7466c181afd39eaaff65fd1208a780",
        "matrix_util.py": "38cff2239054b78b48ca3dcd19cfcf1258cfcb618b7a4b3795dea6816785fc6c",
        "pIO.py": "7c73feb2146df51cf3cb90f8ef7927937a62c7fa19be3a3cb73c46e7d34fb78d",
    },
    "Mandelbrot": {
        "RUN.py": "ae44b975ba2a770c7067addf5bb64113441a3585d4a56528323fd4e37985f2ca",
        "pMandelbrot.py": "5db547bbbc9014a89c08ca64a6167bb9a74733e05b1f66a39e87c68f87c7a7b1",
    },
    "Param_Sweep": {
        "RUN.py": "bfdada0889e10f91dc6c2cf403376d09680bccf81cde4d51bc85f02a3b02ddc7",
        "param_sweep_parallel.py": "215360c962416974b574a8760d7c99732c02cdda21408b1efb702f9c5a3373b4",
        "sample_function.py": "4a54407b64b71fea9df8241da19889c1247079c9d0d653cbec055d5f381532f5",
    },
    "RandomAccess": {
        "RUN.py": "8184ce7c45c993d4679de34a8a4d08578fb46826a8bb05636c706812e7e34cba",
        "RandomAccessRand.py": "2e9efbdd9c535af1232a3942804fa09f1d9cc776ef8bca3620252f06c9e34bc9",
        "RandomAccessStarts.py": "9012254688513537fa924200508b6b37c625d8c0d2f8ab23c4e91c13a826db7c",
        "pRandomAccess.py": "19baf5d17af03becef1c56a01371f26fc388a71c7ae29c40a434166c5993a9dd",
        "pRandomAccessSpray.py": "9ceea833614ecfc52a378c4c6172bd17b0e1bdb54c752b23144600cbcd010eff",
        "pRandomAccessTree.py": "ce9346d12b1d2b2be67d0ba766846ee1d70938dc6b8cb8767a94903dd39bc1c2",
    },
    "Speedtest": {
        "RUN.py": "496a47af1deaf1c8b0e3edb8adada538344bbc24c03809fe684226c4e7cc0bd6",
        "pSpeedtest.py": "5a90c4d3e10f0d25e9a7ea4f7344dcb53a1f5c02b57d7b22fe3d5b7befac3a5a",
    },
    "Stream": {
        "RUN.py": "acf79a121efb411eaff83e7602899c05eb6ca726dd4d3ddbbeca6dfddce9d697",
        "pStream.py": "f4932ce811f0d9053414fa78bd1623cdcc3a24c61dc62a2487e29fa6258b9acc",
    },
    "ZoomImage": {
        "RUN.py": "f97d723ee4306215be6c5e0328f8af98a5f90c4f01658b6d49dfcd4f2dc5dcd1",
        "pZoomImage.py": "fb59f84b39b178818825c14fb95ca30d0346a8850fd8bc5bae689e3a347816eb",
        "reference_frame.py": "6fd04142a32c58c888134cc5861a28775588ae071bb2866c5466ca3c4eabc518",
        "zoom_frames.py": "18e25cb22caf5e225206fef96ab1bc4a894ca29782a9acde2ca0422d81857d05",
    },
    "pBlurimage": {
        "RUN.py": "fdf85126d20a9185767df4d83ab68acf14f529d9977a698eab5f3c75da4ad7c6",
        "pBlurimage.py": "8bcd38b6dc6824fdaaec8502850159c023d5cc2847a337aa6b3faae07bcaff76",
    },
}


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
    Example(
        "Beamformer",
        "pBeamformer.py",
        (("pBeamformer.py", r"/^Nt = 600; Ns = 90;/d; /^Nt = int\(16\*Nt\);/d"),),
    ),
    Example("Blurimage", "pBlurimage.py"),
    Example(
        "FFT",
        "pFFT.py",
        (("pFFT.py", "s/^VALIDATE = 0/VALIDATE = 1/"),),
        "Validation Passed",
        only_powers_of_two=True,
    ),
    Example("HPL", "pHPL.py", (("pHPL.py", "s/^VERIFY = 0/VERIFY = 1/"),), "Verification Passed"),
    Example("IO", "pIO.py", folders=("dat",)),
    Example("Mandelbrot", "pMandelbrot.py", compared=_SERIAL),
    Example(
        "Param_Sweep",
        "param_sweep_parallel.py",
        compared=(r"s/^pmap = Dmap\(.*/pmap = 1/",),
        columns=(0, 2),
    ),
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


def _environment(python: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LLSUB_", "SLURM_"))}
    return kept | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def run(example: Example, folder: Path, ranks: int, python: str, recorder: Sequence[str] = ()) -> Ran:
    """Run a program on a number of ranks of this machine, and count its lines."""
    command = [python, "-m", "slurm_share.spmd", "-n", str(ranks), "--logs", "PythonMPI", *recorder, example.program]
    began = time.monotonic()
    done = subprocess.run(
        command,
        cwd=folder,
        env=_environment(python),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        preexec_fn=_limit,
    )
    program = recorder[0] if recorder else example.program
    said = [done.stdout, *places.outputs(folder, program, ranks)]
    return judged(example, ranks, done.returncode, said, done.stderr, time.monotonic() - began)


def run_elsewhere(
    example: Example, folder: Path, where: str, ranks: int, python: str, nodes: places.TwoNodes | None
) -> Ran:
    """Run a program under a launcher here, through its driver, or on two nodes."""
    began = time.monotonic()
    if nodes is not None:
        code, said, errors = nodes.run(folder, example.program, ranks, where, PATIENCE_S)
    elif where == places.LAUNCHED:
        done = subprocess.run(
            [LLSUB, "--spmd", "--local", example.program, f"[1,{ranks},1]"],
            cwd=folder,
            env=_environment(python) | {"LLSUB_PYTHON": python},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            preexec_fn=_limit,
        )
        code, errors = done.returncode, done.stdout + done.stderr
        said = places.logs(folder, example.program, ranks)[0]
    else:
        done = subprocess.run(
            [python, "-m", "slurm_share.spmd", places.DRIVER],
            cwd=folder,
            env=_environment(python),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            preexec_fn=_limit,
        )
        code, errors = done.returncode, done.stderr
        said = [done.stdout, *places.outputs(folder, example.program, ranks)]
    ran = judged(example, ranks, code, said, errors, time.monotonic() - began)
    ran.where = where
    return ran


def judged(example: Example, ranks: int, code: int, said: Sequence[str], errors: str, seconds: float) -> Ran:
    """Return the result of a run, from the output of its ranks."""
    success = sum(bool(re.search(r"^\s*SUCCESS\s*$", one, re.MULTILINE)) for one in said)
    trouble = [line for one in (*said, errors) for line in one.splitlines() if re.search(example.never_says, line)]
    check = ""
    if example.says is not None:
        check = "passed" if example.says in said[0] else "not passed"
        trouble += [] if check == "passed" else [f"rank 0 did not say: {example.says}"]
    if code:
        trouble.append(errors[-2000:])
    return Ran(ranks, code, success, round(seconds, 2), check, "", trouble)


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
        ran = run(example, where, max(count, 1), python, [str(RECORDER)])
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


def run_example(example: Example, checkout: Path, folder: Path, counts: Sequence[int], python: str) -> dict[str, Any]:
    """Run one program on each number of ranks; return its results."""
    print(example.folder, flush=True)
    edits = prepare(example, checkout, folder)
    wanted = ranks_of(example, places.LOCAL, counts)
    runs = []
    serial = compare(example, checkout, folder, wanted, python) if example.compared else {}
    for count in wanted:
        ran = run(example, folder, count, python)
        ran.serial = serial.get(count, "")
        runs.append(ran)
        show(ran)
    return written(example, edits, runs)


def show(ran: Ran) -> None:
    """Print one line on a run."""
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


def run_places(
    chosen: Sequence[Example],
    checkout: Path,
    folder: Path,
    wanted: Sequence[str],
    counts: Sequence[int],
    python: str,
) -> dict[str, tuple[list[str], list[Ran]]]:
    """Run programs in the other wanted places; return edits and runs by program."""
    found: dict[str, tuple[list[str], list[Ran]]] = {example.folder: ([], []) for example in chosen}
    on_cluster = set(PLACES["cluster"]) & set(wanted)
    with places.two_nodes(LIMIT_GIB) if on_cluster else nullcontext() as cluster:
        for where in (place for place in places.PLACES if place in wanted and place != places.LOCAL):
            nodes = cluster if where in on_cluster else None
            for example in chosen:
                print(example.folder, flush=True)
                for ranks in ranks_of(example, where, counts):
                    here = folder / example.folder / f"{where} {ranks}"
                    edits = prepare(example, checkout, here)
                    if where in (places.DRIVEN, places.NODES_DRIVEN):
                        more = places.edit_driver(here, where, ranks)
                        print("".join(f"  {edit}\n" for edit in more), end="", flush=True)
                        edits += more
                    ran = run_elsewhere(example, here, where, ranks, python, nodes)
                    show(ran)
                    found[example.folder][0].extend(f"{where}: {edit}" for edit in edits)
                    found[example.folder][1].append(ran)
    return found


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


def example_of(name: str) -> Example:
    """Return the example of a name."""
    return next(example for example in EXAMPLES if example.folder == name)


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
    """Run the examples and write the results; return 1 if one is not right."""
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
        programs = [
            run_example(one, asked.checkout, folder / one.folder, counts, asked.python)
            if places.LOCAL in wanted
            else written(one, [], [])
            for one in chosen
        ]
        elsewhere = run_places(chosen, asked.checkout, folder / "elsewhere", wanted, counts, asked.python)
    finally:
        shutil.rmtree(folder)
    for program in programs:
        edits, runs = elsewhere[program["name"]]
        more = written(example_of(program["name"]), edits, runs)
        program["edits"] += more["edits"]
        program["runs"] += more["runs"]
    right = [run["right"] for program in programs for run in program["runs"]]
    answer = {
        "bench": "ppython_examples",
        "date": time.strftime("%Y-%m-%d"),
        "machine": bench.machine(),
        "pPython": COMMIT,
        "versions": used,
        "memory_limit_gib": LIMIT_GIB,
        "programs": programs,
    }
    file = bench.RESULTS / "ppython_examples.json"
    if file.exists():
        answer["programs"] = with_others(programs, json.loads(file.read_text())["programs"])
    if not asked.show:
        file.write_text(json.dumps(answer, indent=2) + "\n")
    print(f"{sum(right)} of {len(right)} runs of {len(programs)} programs are right")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Run pPython's 13 example programs unchanged: python tests/bench/ppython_examples.py CHECKOUT [--ranks 1,2,4,8]

CHECKOUT is a clone of github.com/Accla/pPython; the programs are read from commit 59d3abd and compared with their
sha256. Python needs NumPy, SciPy, SymPy and Matplotlib for the programs. What is edited is printed: Beamformer gets its
small constants (as it comes it needs 57 GB), FFT and RandomAccess validate, HPL verifies. Each rank has a memory limit.

The results go to results/ppython_examples.json: how often each program said SUCCESS, what it said of its own checks,
and whether the arrays that it gathers are those of a serial run with all maps 1.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import bench

COMMIT = "59d3abd"
ROOT = Path(__file__).parents[2]
RECORDER = Path(__file__).parent / "ppython_recorder.py"
LIMIT_GIB = 6
PATIENCE_S = 900
FILES = {
    "AddOne": {
        "pAddOne.py": "e674a417e68226482c0b6ae7aa63ca2e7a77802250d9aa65d15cf93eec7bc752",
    },
    "Beamformer": {
        "beamformer_vectors.py": "eeaad5e3b8c5bf4a7c0c321a0678b72315a7dcf397de3334f02b49eb2ab9337e",
        "pBeamformer.py": "89e75c233185ac2611dc9bc648c3ac2673d97b0ca344dbbe1fbfa5795f9c9d3b",
    },
    "Blurimage": {
        "pBlurimage.py": "f7c6c5c38567e5e44b0092b211f700602ffa62e8050033809b782e8a1caf2bc2",
    },
    "FFT": {
        "pFFT.py": "cb16e8abc6303381210a80f9fc058a15ec07deaf0ed52e3fc3d4e95f51f908b7",
    },
    "HPL": {
        "pHPL.py": "e57f5fc13b0e1a6507ee8729d396cafebd82a065de9f9d448432a7b50e42e380",
        "pLUfactor.py": "054b7d523b666cf3febd24b1468c8120548b5a22865f9bdd2d5dde6704686200",
        "pLUsolve.py": "2e8807527855cb7d46d7c10070bde9475f5d4e11af74af2018c8d8bf7c910eb9",
    },
    "IO": {
        "matrix_util.py": "38cff2239054b78b48ca3dcd19cfcf1258cfcb618b7a4b3795dea6816785fc6c",
        "pIO.py": "7c73feb2146df51cf3cb90f8ef7927937a62c7fa19be3a3cb73c46e7d34fb78d",
    },
    "Mandelbrot": {
        "pMandelbrot.py": "5db547bbbc9014a89c08ca64a6167bb9a74733e05b1f66a39e87c68f87c7a7b1",
    },
    "Param_Sweep": {
        "param_sweep_parallel.py": "215360c962416974b574a8760d7c99732c02cdda21408b1efb702f9c5a3373b4",
        "sample_function.py": "4a54407b64b71fea9df8241da19889c1247079c9d0d653cbec055d5f381532f5",
    },
    "RandomAccess": {
        "RandomAccessRand.py": "2e9efbdd9c535af1232a3942804fa09f1d9cc776ef8bca3620252f06c9e34bc9",
        "RandomAccessStarts.py": "9012254688513537fa924200508b6b37c625d8c0d2f8ab23c4e91c13a826db7c",
        "pRandomAccess.py": "19baf5d17af03becef1c56a01371f26fc388a71c7ae29c40a434166c5993a9dd",
        "pRandomAccessSpray.py": "9ceea833614ecfc52a378c4c6172bd17b0e1bdb54c752b23144600cbcd010eff",
        "pRandomAccessTree.py": "ce9346d12b1d2b2be67d0ba766846ee1d70938dc6b8cb8767a94903dd39bc1c2",
    },
    "Speedtest": {
        "pSpeedtest.py": "5a90c4d3e10f0d25e9a7ea4f7344dcb53a1f5c02b57d7b22fe3d5b7befac3a5a",
    },
    "Stream": {
        "pStream.py": "f4932ce811f0d9053414fa78bd1623cdcc3a24c61dc62a2487e29fa6258b9acc",
    },
    "ZoomImage": {
        "pZoomImage.py": "fb59f84b39b178818825c14fb95ca30d0346a8850fd8bc5bae689e3a347816eb",
        "reference_frame.py": "6fd04142a32c58c888134cc5861a28775588ae071bb2866c5466ca3c4eabc518",
        "zoom_frames.py": "18e25cb22caf5e225206fef96ab1bc4a894ca29782a9acde2ca0422d81857d05",
    },
    "pBlurimage": {
        "pBlurimage.py": "8bcd38b6dc6824fdaaec8502850159c023d5cc2847a337aa6b3faae07bcaff76",
    },
}


@dataclass(frozen=True)
class Example:
    """One program and what tells that it did its work."""

    folder: str
    program: str
    edits: tuple[tuple[str, str], ...] = ()
    """File and expression of `sed -E`."""
    says: str | None = None
    """What rank 0 says when its own check has passed."""
    never_says: str = "Traceback|Failed|Failure|ERROR|WARNING"
    least_ranks: int = 1
    compared: tuple[str, ...] = ()
    """Edits that make it serial; its gathered arrays are compared then."""
    columns: tuple[int, ...] | None = None
    """Of the compared arrays: others depend on the number of ranks."""


_SERIAL = ("s/^PARALLEL = 1/PARALLEL = 0/",)
EXAMPLES = (
    Example("AddOne", "pAddOne.py"),
    Example(
        "Beamformer",
        "pBeamformer.py",
        (("pBeamformer.py", r"/^Nt = 600; Ns = 90;/d; /^Nt = int\(16\*Nt\);/d"),),
    ),
    Example("Blurimage", "pBlurimage.py"),
    Example("FFT", "pFFT.py", (("pFFT.py", "s/^VALIDATE = 0/VALIDATE = 1/"),), "Validation Passed"),
    Example("HPL", "pHPL.py", (("pHPL.py", "s/^VERIFY = 0/VERIFY = 1/"),), "Verification Passed"),
    Example("IO", "pIO.py"),
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
    ),
    Example("Speedtest", "pSpeedtest.py", least_ranks=2),
    Example("Stream", "pStream.py"),
    Example("ZoomImage", "pZoomImage.py", compared=_SERIAL),
    Example("pBlurimage", "pBlurimage.py", compared=_SERIAL),
)


@dataclass
class Ran:
    """How one run of a program ended."""

    ranks: int
    code: int
    success: int
    """Ranks that said SUCCESS."""
    seconds: float
    check: str
    """What the program said of its own check; empty: it has none."""
    serial: str
    """"equal", "differs" or empty: not compared."""
    trouble: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether all is as it must be."""
        return self.code == 0 and self.success == self.ranks and not self.trouble and self.serial != "differs"


def prepare(example: Example, checkout: Path, folder: Path) -> list[str]:
    """Copy a program's files, compare their sha256, edit them; return the edits as they were made."""
    folder.mkdir(parents=True)
    for name, expected in FILES[example.folder].items():
        source = f"{COMMIT}:examples/{example.folder}/{name}"
        data = subprocess.run(["git", "-C", str(checkout), "show", source], capture_output=True, check=True).stdout
        found = hashlib.sha256(data).hexdigest()
        if found != expected:
            raise SystemExit(f"{source} is another file than was run before: sha256 {found}, not {expected}")
        (folder / name).write_bytes(data)
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
    """Run a program on so many ranks of this machine, and count what they said."""
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
    seconds = time.monotonic() - began
    logs = Path(recorder[0]).stem if recorder else Path(example.program).stem
    said = [done.stdout] + [(folder / f"PythonMPI/{logs}.{rank}.out").read_text() for rank in range(1, ranks)]
    success = sum(bool(re.search(r"^\s*SUCCESS\s*$", one, re.MULTILINE)) for one in said)
    trouble = [line for one in (*said, done.stderr) for line in one.splitlines() if re.search(example.never_says, line)]
    check = ""
    if example.says is not None:
        check = "passed" if example.says in done.stdout else "not passed"
        trouble += [] if check == "passed" else [f"rank 0 did not say: {example.says}"]
    if done.returncode:
        trouble.append(done.stderr[-2000:])
    return Ran(ranks, done.returncode, success, round(seconds, 2), check, "", trouble)


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
    """Run one program on each number of ranks; return what is written about it."""
    print(example.folder, flush=True)
    edits = prepare(example, checkout, folder)
    wanted = [count for count in counts if count >= example.least_ranks]
    runs = []
    serial = compare(example, checkout, folder, wanted, python) if example.compared else {}
    for count in wanted:
        ran = run(example, folder, count, python)
        ran.serial = serial.get(count, "")
        runs.append(ran)
        words = [f"{ran.success} of {count} SUCCESS", f"check {ran.check}" * bool(ran.check)]
        words += [f"{ran.serial} to serial" * bool(ran.serial), f"{ran.seconds:.1f} s", *ran.trouble[:3]]
        print(f"  {count} ranks: " + ", ".join(word for word in words if word), flush=True)
    files = FILES[example.folder]
    return {
        "name": example.folder,
        "sha256": files,
        "edits": edits,
        "runs": [{**vars(one), "right": one.is_right} for one in runs],
    }


def main() -> int:
    """Run the examples and write the results; 1 where one is not right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, default=os.environ.get("PPYTHON_CHECKOUT"), nargs="?")
    parser.add_argument("--ranks", default="1,2,4,8")
    parser.add_argument("--only", default="")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--show", action="store_true", help="write no results")
    asked = parser.parse_args()
    if asked.checkout is None:
        raise SystemExit("which checkout of pPython? Give its path, or PPYTHON_CHECKOUT")
    chosen = [example for example in EXAMPLES if not asked.only or example.folder in asked.only.split(",")]
    counts = [int(count) for count in asked.ranks.split(",")]
    used = versions(asked.python)
    folder = Path(tempfile.mkdtemp(prefix="ppython-examples-"))
    try:
        programs = [run_example(one, asked.checkout, folder / one.folder, counts, asked.python) for one in chosen]
    finally:
        shutil.rmtree(folder)
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
    written = bench.RESULTS / "ppython_examples.json"
    if len(chosen) < len(EXAMPLES) and written.exists():  # the others' results stay
        before = {program["name"]: program for program in json.loads(written.read_text())["programs"]}
        before |= {program["name"]: program for program in programs}
        answer["programs"] = [before[one.folder] for one in EXAMPLES if one.folder in before]
    if not asked.show:
        written.write_text(json.dumps(answer, indent=2) + "\n")
    print(f"{sum(right)} of {len(right)} runs of {len(programs)} programs are right")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())

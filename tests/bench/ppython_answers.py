"""Compare arrays of pPython's own QA programs with ours: python tests/bench/ppython_answers.py CHECKOUT PYTHON

CHECKOUT is a clone of github.com/Accla/pPython at commit 59d3abd. PYTHON has pPython's requirements (NumPy 1.26, SciPy,
SymPy; some programs plot with Matplotlib). This Python, or that of --ours, runs our package. Each program runs
unchanged on 4 ranks of both, started by pRUN there and by `python -m slurm_share.spmd` here. One line before it seeds
NumPy by rank and records the results of `local`, `agg` and `agg_all`. The arrays are compared element by element:
shape, kind of number, and values within 1e-10.

If pPython stops or does not end, its message is printed and recorded, and the earlier arrays are compared. The results
go to results/ppython_answers.json. The exit code is 1 if an array differs or our run stops.
"""

from __future__ import annotations

import argparse
import hashlib
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import bench
import numpy as np
from spmd_peers import clean, end_session, ppython_settings, session

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COMMIT = "59d3abd"
RANKS = 4
PATIENCE_S = 60.0
"""pPython waits 359 s for a message of a rank that has stopped."""
FOLDERS = ("dmap", "dmat", "ppython", "pythonmpi")
LEFT_OUT = {
    "dmat/remap/RUN_on_src.py": "starts programs",
    "ppython/agg/test_agg_time.py": "prints timings",
    "ppython/gagg/qa_gagg.py": "needs D4M, which is not public",
}
SAID_OTHERWISE = {
    "dmat/equal/dmat_equal.py": "A == B has a truth value for each element; pPython's is any() of a rank's part"
}
"""Programs that use a behaviour that is different here, according to our documents."""
PRELUDE = "import ppython_prelude\n"
Records = list[list[tuple[str, Any]]]
"""Recorded arrays, by rank."""


@dataclass
class Compared:
    """Results of one program on both."""

    name: str
    sha256: str
    arrays: int = 0
    """Number of arrays that both recorded, of all ranks."""
    equal: int = 0
    differs: list[str] = field(default_factory=list)
    ppython_stops: str = ""
    """Message of a run that stopped; empty: it was complete on all ranks."""
    ours_stops: str = ""
    ours_alone: int = 0
    """Number of arrays that only our run recorded, because pPython had stopped."""

    @property
    def is_right(self) -> bool:
        """Whether nothing differs and our run was complete, or both stop for the same request."""
        return (not self.differs or self.name in SAID_OTHERWISE) and (not self.ours_stops or bool(self.ppython_stops))


def programs(tests: Path) -> list[str]:
    """Return the QA programs, relative to pPython's `test`."""
    found = [
        path.relative_to(tests).as_posix()
        for folder in FOLDERS
        for path in sorted((tests / folder).rglob("*.py"))
        if not path.is_symlink() and path.name != "qa_run_on_llsc.py"
    ]
    return [name for name in found if name not in LEFT_OUT]


def ppython_home(checkout: Path, python: Path, work: Path) -> Path:
    """Make a home folder with pPython's settings and its driver, and return it."""
    home = work / "home"
    ppython_settings(home, checkout, python, work)
    for module in ("dmat", "map"):  # some programs still use these names
        (home / f"ll_{module}.py").write_text(f"from pPython.{module} import *\n")
    (home / "RUN.py").write_text(f"import sys, pPython\nfrom pRUN import pRUN\npRUN(sys.argv[1], {RANKS}, {{}})\n")
    return home


def run(command: list[str], folder: Path, env: dict[str, str]) -> str:
    """Run a program; return why it stopped, empty if it did not."""
    log = folder / "log"
    with log.open("w") as output:
        # a separate session, because pPython leaves ranks behind if one of them stops
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=output, start_new_session=True)
        try:
            code: int | None = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = None
        if code == 0 and (folder / "PythonMPI").is_dir():
            wait_for_session(process.pid)
        end_session(process.pid)
    texts = [file.read_text(errors="replace") for file in (log, *sorted(folder.glob("PythonMPI/*.out")))]
    found = [error for text in texts for error in re.findall(r"^(?:\w+\.)*(\w*(?:Error|Exception)\b.*)", text, re.M)]
    if found:
        return str(found[0])
    return "" if code == 0 else f"did not end within {PATIENCE_S:.0f} s" if code is None else f"ended with {code}"


def wait_for_session(number: int) -> None:
    """Wait until all ranks have ended; rank 0 of pPython does not wait for the others."""
    until = time.monotonic() + PATIENCE_S / 2
    while session(number) and time.monotonic() < until:
        time.sleep(0.2)


def records(folder: Path) -> Records:
    """Return the arrays that the ranks recorded."""
    found: Records = []
    for rank in range(RANKS):
        mine: list[tuple[str, Any]] = []
        file = folder / f"{rank}.pickle"
        if file.exists():
            with file.open("rb") as stream:
                while True:
                    try:
                        mine.append(pickle.load(stream))
                    except (EOFError, pickle.UnpicklingError):  # the last record of a rank that was killed
                        break
        found.append(mine)
    return found


def difference(one: tuple[str, Any], other: tuple[str, Any]) -> str:
    """Return the difference of two answers; empty if they are equal."""
    (name, theirs), (our_name, ours) = one, other
    if name != our_name or theirs.shape != ours.shape:
        return f"{name} {theirs.shape} and {our_name} {ours.shape}"
    if theirs.dtype == object or ours.dtype == object:
        return "" if str(theirs) == str(ours) else f"{name}: {theirs} and {ours}"
    if theirs.dtype.kind != ours.dtype.kind:
        return f"{name}: {theirs.dtype} and {ours.dtype}"
    if not np.allclose(theirs, ours, rtol=1e-10, atol=1e-10, equal_nan=True):
        return f"{name}: {np.count_nonzero(~np.isclose(theirs, ours))} of {theirs.size} elements"
    return ""


def compare(name: str, tests: Path, work: Path, peer: tuple[list[str], dict[str, str]], python: str) -> Compared:
    """Run one program on both, and return the comparison."""
    program = Path(name).name
    ours = [python, "-m", "slurm_share.spmd", "-n", str(RANKS), program]
    done = Compared(name, hashlib.sha256((tests / name).read_bytes()).hexdigest())
    answers = []
    for who, command, env in (
        ("ppython", [*peer[0], program], peer[1]),
        ("ours", ours, {"PYTHONPATH": f"{ROOT}:{HERE}"}),
    ):
        folder = work / who / name.replace("/", "-")
        shutil.copytree((tests / name).parent, folder, ignore_dangling_symlinks=True)
        (folder / program).write_text(PRELUDE + (tests / name).read_text())
        kept = folder / "answers"
        kept.mkdir()
        env |= {"PPYTHON_ANSWERS": str(kept), "PPYTHON_ANSWERS_PROGRAM": program, "MPLBACKEND": "Agg"}
        why = run(command, folder, clean(QA_PARALLEL="1", **env))
        found = records(kept)
        if not why and not all((kept / f"{rank}.pickle").exists() for rank in range(RANKS)):
            why = "some ranks did not start"
        setattr(done, f"{who}_stops", why)
        answers.append(found)
    for rank, (theirs, mine) in enumerate(zip(*answers, strict=True)):
        pairs = [difference(*pair) for pair in zip(theirs, mine, strict=False)]
        done.arrays += len(pairs)
        done.equal += pairs.count("")
        done.differs += [f"rank {rank}, array {number}: {what}" for number, what in enumerate(pairs) if what]
        shorter_stops = done.ours_stops if len(theirs) > len(mine) else done.ppython_stops
        if len(theirs) != len(mine) and not shorter_stops:
            done.differs.append(f"rank {rank}: {len(theirs)} arrays and {len(mine)}")
        done.ours_alone += max(0, len(mine) - len(theirs))
    return done


def said(one: Compared) -> str:
    """Return one line about a program."""
    words = [f"{one.name}: {one.equal} of {one.arrays} arrays equal"]
    words += [f"pPython stops: {one.ppython_stops}" * bool(one.ppython_stops)]
    words += [f"OURS STOPS: {one.ours_stops}" * bool(one.ours_stops), *one.differs[:3]]
    return "; ".join(word for word in words if word)


def version(python: str) -> str:
    code = "import platform, numpy; print(f'Python {platform.python_version()}, NumPy {numpy.__version__}')"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("python", type=Path, help="a Python with the requirements of pPython")
    parser.add_argument("--only", default="", help="part of a program's name")
    parser.add_argument("--at-once", type=int, default=2, help="number of programs; pPython mostly waits")
    parser.add_argument("--show", action="store_true", help="write no results")
    parser.add_argument("--ours", default=sys.executable, metavar="PYTHON", help="Python of our package")
    asked = parser.parse_args()
    ours = shutil.which(asked.ours) or asked.ours
    with tempfile.TemporaryDirectory(prefix="ppython-answers-") as name:
        work = Path(name)
        files = subprocess.run(["git", "-C", asked.checkout, "archive", COMMIT, "test", "src"], stdout=-1, check=True)
        subprocess.run(["tar", "-x", "-C", work], input=files.stdout, check=True)
        home = ppython_home(work, asked.python.absolute(), work)
        env = {"HOME": str(home), "USER": "bench", "PYTHONPATH": f"{work / 'src'}:{home}:{HERE}"}
        command = [str(asked.python.absolute()), str(home / "RUN.py")]
        chosen = [one for one in programs(work / "test") if asked.only in one]
        found = []
        with ThreadPoolExecutor(asked.at_once) as pool:
            for one in pool.map(lambda one: compare(one, work / "test", work, (command, env), ours), chosen):
                print(said(one), flush=True)
                found.append(one)
    wrong = [one for one in found if not one.is_right]
    stopped = [one for one in found if one.ppython_stops]
    print(
        f"{len(found)} programs, {sum(one.equal for one in found)} of {sum(one.arrays for one in found)} arrays equal; "
        f"pPython stops in {len(stopped)}; {len(wrong)} are not right: {[one.name for one in wrong]}"
    )
    if not asked.show:
        bench.write(
            "ppython_answers",
            pPython=f"{COMMIT}, {version(str(asked.python))}",
            ours=version(ours),
            ranks=RANKS,
            left_out=LEFT_OUT,
            said_otherwise=SAID_OTHERWISE,
            programs=[{**asdict(one), "right": one.is_right} for one in found],
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

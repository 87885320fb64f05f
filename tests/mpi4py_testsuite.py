"""mpi4py's own tests against slurm_share.spmd.MPI: python tests/mpi4py_testsuite.py [--listed] [TEST...]

    TEST      a pattern such as 'test_p2p_obj*' or 'test_op.TestOp.testCreate'; without one: all that apply
    --listed  also tries the tests that are in tests/data/mpi4py_tests.toml, and names those that pass
    --sizes   numbers of ranks; default 1,2,4
    --from    a folder with mpi4py's sources; default: pip downloads those of the installed version

Its sources are under the BSD licence and never copied into this repository. Only here `mpi4py.MPI` stands for ours, in
the processes that run the tests. Every test that fails has to be in the list, with a reason, and every entry of the
list has to match a test. Ends with 0 if both hold.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import types
import unittest
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests/data/mpi4py_tests.toml"
LIMIT_S = 120.0
"""Seconds for one launch of ranks without a further result."""
STAND_INS = {"APPNUM": -1, "KEYVAL_INVALID": -1}
"""Answers that mpi4py's files need while they are imported: how the ranks were started."""
NO_TYPE = re.compile(r"(REAL|COMPLEX|INTEGER|LOGICAL|BFLOAT|FLOAT)\d+")
"""Datatypes that a library may lack: mpi4py's tests leave out those that are DATATYPE_NULL."""
_ABSENT = object()


# In the ranks


class Missing:
    """Stands for a name that our module lacks, so that a file of tests can be imported."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return Missing(f"{self._name}.{name}")

    def __call__(self, *_args: Any, **_options: Any) -> Any:
        raise AttributeError(f"slurm_share.spmd.MPI has no {self._name}")

    def __repr__(self) -> str:
        return f"<no {self._name}>"


class _Shim(types.ModuleType):
    """mpi4py.MPI as far as ours has it."""

    def __getattr__(self, name: str) -> Any:
        from slurm_share.spmd import MPI

        if name.startswith("__"):
            raise AttributeError(name)
        found = STAND_INS.get(name, getattr(MPI, name, _ABSENT))
        if found is _ABSENT and NO_TYPE.match(name) and hasattr(MPI, "DATATYPE_NULL"):
            found = MPI.DATATYPE_NULL
        if found is _ABSENT:
            found = Missing(name)
        setattr(self, name, found)
        return found


def install_shim() -> None:
    """Make `from mpi4py import MPI` import ours in this process."""
    package = types.ModuleType("mpi4py")
    package.__path__ = []  # type: ignore[attr-defined]
    package.__version__ = metadata.version("mpi4py")  # type: ignore[attr-defined]
    package.rc = types.SimpleNamespace(threads=True, thread_level="multiple", recv_mprobe=True)  # type: ignore[attr-defined]
    package.MPI = _Shim("mpi4py.MPI")  # type: ignore[attr-defined]
    package.get_config = dict  # type: ignore[attr-defined]
    sys.modules.update({"mpi4py": package, "mpi4py.MPI": package.MPI})
    for name in ("cupy", "numba", "dlpackimpl"):  # the last one makes arrays by ctypes that crash NumPy's from_dlpack
        sys.modules[name] = None  # type: ignore[assignment]


def cases(suite: unittest.TestSuite | unittest.TestCase) -> Iterator[unittest.TestCase]:
    if isinstance(suite, unittest.TestCase):
        yield suite
    else:
        for one in suite:
            yield from cases(one)


def rank_main(folder: Path, plan: Path, results: Path) -> None:
    """Run the tests of a plan in its order; append one line for each. End after the first one that fails."""
    sys.path.insert(0, str(folder))
    install_shim()
    import arrayimpl

    # the others are arrays in host memory that pretend to be in a GPU's
    arrayimpl.ArrayBackends[:] = [one for one in arrayimpl.ArrayBackends if "Fake" not in one.__name__]
    rank = os.environ.get("LLSUB_RANK", "0")
    with (results / f"{rank}.jsonl").open("a", buffering=1) as log:
        for name in json.loads(plan.read_text()):
            module, _, rest = name.partition(".")
            outcome = unittest.TestResult()
            try:
                unittest.defaultTestLoader.loadTestsFromName(rest, importlib.import_module(module)).run(outcome)
                bad = [text for _, text in (*outcome.errors, *outcome.failures)]
            except Exception as error:  # noqa: BLE001 - an import that fails is a test that fails
                bad = [repr(error)]
            skipped = [why for _, why in outcome.skipped]
            log.write(json.dumps([name, bad[0] if bad else "", skipped[0] if skipped and not bad else ""]) + "\n")
            if bad and os.environ.get("LLSUB_SIZE", "1") != "1":
                log.flush()
                os._exit(1)  # the other ranks may wait for this one in the same test


def names_in(folder: Path, files: Sequence[str]) -> list[str]:
    """Return the names of all tests in these files; a process of its own imports them."""
    program = (
        f"import json, sys, unittest; sys.path[:0] = [{str(ROOT / 'tests')!r}, {str(folder)!r}]\n"
        "import mpi4py_testsuite as here; here.install_shim(); found = []\n"
        "for name in sys.argv[1:]:\n"
        "    for case in here.cases(unittest.defaultTestLoader.loadTestsFromName(name)):\n"
        "        found.append(case.id())\n"
        "print(json.dumps(found))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *files], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"tests/mpi4py_testsuite.py: the tests cannot be imported: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


# In the command


def run(folder: Path, names: Sequence[str], size: int, work: Path) -> dict[str, str]:
    """Return the outcome of each test on that many ranks: "passed", "skipped: ...", or the error's text."""
    found: dict[str, str] = {}
    left = list(names)
    while left:
        with tempfile.TemporaryDirectory(dir=work) as made:
            plan, results = Path(made) / "plan.json", Path(made) / "results"
            results.mkdir()
            plan.write_text(json.dumps(left))
            said = _launch([str(folder), str(plan), str(results)], size, results)
            logs = [_log(results / f"{rank}.jsonl") for rank in range(size)]
        done = 0
        for name in left:
            outcomes = [log.get(name) for log in logs]
            bad = [f"rank {rank}: {outcome[0]}" for rank, outcome in enumerate(outcomes) if outcome and outcome[0]]
            done += 1
            if bad:
                # a rank that was told of another's end does not say why
                found[name] = next((one for one in bad if "PeerEnded" not in one and "RunEnded" not in one), bad[0])
                if size == 1:
                    continue
                break
            if None in outcomes:
                found[name] = f"no result; {said}"
                break
            skipped = [outcome[1] for outcome in outcomes if outcome and outcome[1]]
            found[name] = f"skipped: {skipped[0]}" if skipped else "passed"
        left = left[done:]
    return found


def _log(path: Path) -> dict[str, tuple[str, str]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {name: (bad, skipped) for name, bad, skipped in map(json.loads, lines)}


def _launch(words: Sequence[str], size: int, results: Path) -> str:
    """Run the ranks to their end, or until no result has come for a long time. Return the end of what they say."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LLSUB", "PMI", "SLURM"))}
    env |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    argv = [sys.executable, "-m", "slurm_share.spmd", "-n", str(size), __file__, "--rank", *words]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(argv, env=env, stdout=said, stderr=said)
        until, seen = time.monotonic() + LIMIT_S, -1
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
            now = sum(file.stat().st_size for file in results.iterdir())
            if now != seen:
                until, seen = time.monotonic() + LIMIT_S, now
        stopped = process.poll() is None
        process.terminate()
        process.wait(30)
        said.seek(0)
        return ("stopped, and was ended: " if stopped else "") + said.read()[-1500:]


def fetch(into: Path) -> Path:
    """Return the folder of the tests in the sources of the installed version of mpi4py."""
    version = metadata.version("mpi4py")
    asked = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "mpi4py", f"mpi4py=={version}"]
    done = subprocess.run(asked, cwd=into, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"tests/mpi4py_testsuite.py: pip cannot download mpi4py {version}: {done.stderr[-300:]}")
    with tarfile.open(next(into.glob("mpi4py-*.tar.gz"))) as sources:
        sources.extractall(into, filter="data")
    return into / f"mpi4py-{version}/test"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("tests", nargs="*")
    parser.add_argument("--listed", action="store_true")
    parser.add_argument("--sizes", type=lambda text: [int(word) for word in text.split(",")], default=[1, 2, 4])
    parser.add_argument("--from", dest="sources", type=Path)
    options = parser.parse_args()
    listed = tomllib.loads(LIST.read_text())
    patterns = {pattern: reason for reason, several in listed["reasons"].items() for pattern in several}
    with tempfile.TemporaryDirectory(prefix="mpi4py-tests-") as made:
        work = Path(made)
        folder = options.sources / "test" if options.sources else fetch(work)
        every = sorted(file.stem for file in folder.glob("test_*.py"))
        files = [name for name in every if name not in listed["files"]]
        unknown = sorted(set(listed["files"]) - set(every))
        names = names_in(folder, files)
        reasons = {name: _reason(name, patterns) for name in names}
        wrong = [f"entry without a test: {entry}" for entry in unknown]
        wrong += [f"entry without a test: {one}" for one in patterns if not fnmatch.filter(names, one)]
        wanted = [
            name
            for name in names
            if (options.listed or not reasons[name])
            and (not options.tests or any(fnmatch.fnmatchcase(name, one) for one in options.tests))
        ]
        counts: Counter[str] = Counter()
        passes: dict[str, list[int]] = {}
        for size in options.sizes:
            begin = time.monotonic()
            outcomes = run(folder, wanted, size, work)
            for name, outcome in outcomes.items():
                kind = outcome if outcome == "passed" else "skipped" if outcome.startswith("skipped: ") else "failed"
                if kind != "failed" and reasons[name]:
                    passes.setdefault(name, []).append(size)
                    kind = "passed, though listed"
                elif kind == "failed" and reasons[name]:
                    kind = "listed"
                elif kind == "failed":
                    wrong.append(f"{name} on {size} ranks")
                    print(f"FAILED on {size} ranks: {name}\n{outcome.rstrip()}\n", flush=True)
                counts[kind] += 1
            print(f"{size} ranks: {len(outcomes)} tests in {time.monotonic() - begin:.0f} s", flush=True)
    for name, sizes in passes.items():
        print(f"passes on {sizes} ranks, and is listed: {name}")
    print(", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    by_reason = Counter(reason for reason in reasons.values() if reason)
    print("; ".join(f"{reason}: {count} tests" for reason, count in sorted(by_reason.items())))
    print("\n".join(wrong) if wrong else "every test that applies passes")
    return 1 if wrong else 0


def _reason(name: str, patterns: dict[str, str]) -> str:
    return next((reason for pattern, reason in patterns.items() if fnmatch.fnmatchcase(name, pattern)), "")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(*map(Path, sys.argv[2:]))
    else:
        sys.exit(main())

"""Measure which modules the hooks load, and for how long: .venv/bin/python tests/bench/hook_imports.py [ROUNDS].

`--other TREE` compares with another checkout of slurm-share, `--called NAME` says what it is (88faa21): both trees take
turns, and the ratio is the median of the pairs'.

First each hook runs once, to see which modules it loads, also those inside functions: for an ordinary job, and for a
shared job whose GPUs a fake driver has and for which MPS is to be started (it fails, and the job goes on or is refused;
all that is needed for it is loaded by then). Then fresh interpreters, started as slurmd starts a hook without the
helper, import the same modules in the same order, with what they compiled before. Two figures are taken, both CPU time:
of the imports alone, and of the whole process with the interpreter's start and end, which is what a job pays. A hook
that the helper runs imports nothing.

As root: a Prolog gives files to the job's user.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench import Row, report

CHECKOUT = Path(__file__).resolve().parents[2]
ROUNDS = 60
BAR = 1.1
"""A ratio above it is more than noise."""
CASES = {
    "prolog": "ordinary job: Prolog",
    "epilog": "ordinary job: Epilog",
    "admission": "shared job with MPS: Prolog",
    "release": "shared job with MPS: Epilog",
}

# Runs in a tree: prints the modules that a hook loads, in order.
FIND = r"""
import importlib, json, os, sys
case, place = sys.argv[1:]
def first(*names):
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
    raise ModuleNotFoundError(names)
before = set(sys.modules)
# Before anything that keeps them is imported.
names = first("slurm_share.core.names", "slurm_share.names")
names.STATE_ROOT, names.CONFIG_FILE = place + "/state", place + "/config.toml"
if case in ("admission", "release"):
    from slurm_share.testing import FakeNvml
    # What the fake loads is no reason for a hook to load it.
    before = set(sys.modules)
    driver = first("slurm_share.node.gpus.driver", "slurm_share.node.driver")
    package, _, name = driver.__name__.rpartition(".")
    setattr(sys.modules[package], name, FakeNvml().gpu().gpu())
environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "2001", "SLURM_JOB_GID": "2001", "SLURMD_NODENAME": "n1",
           "SPANK_SHARE_GPU": "2", "SLURM_JOB_EXTRA": "slurm-share=on", "CUDA_VISIBLE_DEVICES": "0,1"}
try:
    importlib.import_module("slurm_share_hooks.program")
except ModuleNotFoundError:
    pass
if case in ("prolog", "epilog"):
    os.environ.clear()
    os.environ["SLURM_JOB_ID"] = "0"
    assert importlib.import_module("slurm_share_hooks." + case).main() == 0
else:
    importlib.import_module("slurm_share_hooks." + ("prolog" if case == "admission" else "epilog"))
    hook = first("slurm_share.share.hook", "slurm_share_hooks.hook")
    os.environ.update(environ)
    settings = hook.load_settings(decides=case == "admission")
    assert settings.mode == "on", settings
    call_off = hook.watch(case, 60.0, lambda in_driver: 1)
    Paths = first("slurm_share.core.paths", "slurm_share.paths").Paths
    from pathlib import Path
    root = Path(place)
    paths = Paths(root / "state", shm=root / "shm", tmp=root / "tmp", cgroup=root / "cgroup")
    act = first("slurm_share.share." + case, "slurm_share_hooks." + case)
    (act.admit_job if case == "admission" else act.release_job)(environ, paths, settings, 1000.0)
    assert (root / "state/jobs/7").exists() is (case == "admission")
    call_off()
print(json.dumps([name for name in sys.modules if name not in before]))
"""

# Imports modules in a fresh interpreter: prints the seconds, how many there are then, and how many of
# them are slurm-share's.
TIME = r"""
import sys
from time import process_time
wanted = sys.argv[1].split(",")
begin = process_time()
for name in wanted:
    __import__(name)
seconds = process_time() - begin
ours = [name for name in sys.modules if name.startswith("slurm_share")]
print(seconds, len(sys.modules), len(ours))
"""


@dataclass(frozen=True)
class Timed:
    """One fresh interpreter that imported a hook's modules."""

    import_ms: float
    whole_ms: float
    """Time of the process, in milliseconds."""
    modules: int
    """In it at the end."""
    ours: int
    """Those of slurm-share among them."""


class Tree:
    """A checkout whose hooks are looked at."""

    def __init__(self, checkout: Path, work: Path) -> None:
        self._site, self._work = work / "site", work
        self._site.mkdir(parents=True)
        for name, folder in (("slurm_share", "slurm_share"), ("slurm_share_hooks", "prolog")):
            (self._site / name).symlink_to(checkout.resolve() / folder)

    def _run(self, code: str, *words: str) -> str:
        packages = [path for path in sys.path if path.endswith("-packages")]
        argv = [sys.executable, "-IS", "-X", f"pycache_prefix={self._work}/compiled", "-c"]
        argv += [f"import sys; sys.path += {[str(self._site), *packages]!r}\n{code}", *words]
        done = subprocess.run(argv, env={}, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        return done.stdout

    def modules(self, case: str) -> list[str]:
        """The modules that a hook loads, in order."""
        place = self._work / case
        place.mkdir()
        (place / "config.toml").write_text(
            f'mode = "on"\nlog_file = "{place}/log"\nmps_control = "{place}/no-mps-control"\n'
            "hook_deadline_s = 300.0\nrelease_deadline_s = 300.0\n"  # a busy machine must not change what is loaded
        )
        (place / "no-mps-control").write_text("#!/bin/sh\nexit 1\n")
        (place / "no-mps-control").chmod(0o755)
        if case == "release":
            self._run(FIND, "admission", str(place))
        found: list[str] = json.loads(self._run(FIND, case, str(place)))
        return found

    def time(self, modules: list[str]) -> Timed:
        """Import them in a fresh interpreter."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds, count, ours = self._run(TIME, ",".join(modules)).split()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        whole_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Timed(1000 * float(seconds), 1000 * whole_s, int(count), int(ours))


def measure(trees: list[Tree], case: str, rounds: int) -> list[list[Timed]]:
    """For each tree the rounds of one kind of hook."""
    modules = [tree.modules(case) for tree in trees]
    for tree, wanted in zip(trees, modules, strict=True):
        tree.time(wanted)  # it compiles them
    found: list[list[Timed]] = [[] for _ in trees]
    for turn in range(rounds):
        places = range(len(trees))
        for place in places if turn % 2 else reversed(places):
            found[place].append(trees[place].time(modules[place]))
    return found


def rows_of(what: str, found: list[list[Timed]], called: str) -> list[Row]:
    """The figures of one kind of hook, and beside them the other tree's."""
    rows: list[Row] = []
    for number, rounds in enumerate(found):
        begin = what if number == 0 else f"  {called}"
        rows += [
            Row(f"{begin}: process", median([one.whole_ms for one in rounds]), "ms"),
            Row(f"{begin}: imports", median([one.import_ms for one in rounds]), "ms"),
            Row(f"{begin}: modules loaded, Python's own included", rounds[0].modules, ""),
            Row(f"{begin}: of them slurm-share's", rounds[0].ours, ""),
        ]
    if len(found) > 1:
        pairs = list(zip(*found, strict=True))
        whole = median([here.whole_ms / other.whole_ms for here, other in pairs])
        imports = median([here.import_ms / other.import_ms for here, other in pairs])
        rows += [
            Row(f"  process, ratio to {called}", whole, "", BAR),
            Row(f"  imports, ratio to {called}", imports, ""),
        ]
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="what a Prolog and an Epilog load, and how long that takes")
    parser.add_argument("rounds", nargs="?", type=int, default=ROUNDS)
    parser.add_argument("--other", type=Path, metavar="TREE", help="another checkout to compare with")
    parser.add_argument("--called", metavar="NAME", default="the other tree", help="what the other one is")
    parser.add_argument("--modules", action="store_true", help="only print the modules of each hook")
    asked = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        places = [CHECKOUT] if asked.other is None else [CHECKOUT, asked.other]
        trees = [Tree(place, Path(folder, str(number))) for number, place in enumerate(places)]
        for case, what in CASES.items():
            if asked.modules:
                print(f"{what}: {' '.join(trees[0].modules(case))}")
                continue
            rows += rows_of(what, measure(trees, case, asked.rounds), asked.called)
        if not asked.modules:
            psutil = [trees[0].time(["psutil"]).import_ms for _ in range(asked.rounds)]
            rows.append(Row("psutil, which no hook loads: imports", median(psutil), "ms"))
    return 0 if asked.modules or report("hook_imports", None, rows) else 1


if __name__ == "__main__":
    sys.exit(main())

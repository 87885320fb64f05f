"""Other ways to run a program of tests/bench/ppython_examples.py: through pPython's driver, or on two nodes.

A driver is the RUN.py of each example, started as `python -m slurm_share.spmd RUN.py`. Its number of ranks is edited,
and its `run_locally` for runs on this machine. The two nodes belong to a local cluster with a real Slurm (root), whose
users get NumPy, SciPy, SymPy and Matplotlib in their own Python.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localcluster import Cluster, paths, process
from localcluster.layers import download_argv
from localcluster.records import CURRENT

ROOT = Path(__file__).parents[2]
DRIVER = "RUN.py"
LIBRARIES = "numpy\nscipy\nsympy\nmatplotlib\n"
LOCAL, LAUNCHED, DRIVEN, NODES, NODES_DRIVEN = "local", "llsub --local", "pRUN", "two nodes", "two nodes, pRUN"
PLACES = (LOCAL, LAUNCHED, DRIVEN, NODES, NODES_DRIVEN)
USER = "alice"


def driver_edits(place: str, ranks: int) -> list[str]:
    """Return the `sed -E` expressions that set a driver's number of ranks and place."""
    if place == DRIVEN:
        return [f"s/^n_proc = 4$/n_proc = {ranks}/", "s/^run_locally = 0/run_locally = 1/"]
    return [rf"s/^n_proc_triples = \[1,4,12\]/n_proc_triples = [2,{ranks // 2},1]/"]


def edit_driver(folder: Path, place: str, ranks: int) -> list[str]:
    """Edit a driver; return the edits."""
    made = []
    for expression in driver_edits(place, ranks):
        before = (folder / DRIVER).read_text()
        subprocess.run(["sed", "-E", "-i", expression, str(folder / DRIVER)], check=True)
        if (folder / DRIVER).read_text() == before and f"n_proc = {ranks}" not in before:
            raise SystemExit(f"{folder / DRIVER}: sed -E '{expression}' changed nothing")
        made.append(f"sed -E -i '{expression}' {DRIVER}")
    return made


def outputs(folder: Path, program: str, ranks: int) -> list[str]:
    """Return the output of ranks 1 and up, from the place where a driver leaves it."""
    files = [folder / f"PythonMPI/{Path(program).stem}.{rank}.out" for rank in range(1, ranks)]
    return [file.read_text() if file.exists() else "" for file in files]


def logs(folder: Path, program: str, ranks: int) -> tuple[list[str], set[str]]:
    """Return what each rank printed in a run of llsub, and the folders of its nodes."""
    found = {int(log.suffix[1:]): log for log in folder.glob(f"LLSUB.*/p*/{program}.log.*")}
    said = [found[rank].read_text(errors="replace") if rank in found else "" for rank in range(ranks)]
    return said, {log.parent.name for log in found.values()}


class TwoNodes:
    """A cluster with two nodes for programs."""

    def __init__(self, cluster: Cluster, limit_gib: int) -> None:
        self.cluster = cluster
        self.said = f"Slurm {cluster.slurm_version}, Python {cluster.root_facts.python_version}"
        self._limit_kib = limit_gib << 20

    def run(self, folder: Path, program: str, ranks: int, place: str, patience_s: float) -> tuple[int, list[str], str]:
        """Run a program; return the exit code, the output of each rank, and that of the command."""
        home = f"/home/{USER}/{folder.parent.name}-{folder.name}".replace(" ", "-").replace(",", "")
        there = self.cluster.home / USER / Path(home).name
        shutil.copytree(folder, there)
        self.cluster.exec("login", ["chown", "-R", USER, home], check=True)
        command = f"llsub --spmd {program} '[2,{ranks // 2},1]' --wait"
        if place == NODES_DRIVEN:
            command = f"GRID_TARGET=grid python3 -m slurm_share.spmd {DRIVER}"
        # Slurm gives the limit to the ranks too.
        shell = f"cd {home} && ulimit -v {self._limit_kib} && MPLBACKEND=Agg OPENBLAS_NUM_THREADS=1 {command}"
        done = self.cluster.as_user(USER, shell, timeout=patience_s)
        said, places = logs(there, program, ranks)
        if done.returncode == 0 and len(places) != 2:
            raise SystemExit(f"{program} was to run on two nodes, and its logs are in {sorted(places)}")
        if place == NODES_DRIVEN:
            said = [done.stdout, *outputs(there, program, ranks)]  # what the driver shows and leaves, as on one machine
        return done.returncode, said, done.stderr


@contextmanager
def two_nodes(limit_gib: int) -> Iterator[TwoNodes]:
    """Start the cluster, with all libraries that the programs import."""
    with Cluster.up("examples", CURRENT, nodes=2) as made:
        version = made.root_facts.python_version
        packages = made.home / USER / ".local/lib" / f"python{version}/site-packages"
        packages.mkdir(parents=True)
        for wheel in _wheels(version):
            zipfile.ZipFile(wheel).extractall(packages)
        shutil.copytree(ROOT / "slurm_share", packages / "slurm_share", ignore=shutil.ignore_patterns("__pycache__"))
        made.exec("login", ["chown", "-R", USER, f"/home/{USER}/.local"], check=True)
        yield TwoNodes(made, limit_gib)


def _wheels(version: str) -> list[Path]:
    folder = paths.cache() / f"examples-{version}"
    if not list(folder.glob("matplotlib*.whl")):
        folder.mkdir(parents=True, exist_ok=True)
        wanted = folder / "wanted.txt"
        wanted.write_text(LIBRARIES)
        process.run(download_argv(sys.executable, version, "x86_64", folder, [wanted]))
    return list(folder.glob("*.whl"))

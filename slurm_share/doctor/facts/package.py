"""Whether our Python modules can be imported here, and whether Slurm's programs can load the plugin's object.

Both are tried in separate processes, so that a crash does not end doctor.
"""

from __future__ import annotations

import grp
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ...core.errors import CommandError
from ...core.process import Finished, finish
from ...slurm import plugin_load
from .records import AS_USER, Role, UnknownFact

IMPORT_S = 30.0
_MODULES = """
import importlib, importlib.util, json, pkgutil, sys
sys.path[:] = json.loads(sys.argv[1])
def load(name):
    print(name, flush=True)
    try:
        importlib.import_module(name)
    except BaseException as error:
        print("\\t", type(error).__name__, ": ", " ".join(str(error).split()), sep="", flush=True)
def below(name):
    try:
        found = importlib.util.find_spec(name)
    except BaseException:
        return  # it is broken itself, and has been tried
    if name == "slurm_share.spmd":  # it lives in the users' Python, with NumPy; hosts have it for the launcher
        load(name + ".wire")
        return
    if name == "slurm_share.integrations":  # each needs its tool, which is in the Python of those who use it
        return
    for one in pkgutil.iter_modules(found.submodule_search_locations if found else ()):
        load(name + "." + one.name)
        if one.ispkg:
            below(name + "." + one.name)
for name in "ClusterShell.NodeSet msgspec h11 httpx prometheus_client psutil pynvml rich".split():
    load(name)
tops = ["slurm_share", "slurm_share_hooks"]
if importlib.util.find_spec("textual") is not None:  # the dashboard's is left out where a site does not want it
    tops.append("slurm_share_tui")
for name in tops:
    load(name)
    below(name)
"""
"""Prints each module before it is imported, and after a tab the error if it cannot be."""
PROGRAMS: tuple[tuple[str, Sequence[Role]], ...] = (
    ("srun", ("controller", "login", "compute")), ("sbatch", ("controller", "login", "compute")),
    ("salloc", ("controller", "login", "compute")), ("slurmd", ("compute",)), ("slurmstepd", ("compute",)),
)  # fmt: skip
"""Slurm's programs that load SPANK plugins, and the hosts on which they are needed."""
OF_USERS = ("srun", "sbatch", "salloc")
"""Those of them that users start."""


def read_broken_modules() -> tuple[tuple[str, str], ...] | UnknownFact:
    """Return (module, error) of each module that cannot be imported."""
    if not sys.executable:
        return UnknownFact("Python does not say where it is")
    paths = [one for one in sys.path if one]
    try:
        done = finish([sys.executable, "-IB", "-c", _MODULES, json.dumps(paths)], timeout_s=IMPORT_S)
    except CommandError as error:
        return UnknownFact(str(error))
    return parse_modules(done)


def parse_modules(done: Finished) -> tuple[tuple[str, str], ...]:
    """Parse the output of the process that imported the modules; the last module may have ended it."""
    found: list[tuple[str, str]] = []
    name = ""
    for line in done.stdout.splitlines():
        if line.startswith("\t"):
            found.append((name, line.strip()))
        else:
            name = line
    if done.code:
        last = (done.stderr.strip().splitlines() or [f"Python ended with {done.code}"])[-1]
        found.append((name or "Python", f"ended by signal {-done.code}" if done.code < 0 else last))
    return tuple(found)


def read_load_problems(
    paths: Sequence[str], roles: Sequence[Role], folders: Sequence[str]
) -> tuple[tuple[str, str], ...] | UnknownFact:
    """Return (program, error) of each Slurm program in `folders` that does not load one of the objects.

    Each is tried as the caller and, if that is root, as an ordinary user, if users start the program.
    """
    if any(re.search(r"[\s:]", path) for path in paths):
        return UnknownFact("a path with blanks or colons is not tried")
    wanted = [name for name, of in PROGRAMS if set(of) & set(roles)]
    found = [program for name in wanted if (program := shutil.which(name, path=":".join(folders)))]
    if not found:
        return UnknownFact("none of Slurm's programs that load plugins was found here")
    with tempfile.TemporaryDirectory(prefix="slurm-share-") as folder, ThreadPoolExecutor() as pool:
        conf = plugin_load.write_conf(folder)
        tries = [(program, path) for path in dict.fromkeys(paths) for program in found]
        problems = list(pool.map(lambda one: _problem(one[0], one[1], conf), tries))
    return tuple((_named(one, paths), why) for one, why in zip(tries, problems, strict=True) if why)


def _problem(program: str, path: str, conf: str) -> str:
    if why := plugin_load.read_problem(program, path, conf):
        return why
    if os.geteuid() != 0 or os.path.basename(program) not in OF_USERS:  # noqa: PTH119
        return ""
    why = plugin_load.read_problem(program, path, conf, plugin_load.NOBODY)
    return why and f"{AS_USER}: {why}"


def _named(tried: tuple[str, str], paths: Sequence[str]) -> str:
    """Return a program's name, with the object if plugstack.conf names several."""
    program, path = tried
    name = os.path.basename(program)  # noqa: PTH119
    return name if len(set(paths)) == 1 else f"{name} ({path})"


def has_group(name: str) -> bool | UnknownFact:
    """Return whether this host knows a group, from any name service; False for an empty name."""
    try:
        return not name or bool(grp.getgrnam(name))
    except KeyError:
        return False

"""The tools of slurm_share/integrations, from PyPI, for the users of a cluster: fetched once, kept in the cache."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
from users_python import ROOT

from localcluster import Cluster, locks, paths, process
from localcluster.errors import ClusterError
from localcluster.layers import download_argv

NEWEST = os.environ.get("SLURM_SHARE_TOOLS") == "newest"
"""Whether to test the newest releases, fetched now, instead of those below."""
TOOLS = {
    # Hydra 1.3 does not start on Python 3.14 ("badly formed help string"), which hosts of the local cluster have.
    "calls": ["hydra-core==1.4.0rc3", "joblib==1.6.0", "submitit==1.5.4", "cloudpickle==3.1.3"],
    "snakemake": ["snakemake==9.27.1", "snakemake-executor-plugin-slurm==2.8.0", "cloudpickle==3.1.3"],
    "parsl": ["parsl==2026.10.26"],
    "dask": ["dask-jobqueue==0.9.0"],
    "reportseff": ["reportseff==2.10.3", "click==8.5.1"],
    "optuna": ["optuna==5.0.0", "cloudpickle==3.1.3"],
    "scikit-learn": ["scikit-learn", "joblib==1.6.0", "cloudpickle==3.1.3"],
}
SOURCES = {"snakemake": ["connection_pool==0.0.3"]}
"""Pure Python that is published as source only."""
WITHOUT_C = {"snakemake": ["immutables==0.21"]}
"""Published without a wheel for the hosts' Python, and works without its module in C."""


def give_or_skip(cluster: Cluster, user: str, tool: str) -> str:
    """Put a tool and our package into ~/tools/TOOL; return the shell line that lets a user's programs find them.

    The test is skipped, aloud, where the packages cannot be had.
    """
    version = cluster.root_facts.python_version
    home = cluster.home / user / "tools" / tool
    line = f"export PYTHONPATH=$HOME/tools/{tool} PATH=$HOME/tools/{tool}/bin:$PATH PYTHONDONTWRITEBYTECODE=1\n"
    if home.exists():
        return line
    try:
        wheels = wheels_of(tool, version)
    except ClusterError as error:
        pytest.skip(f"NOT TESTED: {tool} cannot be had for Python {version} ({error})")
    for wheel in wheels:
        zipfile.ZipFile(wheel).extractall(home)
    (home / "bin").mkdir()
    for script in home.glob("*.data/scripts/*"):
        text = script.read_bytes()
        (home / "bin" / script.name).write_bytes(re.sub(rb"^#!.*", b"#!/usr/bin/python3", text, count=1))
        (home / "bin" / script.name).chmod(0o755)
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "slurm_share", home / "slurm_share", ignore=unwanted)
    for found in (ROOT / "slurm_share/integrations/discovered").iterdir():
        shutil.copytree(found, home / found.name, ignore=unwanted)
    cluster.exec("login", ["chown", "-R", user, f"/home/{user}/tools"], check=True)
    return line


def wheels_of(tool: str, version: str) -> list[Path]:
    """Fetch a tool and what it needs, once, or once a day for the newest. Raises ClusterError."""
    folder = paths.cache() / f"tools-{tool}{'-newest' if NEWEST else ''}-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    kept, part = folder / "wheels", folder / "part"
    wanted = [re.sub("==.*", "", one) if NEWEST else one for one in TOOLS[tool]]
    recipe = "\n".join([*wanted, *SOURCES.get(tool, []), *WITHOUT_C.get(tool, [])]) + "\n"
    with locks.waiting(folder / ".lock"):
        is_old = NEWEST and kept.exists() and time.time() - kept.stat().st_mtime > 86400
        if is_old or not (kept / "recipe").exists() or (kept / "recipe").read_text() != recipe:
            for old in (kept, part):
                shutil.rmtree(old, ignore_errors=True)
            part.mkdir()
            for source in SOURCES.get(tool, []):
                make_wheel(source, part)
            for package in WITHOUT_C.get(tool, []):
                make_wheel(str(without_c(package, part)), part)
            (part / "wanted.txt").write_text("\n".join(wanted) + "\n")
            process.run(download_argv(sys.executable, version, platform.machine(), part, [part / "wanted.txt"]))
            (part / "recipe").write_text(recipe)
            part.rename(kept)
    return sorted(kept.glob("*.whl"))


def make_wheel(source: str, into: Path) -> None:
    """Build a wheel of pure Python."""
    process.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(into), source])


def without_c(package: str, into: Path) -> Path:
    """Fetch the source of a package, and return its folder, in which setup.py builds no module in C."""
    fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "--dest", str(into)]
    process.run([*fetch, package])
    (archive,) = into.glob(f"{package.partition('==')[0]}*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(into, filter="data")
    folder = into / archive.name.removesuffix(".tar.gz")
    setup = folder / "setup.py"
    setup.write_text(re.sub(r"ext_modules = \[$", "ext_modules = [] and [", setup.read_text(), flags=re.MULTILINE))
    return folder

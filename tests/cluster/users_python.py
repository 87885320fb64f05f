"""What users of a local cluster have in their own Python: packages from PyPI, and ours."""

from __future__ import annotations

import platform
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from localcluster import Cluster, locks, paths, process
from localcluster.errors import ClusterError
from localcluster.layers import download_argv

ROOT = Path(__file__).parents[2]


def wheels_of(name: str, version: str) -> list[Path]:
    """Fetch a package for the Python of the cluster's users, once. Raises ClusterError."""
    folder = paths.cache() / f"{name}-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    with locks.waiting(folder / ".lock"):
        if not list(folder.glob("*.whl")):
            wanted = folder / f"{name}.txt"
            wanted.write_text(f"{name}\n")
            process.run(download_argv(sys.executable, version, platform.machine(), folder, [wanted]))
    return list(folder.glob("*.whl"))


def give(cluster: Cluster, user: str, *packages: str) -> None:
    """Put our package and others into a user's Python, as `pip install --user` does. Raises ClusterError."""
    version = cluster.root_facts.python_version
    home = cluster.home / user / ".local/lib" / f"python{version}" / "site-packages"
    home.mkdir(parents=True, exist_ok=True)
    for name in packages:
        for wheel in wheels_of(name, version):
            zipfile.ZipFile(wheel).extractall(home)
    ours = home / "slurm_share"
    shutil.rmtree(ours, ignore_errors=True)
    shutil.copytree(ROOT / "slurm_share", ours, ignore=shutil.ignore_patterns("__pycache__"))
    cluster.exec("login", ["chown", "-R", user, f"/home/{user}/.local"], check=True)


def give_or_skip(cluster: Cluster, user: str, *packages: str) -> None:
    """Do the same in a test, which is skipped, aloud, where a package cannot be had."""
    try:
        give(cluster, user, *packages)
    except ClusterError as error:
        version = cluster.root_facts.python_version
        pytest.skip(f"NOT TESTED: there is no {', '.join(packages)} for Python {version} ({error})")

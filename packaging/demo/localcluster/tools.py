"""Programs that the machine needs: missing ones are installed with apt and reported."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from . import process
from .errors import ClusterError, CommandFailed, Misuse
from .progress import stage

_RUN_TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux", "ip": "iproute2"}
_DEMO_TOOLS = {"column": "bsdextrautils"}
"""packaging/demo.sh prints its tables with it; it brings a cluster up first, which installs it."""
_BUILD_TOOLS = {"debootstrap": "debootstrap"}
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
"""Keys that verify a Debian mirror's files."""
_MIRROR_VARIABLE = "SLURM_SHARE_DEBIAN_MIRROR"
"""Variable that names a Debian mirror, for a machine whose apt names none (an Ubuntu host)."""


def require_root() -> None:
    """Raise Misuse unless this process may make namespaces and mounts."""
    if os.geteuid() != 0:
        raise Misuse("a local cluster needs namespaces and mounts, hence root; run this with sudo")


def need_run_tools() -> None:
    """Install missing programs that a running cluster and its demonstration need."""
    _need({**_RUN_TOOLS, **_DEMO_TOOLS})


def need_build_tools() -> None:
    """Install missing programs that make a root file system."""
    _need({**_RUN_TOOLS, **_BUILD_TOOLS})
    if not KEYRING.exists():
        _install(["debian-archive-keyring"])


def debian_mirror() -> str:
    """Return the mirror named in the environment, else the one that the machine's apt uses for Debian. Raises Misuse if
    there is none."""
    if os.environ.get(_MIRROR_VARIABLE):
        return os.environ[_MIRROR_VARIABLE]
    done = process.run(["apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)"], check=False)
    mirror = parse_mirror(done.stdout) or _configured_mirror()
    if mirror is None:
        raise Misuse(f"apt on this machine names no Debian mirror; name one in {_MIRROR_VARIABLE} and try again")
    return mirror


def parse_mirror(indextargets: str) -> str | None:
    """Return the first Debian repository (no security, no third party) in the output of apt-get indextargets."""
    for line in indextargets.splitlines():
        origin, _, rest = line.partition("|")
        label, _, uri = rest.partition("|")
        if origin == label == "Debian":
            return uri
    return None


def python_with_pip(tools_dir: Path) -> str:
    """Return a Python interpreter of this machine that has pip; if there is none, make a venv in the cache."""
    own = tools_dir / "pip" / "bin" / "python3"
    for candidate in (sys.executable, shutil.which("python3") or "", "/usr/bin/python3", str(own)):
        if candidate and _has_pip(candidate):
            return candidate
    if process.run(["/usr/bin/python3", "-c", "import ensurepip"], check=False).returncode != 0:
        _install(["python3-venv"])
    process.run(["/usr/bin/python3", "-m", "venv", "--clear", str(own.parents[1])])
    return str(own)


def _configured_mirror() -> str | None:
    """Return the mirror from apt's sources, for a machine whose apt has fetched no list yet."""
    folder = Path("/etc/apt")
    files = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*debian*"))]
    words = [line.split() for file in files if file.is_file() for line in file.read_text(errors="replace").splitlines()]
    named = [line for line in words if len(line) > 1 and line[0] in ("URIs:", "deb")]
    uris = [next((word for word in line[1:] if "://" in word), "") for line in named]
    return next((uri for uri in uris if uri and "security" not in uri), None)


def _has_pip(python: str) -> bool:
    return process.run([python, "-m", "pip", "--version"], check=False).returncode == 0


def _need(programs: dict[str, str]) -> None:
    path = f"{os.environ.get('PATH', '')}:{process.OUTSIDE_PATH}"
    missing = sorted({package for program, package in programs.items() if not shutil.which(program, path=path)})
    if missing:
        _install(missing)


def _install(packages: list[str]) -> None:
    names = " ".join(packages)
    if not shutil.which("apt-get", path=process.OUTSIDE_PATH):
        raise Misuse(f"this machine lacks {names} and has no apt-get to install it; install it and try again")
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    with stage(f"installing {names} on this machine with apt-get"):
        if process.run(install, check=False).returncode == 0:
            return
        process.run(["apt-get", "update", "-qq"], check=False)
        try:
            process.run(install)
        except CommandFailed as error:
            raise ClusterError(f"cannot install {names}, which a local cluster needs: {error}") from error

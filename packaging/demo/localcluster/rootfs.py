"""Root file systems: Debian with Slurm, built once per release and kept; complete or absent."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from . import locks, paths, process, tools
from .errors import ClusterError, Misuse
from .progress import say, stage
from .records import CURRENT, RELEASES, STABLE, USERS, Release, Root

PACKAGES = (
    *("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge", "iproute2", "procps"),
    # our plugin is compiled with this root's headers, our Python runs on its Python
    *("gcc", "libc6-dev", "make", "libslurm-dev", "python3-venv"),
)
_APT_CONF = """\
APT::Install-Recommends "false";
Acquire::Languages "none";
Acquire::Check-Valid-Until "false";
Acquire::Check-Date "false";
"""
"""A mirror that lags behind serves a testing suite after its Valid-Until."""
_POLICY = "#!/bin/sh\nexit 101\n"
"""policy-rc.d: no package starts a daemon (invoke-rc.d(8), 101: action forbidden by policy)."""
_PROXY_SETTINGS = ("http_proxy", "https_proxy", "no_proxy")
_INSTALL = """\
set -e
apt-get update -qq
apt-get install -y -qq --no-install-recommends "$@"
apt-get clean
rm -rf /var/lib/apt/lists/*
[ -s /etc/munge/munge.key ] || { dd if=/dev/urandom of=/etc/munge/munge.key bs=1024 count=1 status=none
    chown munge: /etc/munge/munge.key; chmod 400 /etc/munge/munge.key; }
mkdir -p /etc/slurm /etc/slurm-share
"""


def root_for(release: str) -> Root:
    """Return the root of `release`; if the current release cannot be built now, report it and return the stable one.

    Raises KeyError for an unknown release, ClusterError if none can be built.
    """
    try:
        return root_of(RELEASES[release])
    except Misuse:
        raise
    except ClusterError as error:
        if release != CURRENT:
            raise
        say(f"Slurm {CURRENT} cannot be made today ({error}); THIS CLUSTER RUNS SLURM {STABLE} INSTEAD")
        return root_of(RELEASES[STABLE])


def parse_version(text: str) -> str:
    """Parse `slurm-wlm 26.05.5` into `26.05.5`; raises ClusterError if there is no version in it."""
    found = re.search(r"\b(\d+\.\d+(?:\.\d+)*)", text)
    if not found:
        raise ClusterError(f"slurmctld -V said {text.strip()!r}, which names no version")
    return found[1]


def accepts(release: Release, version: str) -> bool:
    """Return whether a Slurm of this version may run under the name of this release."""
    major, minor = (int(word) for word in version.split(".")[:2])
    return release.at_least <= (major, minor) and (release.below is None or (major, minor) < release.below)


def root_of(release: Release) -> Root:
    """Return the root of a release, from the cache or made now. Raises ClusterError."""
    home = paths.cache() / f"root-{release.name}-{_recipe_key(release)}"
    if not home.exists():
        with locks.waiting(paths.cache() / f"root-{release.name}.lock"):
            locks.made_once(home, partial(_make, release), kind=f"root-{release.name}-")
    return _read(release, home)


def _recipe_key(release: Release) -> str:
    """Return a key that changes with the content of a root, so that an outdated root is not used."""
    recipe = json.dumps([release.suite, PACKAGES, _APT_CONF, _INSTALL, [(user.name, user.uid) for user in USERS]])
    return hashlib.sha256(recipe.encode()).hexdigest()[:8]


def _read(release: Release, home: Path) -> Root:
    try:
        facts = json.loads((home / "facts.json").read_text())
        return Root(release.name, facts["slurm"], facts["python"], str(home / "root"))
    except (OSError, ValueError, KeyError) as error:
        raise Misuse(f"the cached root {home} is damaged ({error}); delete that folder and try again") from error


def _make(release: Release, making: Path) -> None:
    tools.need_build_tools()
    root = making / "root"
    mirror = tools.debian_mirror()
    with stage(f"Debian {release.suite} from {mirror}"):
        process.run(process.bound_to_us(debootstrap_argv(release, root, mirror)))
    _prepare_apt(root)
    with stage("Slurm, munge, compiler, Python"):
        inside(root, ["/bin/sh", "-c", _INSTALL, "sh", *PACKAGES], mirror=mirror)
    for user in USERS:
        folder = f"/home/{user.name}"
        inside(root, ["useradd", "-M", "-d", folder, "-s", "/bin/bash", "-u", str(user.uid), user.name])
    facts = _facts(root)
    if not accepts(release, facts["slurm"]):
        raise ClusterError(f"Debian {release.suite} carries Slurm {facts['slurm']} today, not {release.name}")
    (making / "facts.json").write_text(json.dumps(facts))


def debootstrap_argv(release: Release, root: Path, mirror: str) -> list[str]:
    """Return the debootstrap command for a release."""
    scripts = Path("/usr/share/debootstrap/scripts")
    # an older debootstrap does not know the newest suite; sid's script builds any of them
    script = scripts / (release.suite if (scripts / release.suite).exists() else "sid")
    argv = ["debootstrap", "--variant=minbase", f"--keyring={tools.KEYRING}"]
    if mirror.startswith("https:"):
        argv.append("--include=ca-certificates")
    return [*argv, release.suite, str(root), mirror, str(script)]


def inside(
    root: Path,
    argv: Sequence[str],
    *,
    layer: Path | None = None,
    lower: str = "",
    source: Path | None = None,
    mirror: str = "",
) -> str:
    """Run a program in a root file system and return its output.

    Without `layer` the root itself changes. With it, what the program writes goes to `layer`/upper, over the lower
    layers `lower`. `source` is mounted on /mnt. `mirror` is given if the program downloads from one.
    """
    upper = merged = work = ""
    if layer is not None:
        for part in ("upper", "work", "merged"):
            (layer / part).mkdir(exist_ok=True)
        upper, work, merged = (str(layer / part) for part in ("upper", "work", "merged"))
    script = [str(paths.HERE / "in-root"), lower or str(root), upper, work, merged, str(source or "")]
    return process.run(process.bound_to_us([*script, *argv]), env=_inside_env(mirror)).stdout


def _inside_env(mirror: str) -> dict[str, str]:
    env = {"PATH": process.OUTSIDE_PATH, "LC_ALL": "C.UTF-8", "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive"}
    if mirror:
        env |= {key: value for key, value in os.environ.items() if key.lower() in _PROXY_SETTINGS}
    return env


def _prepare_apt(root: Path) -> None:
    (root / "etc/apt/apt.conf.d/99local").write_text(_APT_CONF)
    (root / "etc/dpkg/dpkg.cfg.d/99local").write_text("force-unsafe-io\n")
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text(_POLICY)
    policy.chmod(0o755)
    bundle = Path("/etc/ssl/certs/ca-certificates.crt")
    if bundle.exists() and (root / "etc/ssl/certs").is_dir():
        # a mirror over https may use the certificate authority of an organisation
        shutil.copyfile(bundle, root / "etc/ssl/certs/ca-certificates.crt")


def _facts(root: Path) -> dict[str, str]:
    python = inside(root, ["python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()
    return {"slurm": parse_version(inside(root, ["slurmctld", "-V"])), "python": python}

"""Install our software as a site does, in layers over a root: third-party packages, then the checkout.

The database for accounting, Prometheus and sackd are optional layers.

Each layer is a folder that overlayfs puts over the root, named by a hash of its inputs: an unchanged checkout is only
scanned, a changed one is installed in seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import time
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from . import conf, locks, paths, process, pyslurm, rootfs, tools
from .errors import ClusterError, CommandFailed, Misuse
from .progress import stage
from .records import PARTS, Root

_SOURCES = {
    "python": ("pyproject.toml", "README.md", "packaging/LICENSE", "slurm_share", "prolog", "plugins", "tui"),
    "plugin": ("plugins",),
    "simgpu": ("packaging/demo/simgpu",),
}
_MUST_EXIST = {
    "python": ("pyproject.toml", "slurm_share", "prolog"),
    "plugin": ("plugins/Makefile", "plugins/job_submit.lua"),
    "simgpu": ("packaging/demo/simgpu/Makefile",),
}
_NOT_SOURCE = ("__pycache__", "build", "dist", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache")
_NOT_SOURCE_ENDINGS = (".o", ".so", ".pyc", ".egg-info", ".swp", "~")
_PREFIX = "/opt/slurm-share"
_BUILD_PREFIX = "/opt/slurm-share-build"
"""The build backend, kept apart from a site's packages."""
_SCREEN_PREFIX = "/opt/slurm-share-tui"
"""A second installation with the extra `tui`: msgspec loads typing_extensions if it is installed, and with the
dashboard's packages every job's hooks would start a fifth more slowly.
"""
_MONITORS = ("gpustat", "nvitop")
"""Independent GPU monitors, in an environment of their own."""
_MONITOR_PREFIX = "/opt/witnesses"
_GENERATION = 2
"""Increase this when the same sources give different layers. 2: modes no longer depend on the caller's umask."""
_KEEP_LAYERS = 6
"""Site layers to keep per release; older ones are removed unless a cluster uses them."""

_INSTALL_DEPENDENCIES = """\
set -e
python3 -m venv "$1"
"$1/bin/pip" install -q --no-index --find-links /mnt --target "$2" -r /mnt/build.txt
"$1/bin/pip" install -q --no-index --find-links /mnt -r /mnt/run.txt
python3 -m venv "$3"
"$3/bin/pip" install -q --no-index --find-links /mnt -r /mnt/witness.txt
python3 -m venv "$4"
"$4/bin/pip" install -q --no-index --find-links /mnt -r /mnt/run.txt -r /mnt/screen.txt
mkdir -p /usr/local/bin
while read -r program; do ln -sf "$3/bin/$program" /usr/local/bin/; done </mnt/witness.txt
"""
_INSTALL_PYTHON = """\
set -e
cp -r /mnt /tmp/src
PYTHONPATH="$2" "$1/bin/pip" wheel -q --no-index --no-deps --no-build-isolation --wheel-dir /tmp/wheel /tmp/src
for venv in "$1" "$3"; do "$venv/bin/pip" install -q --no-index --no-deps /tmp/wheel/*.whl; done
install -D -m 644 -t /usr/share/slurm-share/wheels /tmp/wheel/*.whl  # for users' own environments, as in the packages
site=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
make -s -C /tmp/src/prolog BUILD=/tmp/front HOME_FOLDER="$1" install  # in the place of pip's
mkdir "$1/libexec"
for hook in prolog epilog; do  # started as the packages' hooks are
    cat >"$1/libexec/slurm-share-$hook" <<END
#!$1/bin/python3 -ISB
import sys
sys.path.append("$site")
from slurm_share_hooks.program import $hook
$hook()
END
    chmod 755 "$1/libexec/slurm-share-$hook"
done
mkdir -p /usr/local/bin
for program in "$1"/bin/*; do
    case ${program##*/} in slurm-share-prolog | slurm-share-epilog) continue ;; esac
    # Ours are the ones whose text names our package; python, pip and others' stay inside the venv.
    if head -c 2 "$program" | grep -q '#!' && grep -Eq '^(from|import) slurm_share' "$program"; then
        ln -sf "$program" "/usr/local/bin/${program##*/}"
    fi
done
[ ! -e "$3/bin/llload-tui" ] || ln -sf "$3/bin/llload-tui" /usr/local/bin/
"""
_ACCOUNTING_PACKAGES = ("mariadb-server-core", "mariadb-client-core", "curl")
"""MariaDB's daemon and client alone, as the package of both needs an init system; curl sends requests to slurmrestd."""
_INSTALL_ACCOUNTING = """\
set -e
[ ! -e /mnt/resolv.conf ] || cp /mnt/resolv.conf /etc/  # the root's own may be of another day and another network
slurm=$(dpkg-query -W -f '${Version}' slurmctld)
apt-get update -qq
apt-get install -y -qq --no-install-recommends \\
    "slurmdbd=$slurm" "slurm-wlm-mysql-plugin=$slurm" "slurmrestd=$slurm" "$@"
apt-get clean
rm -rf /var/lib/apt/lists/*
cp /mnt/slurm.cnf /etc/mysql/mariadb.conf.d/
install -d -o slurm -g slurm /var/lib/slurm
mariadb-install-db --user=slurm --skip-test-db --skip-name-resolve --auth-root-authentication-method=socket
"""
"""mariadb-install-db makes two accounts with all rights, root and its --user, which log in through the socket as the
same Unix users, without passwords.
"""
_INSTALL_PROMETHEUS = """\
set -e
[ ! -e /mnt/resolv.conf ] || cp /mnt/resolv.conf /etc/
apt-get update -qq
apt-get install -y -qq --no-install-recommends prometheus
apt-get clean
rm -rf /var/lib/apt/lists/* /usr/share/prometheus/web /usr/share/javascript /usr/share/fonts
"""
_INSTALL_SACKD = """\
set -e
[ ! -e /mnt/resolv.conf ] || cp /mnt/resolv.conf /etc/
apt-get update -qq
apt-get install -y -qq --no-install-recommends "sackd=$(dpkg-query -W -f '${Version}' slurmctld)"
apt-get clean
rm -rf /var/lib/apt/lists/*
"""
_SYSTEMD_PACKAGES = (
    *("systemd-sysv", "dbus", "udev", "kmod", "libpam-systemd", "mount", "login", "passwd", "util-linux"),
    *("bpftool", "iputils-ping", "less", "nano", "man-db"),
)
"""Packages that a whole machine needs beside those of a cluster's root, and tools of its administrator."""
_INSTALL_SYSTEMD = """\
set -e
[ ! -e /mnt/resolv.conf ] || cp /mnt/resolv.conf /etc/
apt-get update -qq
apt-get install -y -qq --no-install-recommends "$@"
apt-get clean
rm -rf /var/lib/apt/lists/*
"""
_INSTALL_LINUX = """\
set -e
[ ! -e /mnt/resolv.conf ] || cp /mnt/resolv.conf /etc/
apt-get update -qq
apt-get install -y -qq --no-install-recommends initramfs-tools zstd
echo MODULES=list >/etc/initramfs-tools/conf.d/small
printf '%s\\n' virtio_pci virtio_blk ext4 9p 9pnet_virtio >>/etc/initramfs-tools/modules
apt-get install -y -qq --no-install-recommends linux-image-amd64
apt-get clean
rm -rf /var/lib/apt/lists/*
"""
"""Debian's own kernel, for an emulated computer: the start needs its disk, the machine the shared folder (9p)."""
_INSTALL_PACKAGED = """\
set -e
dpkg -i /mnt/slurm-share_*.deb /mnt/slurm-share-spank_*.deb /mnt/slurm-share-tui_*.deb
"""
_INSTALL_MAKE = """\
set -e
cp -r /mnt /tmp/src
make -s -C "/tmp/src/$1" install
ldconfig
"""


def stack(
    root: Root,
    parts: Collection[str],
    *,
    accounting: bool = False,
    prometheus: bool = False,
    sackd: bool = False,
    with_pyslurm: bool = False,
    packages: Path | None = None,
) -> str:
    """Return the lower layers of a host's root, as overlayfs writes them, with the wanted parts of our software on top.

    `accounting` adds slurmdbd, MariaDB and slurmrestd, `prometheus` Prometheus, `sackd` that daemon, and `with_pyslurm`
    a pyslurm for our Python. `packages`: a folder with our .deb files, from which the parts `python` and `plugin` are
    then installed.

    Raises Misuse if the checkout lacks a part, ClusterError if one does not build.
    """
    require(parts)
    lower, lock = root.path, paths.cache() / f"layers-{root.release}.lock"
    above = ""
    if with_pyslurm:
        with locks.waiting(lock):
            dependencies = _dependencies(root, lower)
        # a lock of its own, since the build takes minutes and few need it
        with locks.waiting(paths.cache() / f"pyslurm-{root.release}.lock"):
            above = f"{_pyslurm(root, dependencies)}:"
    with locks.waiting(lock):
        if packages is not None:
            lower = f"{_packaged(root, lower, packages)}:{lower}"
            parts = [part for part in parts if part == "simgpu"]
        if "python" in parts:
            lower = f"{_dependencies(root, lower)}:{lower}"
        if parts:
            lower = f"{_site(root, lower, parts)}:{lower}"
        # Below our layers, which are built without them, so that all kinds of cluster share ours. Prometheus comes
        # first, because only it adds a user to /etc/passwd.
        below = [_prometheus(root)] if prometheus else []
        below += [_accounting(root)] if accounting else []
        below += [_sackd(root)] if sackd else []
        ours = lower.removesuffix(root.path)
        return above + ours + "".join(f"{layer}:" for layer in below) + root.path


def under_systemd(root: Root, *, linux: bool = False) -> str:
    """Return the lower layers of a root that a kernel can boot: with systemd, and with the simulated GPUs.

    `linux`: with Debian's kernel in /boot and its modules as well. Raises ClusterError if one does not build.
    """
    # a lock and layers of their own: those of the clusters are made anew with every change of the checkout
    with locks.waiting(paths.cache() / f"systemd-{root.release}.lock"):
        simgpu = _site(root, root.path, ["simgpu"], kind="simgpu")
        what = f"systemd beside Slurm {root.slurm_version}"
        recipe = [root.path, _SYSTEMD_PACKAGES, _INSTALL_SYSTEMD]
        below = [_packages(root, "systemd", recipe, what, [_INSTALL_SYSTEMD, *_SYSTEMD_PACKAGES], {})]
        if linux:
            # beneath: only its files are wanted, and dpkg's list of packages is that of the layer above
            below.append(_packages(root, "linux", [root.path, _INSTALL_LINUX], "Debian's kernel", [_INSTALL_LINUX], {}))
    return ":".join(map(str, [simgpu, *below, root.path]))


def require(parts: Collection[str]) -> None:
    """Raise Misuse unless the checkout has the sources of the parts."""
    for part in parts:
        missing = [name for name in _MUST_EXIST[part] if not (paths.CHECKOUT / name).exists()]
        if missing:
            raise Misuse(
                f"{paths.CHECKOUT} has no {' and no '.join(missing)}, which the part `{part}` of our software is made "
                f"of; use a complete checkout, or leave the part out with --without {part}"
            )


def sources(checkout: Path, parts: Iterable[str]) -> list[Path]:
    """Return the source files of the parts, sorted and relative to the checkout, without build products."""
    found: list[Path] = []
    for top in (checkout / name for part in parts for name in _SOURCES[part]):
        found += [top] if top.is_file() else _walk(top)
    return sorted({path.relative_to(checkout) for path in found})


def fingerprint(checkout: Path, files: Iterable[Path]) -> str:
    """Return a short hash over names, modes and contents."""
    digest = hashlib.sha256()
    for path in files:
        whole = checkout / path
        digest.update(f"{path}\0{_installed_mode(whole):o}\0".encode())
        digest.update(hashlib.sha256(whole.read_bytes()).digest())
    return digest.hexdigest()[:16]


def requirements(pyproject: str) -> tuple[list[str], list[str], list[str]]:
    """Return the requirements in pyproject.toml: (to build, for commands and hooks, additionally for the dashboard)."""
    data = tomllib.loads(pyproject)
    extras = data["project"]["optional-dependencies"]
    return sorted(data["build-system"]["requires"]), sorted(extras["hosts"]), sorted(extras["tui"])


def download_argv(python: str, python_version: str, machine: str, target: Path, lists: Sequence[Path]) -> list[str]:
    """Return the pip command that fetches wheels for another Python than the one it runs on."""
    # pip compares the tags of wheels literally: list every glibc version a wheel may name, up to that of Debian 13
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(41, 4, -1)]
    platforms += [f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"linux_{machine}"]
    argv = [python, "-m", "pip", "download", "-q", "--only-binary=:all:", "--dest", str(target)]
    argv += ["--find-links", str(target), "--implementation", "cp", "--python-version", python_version]
    argv += [word for name in platforms for word in ("--platform", name)]
    return [*argv, *(word for path in lists for word in ("-r", str(path)))]


def _dependencies(root: Root, lower: str) -> Path:
    to_build, to_run, to_show = requirements((paths.CHECKOUT / "pyproject.toml").read_text())
    below = [root.path, root.python_version, platform.machine()]
    recipe = [_GENERATION, to_build, to_run, to_show, _MONITORS, *below, _INSTALL_DEPENDENCIES]

    def fill(layer: Path) -> None:
        wheels = layer / "wheels"
        wheels.mkdir()
        lists = []
        for name, wanted in (("build", to_build), ("run", to_run), ("witness", _MONITORS), ("screen", to_show)):
            lists.append(wheels / f"{name}.txt")
            lists[-1].write_text("\n".join(wanted) + "\n")
        with stage(f"Python packages for {root.python_version}"):
            python = tools.python_with_pip(paths.cache() / "tools")
            # gpustat is published as source only; it is pure Python, so a wheel built here suits every Python
            process.run([python, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(wheels), "gpustat"])
            process.run(download_argv(python, root.python_version, platform.machine(), wheels, lists))
        with stage(f"virtual environment {_PREFIX}"):
            script = ["/bin/sh", "-c", _INSTALL_DEPENDENCIES, "sh"]
            script += [_PREFIX, _BUILD_PREFIX, _MONITOR_PREFIX, _SCREEN_PREFIX]
            rootfs.inside(Path(root.path), script, layer=layer, lower=lower, source=wheels)
        shutil.rmtree(wheels)

    return _made_once(f"layer-{root.release}-deps", recipe, fill)


def _accounting(root: Root) -> Path:
    recipe = [root.path, root.slurm_version, _ACCOUNTING_PACKAGES, _INSTALL_ACCOUNTING, conf.MARIADB_CNF]
    install = [_INSTALL_ACCOUNTING, *_ACCOUNTING_PACKAGES]
    what = f"slurmdbd and MariaDB for Slurm {root.slurm_version}"
    return _packages(root, "accounting", recipe, what, install, {"slurm.cnf": conf.MARIADB_CNF})


def _prometheus(root: Root) -> Path:
    recipe = [root.path, _INSTALL_PROMETHEUS]
    return _packages(root, "prometheus", recipe, "Prometheus", [_INSTALL_PROMETHEUS], {})


def _pyslurm(root: Root, dependencies: Path) -> Path:
    """Build pyslurm into our virtual environment, as `pip install 'slurm-share[pyslurm]'` does."""

    def fill(layer: Path) -> None:
        wheels = layer / "wheels"
        wheels.mkdir()
        lists = wheels / "pyslurm.txt"
        lists.write_text("\n".join(pyslurm.TO_BUILD) + "\n")
        copy_resolver(wheels)
        with stage(f"pyslurm {pyslurm.VERSION} for Slurm {root.slurm_version}"):
            python = tools.python_with_pip(paths.cache() / "tools")
            try:
                pyslurm.download(python, wheels)
                process.run(download_argv(python, root.python_version, platform.machine(), wheels, [lists]))
                rootfs.inside(
                    Path(root.path),
                    ["/bin/sh", "-c", pyslurm.INSTALL, "sh", _PREFIX],
                    layer=layer,
                    lower=f"{dependencies}:{root.path}",
                    source=wheels,
                    mirror=tools.debian_mirror(),
                )
            except CommandFailed as error:
                why = f"code {error.returncode}\n{_tail(error.output)}"
                raise ClusterError(f"pyslurm does not build for Slurm {root.slurm_version}: {why}") from None
        shutil.rmtree(wheels)
        for part in (layer / "upper").iterdir():
            if part.name != "opt":
                shutil.rmtree(part)  # packages needed for the build only

    return _made_once(f"layer-{root.release}-pyslurm", [str(dependencies), pyslurm.VERSION, pyslurm.INSTALL], fill)


def _sackd(root: Root) -> Path:
    recipe = [root.path, root.slurm_version, _INSTALL_SACKD]
    what = f"sackd for Slurm {root.slurm_version}"
    return _packages(root, "sackd", recipe, what, [_INSTALL_SACKD], {})


def _packages(
    root: Root, kind: str, recipe: object, what: str, install: Sequence[str], files: Mapping[str, str]
) -> Path:
    """Build a layer of Debian packages directly over the root. `install` is a shell script and its arguments; `files`
    are in /mnt."""

    def fill(layer: Path) -> None:
        source = layer / "files"
        source.mkdir()
        for name, text in files.items():
            (source / name).write_text(text)
        copy_resolver(source)
        script = ["/bin/sh", "-c", install[0], "sh", *install[1:]]
        with stage(what):
            try:
                rootfs.inside(
                    Path(root.path), script, layer=layer, lower=root.path, source=source, mirror=tools.debian_mirror()
                )
            except CommandFailed as error:
                raise ClusterError(
                    f"{what} does not install beside Slurm {root.slurm_version}: code {error.returncode}\n"
                    f"{_tail(error.output)}\nwhere the mirror has moved on to another Slurm, take all clusters down, "
                    f"delete {paths.cache()}/*-{root.release}-* and try again"
                ) from None
        shutil.rmtree(source)

    return _made_once(f"layer-{root.release}-{kind}", recipe, fill)


def _packaged(root: Root, lower: str, packages: Path) -> Path:
    files = sorted(packages.glob("*.deb"))
    recipe = [_GENERATION, lower, _INSTALL_PACKAGED, fingerprint(packages, [Path(file.name) for file in files])]

    def fill(layer: Path) -> None:
        script = ["/bin/sh", "-c", _INSTALL_PACKAGED]
        with stage(f"our packages for Slurm {root.slurm_version}"):
            try:
                rootfs.inside(Path(root.path), script, layer=layer, lower=lower, source=packages)
            except CommandFailed as error:
                raise ClusterError(f"our packages do not install:\n{_tail(error.output)}") from None

    return _made_once(f"layer-{root.release}-packaged", recipe, fill, prunes=True)


def _site(root: Root, lower: str, parts: Collection[str], *, kind: str = "site") -> Path:
    wanted = [part for part in PARTS if part in parts]
    files = sources(paths.CHECKOUT, wanted)
    installed = fingerprint(paths.CHECKOUT, files)
    recipe = [_GENERATION, lower, wanted, _INSTALL_PYTHON, _INSTALL_MAKE, installed]

    def fill(layer: Path) -> None:
        copy = layer / "source"
        _copy(files, copy)
        for part in wanted:
            with stage(f"our {part} for Slurm {root.slurm_version}"):
                try:
                    rootfs.inside(Path(root.path), _install_argv(part), layer=layer, lower=lower, source=copy)
                except CommandFailed as error:
                    raise Misuse(
                        f"our {part} does not install into Slurm {root.slurm_version}'s root: code {error.returncode}\n"
                        f"{_tail(error.output)}\nput it right, or leave it out with --without {part}"
                    ) from None
        shutil.rmtree(copy)

    return _made_once(f"layer-{root.release}-{kind}", recipe, fill, prunes=True)


def _install_argv(part: str) -> list[str]:
    if part == "python":
        return ["/bin/sh", "-c", _INSTALL_PYTHON, "sh", _PREFIX, _BUILD_PREFIX, _SCREEN_PREFIX]
    return ["/bin/sh", "-c", _INSTALL_MAKE, "sh", _SOURCES[part][0]]


def _made_once(kind: str, recipe: object, fill: Callable[[Path], None], *, prunes: bool = False) -> Path:
    """Return the layer of that kind with this recipe. `prunes`: remove layers of the kind that are neither in
    use nor recently used."""

    def fill_and_clean(making: Path) -> None:
        fill(making)
        for scratch in ("work", "merged"):
            shutil.rmtree(making / scratch, ignore_errors=True)

    home = paths.cache() / f"{kind}-{hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:16]}"
    locks.made_once(home, fill_and_clean, kind=f"{kind}-")
    if prunes:
        with contextlib.suppress(OSError):  # read-only inside a kernel of its own: see kernel-init
            os.utime(home)  # marks it as used
        _prune(f"{kind}-")
    return home / "upper"


def _prune(prefix: str) -> None:
    in_use = "".join(path.read_text(errors="replace") for path in paths.RUN_ROOT.glob("*/*.json"))
    homes = sorted(paths.cache().glob(prefix + "*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for home in homes[_KEEP_LAYERS:]:
        # `up` writes its state shortly after it gets its layers, so keep recent ones
        if home.name not in in_use and time.time() - home.stat().st_mtime > 600:
            shutil.rmtree(home, ignore_errors=True)


def _walk(top: Path) -> list[Path]:
    found: list[Path] = []
    for folder, names, files in os.walk(top):
        names[:] = [name for name in names if name not in _NOT_SOURCE and not name.endswith(_NOT_SOURCE_ENDINGS)]
        found += [Path(folder, name) for name in files if not name.endswith(_NOT_SOURCE_ENDINGS)]
    return [path for path in found if path.is_file()]


def _copy(files: Iterable[Path], target: Path) -> None:
    for path in files:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(paths.CHECKOUT / path, target / path)
        (target / path).chmod(_installed_mode(paths.CHECKOUT / path))


def _installed_mode(path: Path) -> int:
    """Return the mode with which a source file is installed: a clone made under umask 077 has 0600 and 0700."""
    return 0o755 if path.stat().st_mode & 0o100 else 0o644


def copy_resolver(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile("/etc/resolv.conf", folder / "resolv.conf")


def _tail(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-15:])

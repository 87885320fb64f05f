"""The files of slurm-share: library, hooks and commands in an environment of their own, units, settings, documents."""

from __future__ import annotations

import configparser
import os
import shutil
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

from localcluster import layers, process
from localcluster.progress import Say, stage

from . import manual, wheels
from .recipe import CHECKOUT, HOME, PACKAGING, PYTHONS, SITE_PACKAGES, Build, files

HOOKS = ("slurm-share-prolog", "slurm-share-epilog")
"""slurmd starts these by their full names; nobody types them. Each is a small program, which asks a helper or becomes
the hook in Python of the same name in libexec."""
_SCRIPT = """\
#!/{home}/bin/python -IBS
import _signal
if _signal.getsignal(_signal.SIGINT) is not _signal.SIG_IGN:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
import site, sys
site.main()
from {module} import {function}
sys.exit({function}())
"""
"""-I: nothing of a user's PYTHON* or folder decides what runs. -B: byte-code is made at the installation, by root.
-S: Ctrl-C while Python looks for its libraries ends the command without a traceback; `slurm_share.cli.start` sets it
back. `_signal` is in the interpreter itself, `signal` is a file that has to be found and read."""
_HOOK = """\
#!/{home}/bin/python -ISB
import os, sys, time
sys.path.append("/{home}/{site_packages}")
def unpacking():
    try:
        return abs(time.time() - os.stat("{unpacking}").st_mtime) < {unpacking_s}
    except OSError:
        return False
tries = os.environ.pop("SLURM_SHARE_TRY", "0")
tries = int(tries) if tries.isdecimal() else 0
try:
    if tries < {tries} and unpacking():
        raise ImportError("an upgrade is putting new files in the place of the old ones")
    from {module} import {function}
except Exception as error:
    # An exit code would drain the node. In a moment the files fit each other again; else the job goes on without this
    # hook, and the next one that works takes back what it should have.
    if tries < {tries}:
        time.sleep({pause_s})
        os.environ["SLURM_SHARE_TRY"] = str(tries + 1)
        os.execv(sys.executable, [sys.executable, "-ISB", __file__])
    import syslog
    said = f"slurm-share: {{__file__}} cannot start, the job goes on without it: {{type(error).__name__}}: {{error}}"
    print(said, file=sys.stderr)
    syslog.syslog(syslog.LOG_ERR, said)
    sys.exit(0)
{function}()
"""
"""slurmd starts these at any moment, also while a package manager replaces one file after the other. -S: of what `site`
does a hook needs one folder on its path, and `site` takes a third of an ordinary job's hook."""
UNPACKING = "/run/slurm-share.unpacking"
"""There from an upgrade's beginning until its files are whole: the packages' scripts make and remove it."""
UNPACKING_S = 60
"""An older one was left by an upgrade that was killed."""
PAUSE_S, TRIES = 0.5, 12
"""Six seconds in all: many times what the unpacking takes, and little beside PrologEpilogTimeout."""
_ENVIRONMENT = """\
home = /usr/bin
include-system-site-packages = false
made-by = slurm-share
"""
SHARED = {
    "packaging/share/libexec/configure": (f"{HOME}/libexec/configure", 0o755),
    "packaging/share/libexec/slurm-confs": (f"{HOME}/libexec/slurm-confs", 0o755),
    "packaging/share/config.toml": ("usr/share/slurm-share/config.toml", 0o644),
    "packaging/share/logrotate/slurm-share": ("etc/logrotate.d/slurm-share", 0o644),
    "packaging/share/enroot/50-slurm-share.fstab": ("etc/enroot/mounts.d/50-slurm-share.fstab", 0o644),
    "packaging/share/sysusers/slurm-share.conf": ("usr/lib/sysusers.d/slurm-share.conf", 0o644),
    "packaging/share/tmpfiles/slurm-share.conf": ("usr/lib/tmpfiles.d/slurm-share.conf", 0o644),
}
CONFIGURATION = (
    "etc/logrotate.d/slurm-share",
    "etc/enroot/mounts.d/50-slurm-share.fstab",
)
"""Files that are the site's once they are there: kept at an upgrade and a removal."""
_MOUNTS = ("run-slurm\\x2dshare.mount", "run-slurm\\x2dshare-user.mount")


def sources() -> list[Path]:
    """Every file of the checkout that a package is made of, relative to it."""
    made_of = layers.sources(CHECKOUT, ["python", "plugin"])
    for folder in ("deb", "rpm", "share", "man", "systemd", "docs", "make_packages"):
        made_of += [path.relative_to(CHECKOUT) for path in files(PACKAGING / folder)]
    return [*made_of, Path("packaging/CHANGELOG.md"), Path("packaging/LICENSE"), Path("packaging/build.sh")]


def dependencies() -> tuple[list[str], list[str]]:
    """What the library needs, and what the dashboard needs besides, as the project says."""
    _, run, show = layers.requirements((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    return run, show


def make(build: Build, say: Say) -> None:
    """Lay out slurm-share."""
    run, _ = dependencies()
    third_party = wheels.fetched(run, build.cache, say)
    tools = wheels.tools(build.cache, say)
    with stage(say, "slurm-share: library, hooks and commands"):
        tree = build.tree("slurm-share")
        environment(tree / HOME)
        site = tree / HOME / SITE_PACKAGES
        wheels.laid_out(third_party, site)
        _own_wheel(build, tools, site)
        for name, target in commands(build).items():
            command(tree, HOME, name, target)
        _fronts(build, tree)
        for source, (place, mode) in SHARED.items():
            put(CHECKOUT / source, tree / place, mode)
        (tree / "etc/slurm-share").mkdir()
        _units(tree)
        documents(tree, "slurm-share")
        manual.write(tree / "usr/share/doc/slurm-share")
        for example in files(PACKAGING / "share/examples"):
            put(example, tree / "usr/share/doc/slurm-share/examples" / example.name)


def environment(home: Path) -> None:
    """The frame of an environment that is as a venv is, for every Python at once. Without bin/python: that link is made
    on the host, where it leads to the Python that fits, and no upgrade may put another there."""
    (home / SITE_PACKAGES).mkdir(parents=True)
    (home / "bin").mkdir()
    (home / "pyvenv.cfg").write_text(_ENVIRONMENT)
    for version in PYTHONS:
        (home / f"lib/python{version}").symlink_to("python3")


def command(tree: Path, home: str, name: str, target: str) -> None:
    """A command's script; and its name in /usr/bin, unless slurmd alone starts it: then what it starts is in bin, and
    the script in libexec."""
    module, _, function = target.partition(":")
    script = tree / home / ("libexec" if name in HOOKS else "bin") / name
    script.parent.mkdir(parents=True, exist_ok=True)
    words = {
        "site_packages": SITE_PACKAGES,
        "unpacking": UNPACKING,
        "unpacking_s": UNPACKING_S,
        "pause_s": PAUSE_S,
        "tries": TRIES,
    }
    script.write_text(
        (_HOOK if name in HOOKS else _SCRIPT).format(home=home, module=module, function=function, **words)
    )
    script.chmod(0o755)
    if name not in HOOKS:
        (tree / "usr/bin").mkdir(parents=True, exist_ok=True)
        (tree / "usr/bin" / name).symlink_to(f"/{home}/bin/{name}")


def _fronts(build: Build, tree: Path) -> None:
    """What slurmd starts: two small programs, each linked with all that it needs."""
    scratch = build.work / "fronts"
    argv = ["make", "-s", "-C", str(CHECKOUT / "prolog"), f"BUILD={scratch}", f"HOME_FOLDER=/{HOME}", "all"]
    argv.append(f"VERSION={build.version}")
    # What -g writes would be stripped below; and where this checkout lies is nobody's business.
    argv.append(f"CFLAGS=-O2 -ffile-prefix-map={CHECKOUT}=.")
    process.run(argv)
    for name in HOOKS:
        process.run(["strip", "--strip-all", str(scratch / name)])
        put(scratch / name, tree / HOME / "bin" / name, 0o755)


def screen_code(build: Build) -> Path:
    """Where `make` puts the dashboard's code, which comes in the same wheel, for the other package."""
    return build.work / "slurm_share_tui"


def commands(build: Build) -> dict[str, str]:
    """The commands of slurm-share, and the function that each is; read from the wheel that `make` has made."""
    with zipfile.ZipFile(_wheel(build)) as archive:
        [entry] = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
        words = configparser.ConfigParser(delimiters=("=",))
        words.optionxform = str  # type: ignore[assignment,method-assign]  # LLsub and llsub are two
        words.read_string(archive.read(entry).decode())
    return {name: target for name, target in sorted(words["console_scripts"].items()) if name != "llload-tui"}


def _wheel(build: Build) -> Path:
    [wheel] = (build.work / "wheel").glob("*.whl")
    return wheel


def _own_wheel(build: Build, tools: Path, site: Path) -> None:
    """Our own code, as the project's build backend lays it out."""
    source = build.work / "source"
    copy_sources(source, layers.sources(CHECKOUT, ["python"]))
    described = (source / "pyproject.toml").read_text(encoding="utf-8")
    lines = [
        f'version = "{build.version.replace("~", "")}"' if line.startswith("version = ") else line
        for line in described.splitlines()
    ]
    (source / "pyproject.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    argv = [sys.executable, "-m", "pip", "wheel", "-q", "--no-index", "--no-deps", "--no-build-isolation"]
    argv += ["--wheel-dir", str(build.work / "wheel"), str(source)]
    process.run(argv, env={**os.environ, "PYTHONPATH": str(tools)})
    wheels.laid_out([_wheel(build)], site)
    (site / "slurm_share_tui").rename(screen_code(build))


def _units(tree: Path) -> None:
    units = tree / "usr/lib/systemd/system"
    for unit in files(PACKAGING / "systemd"):
        put(unit, units / unit.name)
    # slurmd brings the file systems along: nothing to enable, nothing in /etc, and no hosts without slurmd concerned
    wants = units / "slurmd.service.wants"
    wants.mkdir()
    for mount in _MOUNTS:
        (wants / mount).symlink_to(f"../{mount}")


def put(source: Path, target: Path, mode: int = 0o644) -> None:
    """Copy a file, with folders and mode."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def documents(tree: Path, package: str) -> None:
    """Licence and changes, which every package has."""
    folder = tree / "usr/share/doc" / package
    put(PACKAGING / "LICENSE", folder / "copyright")
    put(PACKAGING / "CHANGELOG.md", folder / "CHANGELOG.md")


def copy_sources(target: Path, paths: Iterable[Path]) -> None:
    """Copy files of the checkout, named from its root."""
    for path in paths:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(CHECKOUT / path, target / path)

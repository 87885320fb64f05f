"""Clean Debian root file systems for the installation of packages, and what has changed in them."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from localcluster import paths, process, rootfs
from localcluster.records import RELEASES, Release, Root

SUITES = {
    "bookworm": Release("22.05", "bookworm", (22, 5), (23, 0)),
    **{release.suite: release for release in RELEASES.values()},
}
"""Debian 12, 13 and the next release, each with the version of Slurm that it contains."""


class CleanRoot:
    """A root with a layer for what is installed; `layer` is an empty folder.

    `over`: another root of the same suite, whose changes lie beneath; it must not change any more.
    """

    def __init__(self, suite: str, layer: Path, over: CleanRoot | None = None) -> None:
        self.root: Root = rootfs.root_of(SUITES[suite])
        self.layer = layer
        self.lower = f"{over.upper}:{over.lower}" if over else self.root.path

    def run(self, *argv: str, source: Path | None = None) -> str:
        """Run a program in it as root, `source` seen as /mnt; /run and /tmp are empty then. Raises CommandFailed."""
        return rootfs.inside(Path(self.root.path), argv, layer=self.layer, lower=self.lower, source=source)

    def shell(self, script: str, source: Path | None = None, words: Sequence[str] = ()) -> str:
        """Run a shell script in the root, with `words` as $1 and so on."""
        return self.run("/bin/bash", "-ec", script, "bash", *words, source=source)

    @property
    def upper(self) -> Path:
        """Return the folder with what has been written over the root."""
        return self.layer / "upper"

    def changes(self) -> set[str]:
        """Return every changed path: `+` new, `-` gone, `~` another content, kind, owner or mode."""
        found = set()
        for folder, names, files in os.walk(self.upper):
            for name in [*names, *files]:
                path = Path(folder, name)
                relative = path.relative_to(self.upper)
                sign = difference(path, Path(self.root.path) / relative)
                if sign:
                    found.add(f"{sign}/{relative}")
        return found


def difference(now: Path, before: Path) -> str:
    """Return the sign of one path, as in `changes`; empty if both are the same."""
    new = now.lstat()
    gone = stat.S_ISCHR(new.st_mode) and new.st_rdev == 0  # overlayfs marks a removed file so
    try:
        old = before.lstat()
    except FileNotFoundError:
        return "" if gone else "+"
    if gone:
        return "-"
    if (new.st_mode, new.st_uid, new.st_gid) != (old.st_mode, old.st_uid, old.st_gid):
        return "~"
    if stat.S_ISLNK(new.st_mode):
        return "" if now.readlink() == before.readlink() else "~"
    return "~" if stat.S_ISREG(new.st_mode) and now.read_bytes() != before.read_bytes() else ""


def newer(packages: Path, folder: Path, version: str) -> Path:
    """Copy the .deb files of `packages` with a higher version; return the new folder."""
    folder.mkdir()
    for package in sorted(packages.glob("*.deb")):
        tree = folder / "tree"
        process.run(["dpkg-deb", "-R", str(package), str(tree)])
        control = tree / "DEBIAN/control"
        old = re.search(r"^Version: (\S+)-1$", control.read_text(), re.MULTILINE)
        assert old is not None
        control.write_text(control.read_text().replace(f"{old[1]}-1", f"{version}-1"))
        for records in tree.rglob("slurm_share-*.dist-info"):
            text = (records / "METADATA").read_text().replace(f"\nVersion: {old[1]}\n", f"\nVersion: {version}\n")
            (records / "METADATA").write_text(text)
            records.rename(records.with_name(f"slurm_share-{version}.dist-info"))
        process.run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "-b", str(tree), str(folder)])
        shutil.rmtree(tree)
    return folder


def newer_rpms(packages: Path, folder: Path, version: str, without: str) -> Path:
    """Copy the .rpm files with a higher version, slurm-share without the folder `without` of site-packages; return the
    new folder."""
    tree = folder / "tree"
    for deb in newer(packages, folder, version).glob("*.deb"):
        process.run(["dpkg-deb", "-x", str(deb), str(tree)])
    shutil.rmtree(tree / "opt/slurm-share/lib/python3/site-packages" / without)
    for file in [*tree.glob("usr/share/doc/*/copyright"), *tree.glob("usr/share/doc/*/changelog.Debian.gz")]:
        file.unlink()
    (tree / "usr/share/zsh/vendor-completions").rename(tree / "usr/share/zsh/site-functions")
    # the package's own spec, with these files in the place of a build
    packaging = paths.CHECKOUT / "packaging"
    whole = (packaging / "rpm/slurm-share.spec").read_text()
    begin, end = whole.index("%prep\n"), whole.index("%pre\n")
    files = f"%prep\nmkdir -p packaging\ncp {packaging}/LICENSE packaging\n%install\ncp -a {tree}/. %{{buildroot}}/\n"
    (folder / "newer.spec").write_text(f"{whole[:begin]}{files}{whole[end:]}")
    defines = (f"_topdir {folder}/rpm", f"_dbpath {folder}/db", f"share_version {version}", "_binary_payload w1.gzdio")
    words = [word for define in defines for word in ("--define", define)]
    process.run(["rpmbuild", "-bb", "--quiet", "--nodeps", *words, str(folder / "newer.spec")])
    for file in (folder / "rpm/RPMS").rglob("*.rpm"):
        file.rename(folder / file.name)
    return folder


def rpm_inside(clean: CleanRoot, packages: Path, *words: str) -> str:
    """Run the machine's rpm on the root (--root) with a database inside it: the root has no rpm."""
    script = """
    mkdir -p "$2/upper" "$2/work" "$2/merged"
    mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/merged"
    mount --bind /dev "$2/merged/dev"
    mount -t proc proc "$2/merged/proc"
    root=$2/merged
    shift 2
    exec rpm --root "$root" --dbpath /var/lib/rpm "$@"
    """
    files = [str(packages / word) if word.endswith(".rpm") else word for word in words]
    argv: Sequence[str] = ["/bin/bash", "-ec", script, "bash", clean.lower, str(clean.layer), *files]
    done = process.run(process.bound_to_us(argv))
    return done.stdout + done.stderr

"""Trees of files -> .deb, with dpkg-deb: control fields and scripts stand in packaging/deb."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from localcluster import process

from .base import CONFIGURATION
from .recipe import PACKAGING, Build

_SCRIPTS = ("preinst", "postinst", "prerm", "postrm")
_FIELDS = """\
Source: slurm-share
Version: {version}
Section: admin
Priority: optional
Maintainer: {maintainer}
Installed-Size: {size}
"""


def wrap(build: Build, package: str) -> Path:
    """Make the .deb of a package out of its tree; returns the file."""
    tree = build.tree(package)
    control = build.work / f"control-{package}"
    control.mkdir()
    machine = process.run(["dpkg", "--print-architecture"]).stdout.strip()
    paragraph = stanza(package, build.debian_version, machine)
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    size = sum(path.stat().st_size for path in files) // 1024
    name, _, rest = paragraph.partition("\n")
    fields = _FIELDS.format(version=build.debian_version, size=size, maintainer=maintainer(os.environ))
    (control / "control").write_text(f"{name}\n{fields}{rest}")
    sums = [f"{_md5(path)}  {path.relative_to(tree)}\n" for path in files]
    (control / "md5sums").write_text("".join(sums))
    configuration = [f"/{path}\n" for path in CONFIGURATION if (tree / path).exists()]
    if configuration:
        (control / "conffiles").write_text("".join(configuration))
    for script in (*_SCRIPTS, "triggers"):
        source = PACKAGING / "deb" / f"{package}.{script}"
        if source.exists():
            shutil.copyfile(source, control / script)
            (control / script).chmod(0o644 if script == "triggers" else 0o755)
    architecture = re.search(r"^Architecture: (\S+)", paragraph, re.MULTILINE)
    assert architecture is not None
    target = build.out / f"{package}_{build.debian_version}_{architecture[1]}.deb"
    # gzip: every dpkg reads it, and a build is minutes sooner done than with xz, for a third more bytes.
    # dpkg-deb wants the control files among the others, in a folder that it leaves out
    inside = control.rename(tree / "DEBIAN")
    process.run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z6", "--build", str(tree), str(target)])
    shutil.rmtree(inside)
    return target


def stanza(package: str, version: str, machine: str) -> str:
    """The paragraph of packaging/deb/control for a package, filled in. Raises KeyError where there is none."""
    text = (PACKAGING / "deb/control").read_text(encoding="utf-8")
    paragraphs = {part.split("\n", 1)[0].removeprefix("Package: "): part for part in text.strip().split("\n\n")}
    found = paragraphs[package].replace("${version}", version).replace("Architecture: any", f"Architecture: {machine}")
    return found + "\n"


def maintainer(environ: Mapping[str, str]) -> str:
    """Who made the package, as Debian's own tools are told (DEBFULLNAME, DEBEMAIL); else root of this host."""
    return f"{environ.get('DEBFULLNAME', 'slurm-share')} <{environ.get('DEBEMAIL', 'root@localhost')}>"


def _md5(path: Path) -> str:
    # what dpkg --verify compares with; it knows no other sum
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()

"""The same trees -> .rpm, with rpmbuild: fields and scripts stand in packaging/rpm/slurm-share.spec."""

from __future__ import annotations

from pathlib import Path

from localcluster import process

from .base import CONFIGURATION
from .recipe import PACKAGES, PACKAGING, Build

_DEBIAN_ZSH, _ZSH = "usr/share/zsh/vendor-completions", "usr/share/zsh/site-functions"
SYSTEM_FOLDERS = frozenset(
    (
        *("etc", "etc/logrotate.d", "opt", "usr", "usr/bin", "usr/sbin", "usr/lib", "usr/src", "usr/share"),
        *("usr/lib/systemd", "usr/lib/systemd/system", "usr/lib/sysusers.d", "usr/lib/tmpfiles.d"),
        *("usr/share/doc", "usr/share/man", "usr/share/man/man1", "usr/share/man/man8"),
    )
)


def wrap(build: Build) -> list[Path]:
    """Make the .rpm files out of the trees, which are changed on the way; returns them."""
    top = build.work / "rpm"
    lists = top / "lists"
    lists.mkdir(parents=True)
    for package in PACKAGES:
        tree = build.tree(package)
        if (tree / _DEBIAN_ZSH).is_dir():
            (tree / _DEBIAN_ZSH).rename(tree / _ZSH)
        (lists / package).write_text("%defattr(-,root,root,-)\n" + "\n".join(file_list(tree)) + "\n")
    spec = top / "slurm-share.spec"
    text = (PACKAGING / "rpm/slurm-share.spec").read_text(encoding="utf-8")
    for word, value in (("@VERSION@", build.version), ("@TREES@", build.work / "trees"), ("@LISTS@", lists)):
        text = text.replace(word, str(value))
    spec.write_text(text)
    # gzip: rpm of RHEL 8 and every later one reads it
    defines = {"_topdir": top, "_rpmdir": top / "made", "_binary_payload": "w6.gzdio", "_dbpath": top / "db"}
    # Else every build is another, by its hour and its host.
    defines |= {
        "use_source_date_epoch_as_buildtime": 1,
        "clamp_mtime_to_source_date_epoch": 1,
        "_buildhost": "localhost",
    }
    argv = ["rpmbuild", "-bb", "--quiet"]
    argv += [word for name, value in defines.items() for word in ("--define", f"{name} {value}")]
    process.run([*argv, str(spec)])
    made = []
    for file in sorted((top / "made").rglob("*.rpm")):
        made.append(file.replace(build.out / file.name))
    return made


def file_list(tree: Path) -> list[str]:
    """The tree as rpm lists it: every file, every folder that is ours alone, settings marked as such."""
    lines = []
    for path in sorted(tree.rglob("*")):
        name = str(path.relative_to(tree))
        quoted = f'"/{name}"'
        if path.is_dir() and not path.is_symlink():
            if is_own_folder(name):
                lines.append(f"%dir {quoted}")
        elif name in CONFIGURATION:
            lines.append(f"%config(noreplace) {quoted}")
        else:
            lines.append(quoted)
    return lines


def is_own_folder(name: str) -> bool:
    """Whether a folder goes with the package when nothing else is in it: all but the system's own."""
    return name not in SYSTEM_FOLDERS

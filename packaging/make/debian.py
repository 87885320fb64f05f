"""Unpacks a Debian package of any suite without installing it."""

from __future__ import annotations

import shutil
from pathlib import Path

from localcluster import process

_SOURCE_LIST = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror} {suite} main\n"


def unpacked(suite: str, mirror: str, package: str, target: Path) -> None:
    """Put the files of the suite's newest `package` into `target`, completely or not at all. Raises CommandFailed."""
    making = target.with_name(f".making-{target.name}")
    shutil.rmtree(making, ignore_errors=True)
    for folder in ("lists/partial", "archives/partial", "deb", "etc"):
        (making / folder).mkdir(parents=True)
    (making / "etc/sources.list").write_text(_SOURCE_LIST.format(mirror=mirror, suite=suite))
    apt = ["apt-get", "-qq"]
    # independent of the machine's own apt; a mirror that lags behind is accepted
    for option in (
        f"Dir::Etc::sourcelist={making}/etc/sources.list",
        "Dir::Etc::sourceparts=/dev/null",
        f"Dir::State::lists={making}/lists",
        "Dir::State::status=/dev/null",
        f"Dir::Cache={making}",
        "Acquire::Languages=none",
        "Acquire::Check-Valid-Until=false",
        "Acquire::Check-Date=false",
        "APT::Sandbox::User=",
        "APT::Update::Error-Mode=any",
    ):
        apt += ["-o", option]
    process.run([*apt, "update"])
    process.run(["env", "-C", str(making / "deb"), *apt, "download", package])
    [file] = (making / "deb").glob("*.deb")
    process.run(["dpkg-deb", "-x", str(file), str(making / "root")])
    shutil.rmtree(target, ignore_errors=True)
    (making / "root").rename(target)
    shutil.rmtree(making)

"""packaging/build.sh names what it lacks and installs nothing unasked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[3] / "packaging/build.sh"


def build(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run it where there is no rpmbuild; apt-get, were it called, would leave a file."""
    for tool in ("bash", "dirname", "python3", "gcc", "make", "dpkg-deb"):
        (folder / tool).symlink_to(str(shutil.which(tool)))
    (folder / "apt-get").write_text(f"#!/bin/sh\ntouch {folder}/asked\n")
    (folder / "apt-get").chmod(0o755)
    argv = [str(folder / "bash"), str(PROGRAM), *words]
    return subprocess.run(argv, env={"PATH": str(folder)}, capture_output=True, text=True, check=False)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """With the line that installs it."""
    done = build(tmp_path, "--help")
    assert done.returncode == 2
    assert "not installed here: rpm; as root: apt-get install rpm" in done.stderr
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("words", [("--only", "deb"), ("--only=deb",)])
def test_a_deb_alone_needs_no_rpm(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Its help is that of the build."""
    done = build(tmp_path, *words, "--help")
    assert done.returncode == 0, done.stderr
    assert "--slurm-include" in done.stdout

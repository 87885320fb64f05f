"""tests/run.sh ends with 0 where all its parts pass, and else with the code of a part that does not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
BOOTED = "kernel 7 with cgroup v2 only: booted"


def run(tree: Path, **parts: str) -> subprocess.CompletedProcess[str]:
    """Run it in a tree whose other scripts are `parts` (texts of sh; the default does nothing), as root."""
    (tree / "tests").mkdir()
    (tree / "slurm_share/slurm").mkdir(parents=True)
    shutil.copy(CHECKOUT / "tests/run.sh", tree / "tests")
    shutil.copy(CHECKOUT / "slurm_share/slurm/releases.py", tree / "slurm_share/slurm")
    for name in ("setup", "kernel", "check", "twice"):
        file = tree / f"tests/{name}.sh"
        file.write_text("#!/bin/sh\n" + parts.get(name, ""))
        file.chmod(0o755)
    (tree / "id").write_text("#!/bin/sh\necho 0\n")
    (tree / "id").chmod(0o755)
    return subprocess.run(
        ["bash", tree / "tests/run.sh"],
        env={"PATH": f"{tree}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_all_parts_pass(tmp_path: Path) -> None:
    done = run(tmp_path, kernel=f"echo {BOOTED}")
    assert (done.returncode, done.stderr) == (0, "")
    assert BOOTED in done.stdout


@pytest.mark.parametrize("part", ["setup", "check", "twice", "kernel"])
def test_a_part_fails(tmp_path: Path, part: str) -> None:
    assert run(tmp_path, **{"kernel": f"echo {BOOTED}"} | {part: f"echo {BOOTED}; exit 3"}).returncode == 3


def test_no_kernel_on_this_machine(tmp_path: Path) -> None:
    done = run(tmp_path, kernel="exit 2")
    assert done.returncode == 0
    assert "NOT TESTED on a kernel with cgroup v2 only" in done.stderr

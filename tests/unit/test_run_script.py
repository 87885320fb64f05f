"""tests/run.sh ends with 0 where all its parts pass, and else with the code of a part that does not; with --changed it
runs what tests/changed.py lists."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
BOOTED = "kernel 7 with cgroup v2 only: booted"


def run(tree: Path, *words: str, **parts: str) -> subprocess.CompletedProcess[str]:
    """Run it in a tree whose other programs are `parts` (texts of sh; the default does nothing), as root."""
    (tree / "tests").mkdir()
    (tree / "slurm_share/slurm").mkdir(parents=True)
    shutil.copy(CHECKOUT / "tests/run.sh", tree / "tests")
    shutil.copy(CHECKOUT / "slurm_share/slurm/releases.py", tree / "slurm_share/slurm")
    programs = {name: tree / f"tests/{name}.sh" for name in ("setup", "kernel", "check")}
    programs |= {name: tree / f".venv/bin/{name}" for name in ("pytest", "python")}
    (tree / ".venv/bin").mkdir(parents=True)
    for name, file in programs.items():
        file.write_text("#!/bin/sh\n" + parts.get(name, ""))
        file.chmod(0o755)
    (tree / "id").write_text("#!/bin/sh\necho 0\n")
    (tree / "id").chmod(0o755)
    return subprocess.run(
        ["bash", tree / "tests/run.sh", *words],
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


@pytest.mark.parametrize("part", ["setup", "check", "pytest", "kernel"])
def test_a_part_fails_and_all_others_have_run(tmp_path: Path, part: str) -> None:
    said = {name: f"echo this is {name}; " for name in ("check", "pytest", "kernel")}
    said["kernel"] += f"echo {BOOTED}; "
    done = run(tmp_path, **said | {part: said.get(part, "") + "exit 3"})
    assert done.returncode == 3
    assert [name for name in said if f"this is {name}" in done.stdout] == ([] if part == "setup" else list(said))


def test_the_tests_on_clusters_begin_beside_the_checks(tmp_path: Path) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    parts = {
        "check": f"until [ -e {begun} ]; do sleep 0.05; done; touch {ended}",
        "pytest": f"touch {begun}; until [ -e {ended} ]; do sleep 0.05; done",
    }
    assert run(tmp_path, kernel=f"echo {BOOTED}", **parts).returncode == 0


def test_no_kernel_on_this_machine(tmp_path: Path) -> None:
    done = run(tmp_path, kernel="exit 2")
    assert done.returncode == 0
    assert "NOT TESTED on a kernel with cgroup v2 only" in done.stderr


LISTED = 'shift; echo "list $*" >>said; printf "%s\\n" tests/unit/test_one.py tests/cluster/test_two.py'

LAST = 'for word; do :; done; echo "pytest $word" >>said'


def changed(tree: Path, *words: str, **parts: str) -> tuple[int, list[str]]:
    """Return the exit code, and what was started with which test files."""
    (tree / "said").write_text("")
    told = {"python": LISTED, "check": 'echo "check $*" >>said', "pytest": LAST} | parts
    code = run(tree, *words, **told).returncode
    return code, [" ".join(line.split()) for line in (tree / "said").read_text().splitlines()]


def test_with_changed_the_listed_files_run_each_where_it_can(tmp_path: Path) -> None:
    code, said = changed(tmp_path, "--changed")
    assert (code, said) == (0, ["list", "check tests/unit/test_one.py", "pytest tests/cluster/test_two.py"])


def test_with_changed_a_revision_is_passed_on(tmp_path: Path) -> None:
    assert changed(tmp_path, "--changed=HEAD~3", python='shift; echo "list $*" >>said')[1][0] == "list =HEAD~3"


@pytest.mark.parametrize(("part", "text"), [("python", "exit 3"), ("check", "exit 3"), ("pytest", "exit 3")])
def test_with_changed_a_part_fails(tmp_path: Path, part: str, text: str) -> None:
    assert changed(tmp_path, "--changed", **{part: text})[0] == 3

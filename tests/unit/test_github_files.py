"""What GitHub reads: the workflow runs commands that are here, pages name what is here, the top level is as said."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDER = CHECKOUT / ".github"
TOP = {
    *(".ci", ".github", ".gitignore", "README.md", "pyproject.toml"),
    *("slurm_share", "plugins", "prolog", "tui", "tests", "packaging"),
}


@pytest.fixture(scope="module")
def jobs() -> dict:
    """The jobs of the workflow."""
    return yaml.safe_load((FOLDER / "workflows/ci.yml").read_text())["jobs"]


def lines_of(job: dict) -> list[str]:
    """Every command line of a job."""
    return [line for step in job["steps"] for line in step.get("run", "").splitlines()]


def test_the_workflow_runs_on_push_and_pull_request():
    workflow = yaml.safe_load((FOLDER / "workflows/ci.yml").read_text())
    assert set(workflow[True]) == {"push", "pull_request"}
    assert workflow["permissions"] == {"contents": "read"}


def test_the_workflow_runs_both_commands_and_they_are_here(jobs):
    """The checks as an ordinary user; everything as root, where a container may mount and make namespaces."""
    assert "su builder -c tests/check.sh" in lines_of(jobs["check"])
    assert "tests/run.sh" in lines_of(jobs["cluster"])
    named = {file for job in jobs.values() for line in lines_of(job) for file in re.findall(r"\btests/\S+", line)}
    assert named == {"tests/setup.sh", "tests/check.sh", "tests/run.sh"}
    assert [file for file in named if not os.access(CHECKOUT / file, os.X_OK)] == []
    options = jobs["cluster"]["container"]["options"].split()
    assert {"--privileged", "--cgroupns=host"} <= set(options)
    places = {options[at + 1].partition(":")[0] for at, word in enumerate(options) if word == "--tmpfs"}
    assert places == {"/run", "/tmp"}
    assert "slurm-share-cache:/var/cache/slurm-share" in options


def test_git_is_there_before_the_checkout(jobs):
    """The checks list the files of the repository, and the action leaves none where there is no git."""
    for job in jobs.values():
        names = [step.get("uses", step.get("run", "")) for step in job["steps"]]
        git = next(at for at, name in enumerate(names) if " git " in name)
        assert git < next(at for at, name in enumerate(names) if name.startswith("actions/checkout"))


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md"])
def test_the_pages_name_what_is_here(name):
    text = (FOLDER / name).read_text()
    paths = re.findall(r"(?:^    |`)((?:packaging|tests|plugins|slurm_share)/[\w./-]+)", text, re.MULTILINE)
    assert paths
    assert [path for path in paths if not (CHECKOUT / path).exists()] == []
    assert "@" not in text


def test_the_top_level_is_as_the_readme_says():
    git = shutil.which("git")
    if git is None or not (CHECKOUT / ".git").exists():
        pytest.skip("NOT TESTED: no repository is here")
    argv = [git, "-c", f"safe.directory={CHECKOUT}", "-C", str(CHECKOUT), "ls-files"]
    files = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {file.strip('"').partition("/")[0] for file in files} == TOP

"""The workflow of GitHub runs commands that exist."""

from __future__ import annotations

import os
import re
from pathlib import Path

import yaml

CHECKOUT = Path(__file__).resolve().parents[2]


def test_the_workflow_runs_both_commands_and_they_are_here():
    workflow = yaml.safe_load((CHECKOUT / ".github/workflows/ci.yml").read_text())
    jobs = workflow["jobs"]
    assert set(workflow[True]) == {"push", "pull_request"}  # YAML 1.1 reads the key `on` as true
    assert workflow["permissions"] == {"contents": "read"}
    lines = [line for job in jobs.values() for step in job["steps"] for line in step.get("run", "").splitlines()]
    assert {"su builder -c tests/check.sh", "tests/run.sh"} <= set(lines)
    named = set(re.findall(r"\btests/\S+", "\n".join(lines)))
    assert [file for file in named if not os.access(CHECKOUT / file, os.X_OK)] == []
    assert {"--privileged", "--cgroupns=host"} <= set(jobs["cluster"]["container"]["options"].split())


def test_the_weekly_workflow_runs_every_part_of_the_script():
    workflow = yaml.safe_load((CHECKOUT / ".github/workflows/weekly.yml").read_text())
    assert set(workflow[True]) == {"schedule", "workflow_dispatch"}
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    script = (CHECKOUT / "tests/weekly.sh").read_text()
    parts = re.search('^parts="(.*)"$', script, re.MULTILINE)[1].split()
    assert job["strategy"]["matrix"]["part"] == parts
    assert job["steps"][-1]["run"] == "tests/weekly.sh ${{ matrix.part }}"
    assert re.findall(r"^\t(\w+)\)", script, re.MULTILINE) == parts
    assert re.findall(r"^  (\w+) +\S", script, re.MULTILINE)[: len(parts)] == parts
    named = re.findall(r"\btests/\w+\.(?:sh|py)", script)
    assert [file for file in named if not os.access(CHECKOUT / file, os.R_OK)] == []

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

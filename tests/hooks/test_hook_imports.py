"""The bench of the hooks' imports finds what each hook loads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench/hook_imports.py"
ALONE = ("unshare", "--pid", "--fork", "--mount-proc")
"""The jobs of a Slurm on this machine, as of a local cluster, would be in the way of the shared job."""


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root may give a job's files to its user")
def test_the_bench_of_imports_runs_every_kind_of_hook():
    own = ALONE if subprocess.run([*ALONE, "true"], capture_output=True).returncode == 0 else ()
    run = subprocess.run([*own, sys.executable, BENCH, "--modules"], capture_output=True, text=True, check=True)
    found = {what: modules.split() for what, modules in (line.rsplit(": ", 1) for line in run.stdout.splitlines())}
    assert list(found) == [
        "ordinary job: Prolog",
        "ordinary job: Epilog",
        "shared job with MPS: Prolog",
        "shared job with MPS: Epilog",
    ]
    for what, modules in found.items():
        assert ("slurm_share.mps.control" in modules) is ("MPS" in what), what
        assert not {"pynvml", "psutil", "httpx", "rich", "asyncio", "logging"} & set(modules)

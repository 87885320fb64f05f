"""Fixtures of the hooks' tests: processes of users, and hooks that run as slurmd starts them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator

import pytest
from hooked_nodes import HookedNode

from slurm_share.core import config, names
from slurm_share.share import hook


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Yield a function that starts a process of a user, with a job's number in its environment or none; end all of them
    afterwards."""
    children: list[subprocess.Popen[bytes]] = []

    def of(uid: int, job_id: int | None = None) -> subprocess.Popen[bytes]:
        env = {} if job_id is None else {"SLURM_JOB_ID": str(job_id)}
        children.append(subprocess.Popen(["/bin/sleep", "600"], user=uid, group=uid, env=env, start_new_session=True))
        return children[-1]

    yield of
    for child in children:
        child.kill()
        child.wait()


@pytest.fixture
def site(node: HookedNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[HookedNode]:
    """Yield the node, with hooks that use its folders and its config.toml when they run as slurmd starts them."""
    monkeypatch.setattr(names, "STATE_ROOT", str(node.paths.root))
    monkeypatch.setattr(names, "CONFIG_FILE", str(node.root / "config.toml"))
    monkeypatch.setattr(config, "CONFIG_FILE", node.root / "config.toml")
    monkeypatch.setattr("slurm_share.core.paths.Paths", lambda: node.paths)
    monkeypatch.setattr("slurm_share.share.user_folder.lacks_mount", lambda paths: False)  # no mount of a test's
    monkeypatch.setattr(hook, "_log_file", None)
    monkeypatch.setenv("PATH", os.environ["PATH"])
    before = os.umask(0o022)
    node.configure()
    yield node
    os.umask(before)

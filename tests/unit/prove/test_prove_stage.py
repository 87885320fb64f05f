"""The lock, the folder and the leftovers of a proof."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

from slurm_share.core.errors import StateError
from slurm_share.prove import stage
from slurm_share.testing import FakeNvml

as_root = pytest.mark.skipif(os.getuid() != 0, reason="NOT TESTED: only root may start programs as a user")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "FOLDER", tmp_path / "prove")
    monkeypatch.setattr(stage, "CGROUP_ROOT", str(tmp_path / "cgroup"))
    return stage.FOLDER


def test_nothing_is_left_after_a_proof(folder):
    with stage.alone("/mps"):
        (folder / "m").mkdir()
        assert not stage.is_left()
    assert not folder.exists()
    assert not stage.is_left()


def test_two_proofs_do_not_run_at_a_time(folder):
    with stage.alone("/mps"), pytest.raises(StateError, match="another `slurm-share prove`"), stage.alone("/mps"):
        pass


def test_a_killed_proof_is_found_and_the_next_one_removes_what_it_left(folder):
    (folder / "m/1").mkdir(parents=True)
    (folder / "lock").touch()
    assert stage.is_left()
    with stage.alone("/mps"):
        assert not (folder / "m").exists()
    assert not stage.is_left()


def test_the_program_needs_nothing_but_the_standard_library():
    tree = ast.parse(stage.PROGRAM.read_text())
    modules = {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules <= sys.stdlib_module_names


def test_the_program_says_that_there_is_no_cuda_and_ends():
    done = subprocess.run(
        [sys.executable, "-I", "-c", stage.PROGRAM.read_text(), "context"],
        capture_output=True, text=True, timeout=300, input="", env={"LD_LIBRARY_PATH": "/nonexistent"},
    )  # fmt: skip
    assert done.returncode == 1
    if "libcuda" in done.stdout:
        assert '"error": "libcuda.so.1: ' in done.stdout


def test_limits_are_taken_from_a_cgroup_before_it_is_removed(folder, tmp_path, monkeypatch):
    group = tmp_path / "cgroup/slurm-share/uid_61001/prove-task"
    group.mkdir(parents=True)
    (tmp_path / "cgroup/cgroup.controllers").touch()
    other = group.with_name("5131194a-9e2f6f")
    other.mkdir()
    calls = []
    monkeypatch.setattr(stage.nvml, "read_driver", lambda: FakeNvml().gpu().read_driver())
    monkeypatch.setattr(
        stage.nvml,
        "set_memory_limits",
        lambda _uuid, place, soft, hard: calls.append((place, soft, hard, group.exists())),
    )
    stage.clean("/mps")
    assert calls == [(str(group), 0, stage.nvml.NO_LIMIT, True)]
    assert not group.exists()
    assert other.exists()

"""The GPU share of a rank and its neighbours there, from the variables that Slurm and slurm-share set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from in_threads import run

from slurm_share.core import names
from slurm_share.spmd import gpus
from slurm_share.spmd.comm import COMM_WORLD, Comm
from slurm_share.spmd.gpus import GpuShare, read_share

ROOT = Path(__file__).parents[3]
FIRST, SECOND, INSTANCE = "GPU-aaaa", "GPU-bbbb", "MIG-cccc"
SLOT = {
    "CUDA_VISIBLE_DEVICES": FIRST,
    "SLURM_SHARE_GPU_UUID": FIRST,
    "SLURM_SHARE_SHARING": "mps",
    "SLURM_SHARE_SLOT": "3",
    "SLURM_SHARE_PER_GPU": "4",
    "SLURM_SHARE_MEM_LIMIT": "mps",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8192M",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
}


def test_the_variables_have_the_names_that_slots_set() -> None:
    ours = (gpus.ENV_VISIBLE, gpus.ENV_UUID, gpus.ENV_PER_GPU, gpus.ENV_SLOT, gpus.ENV_SHARING, gpus.ENV_MEM_LIMIT)
    theirs = names.ENV_VISIBLE_DEVICES, names.ENV_GPU_UUID, names.ENV_PER_GPU, names.ENV_SLOT, names.ENV_SHARING
    assert ours == (*theirs, names.ENV_MEM_LIMIT)
    assert (gpus.ENV_SIMULATED, gpus.ENV_MPS_MEMORY) == (names.ENV_SIMULATED, names.ENV_MPS_MEMORY)
    assert gpus.ENV_MPS_THREADS == names.ENV_MPS_THREADS


@pytest.mark.parametrize("visible", [None, "", "-1", "NoDevFiles", ","])
def test_a_rank_without_a_gpu_has_no_share(visible: str | None) -> None:
    assert read_share({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) is None


def test_a_slot_is_read_with_its_memory_and_its_part_of_the_multiprocessors() -> None:
    expected = GpuShare((FIRST,), (FIRST,), "mps", 3, 4, 8192, "mps", 25.0, False)
    assert read_share(SLOT) == expected
    assert expected.uuid == FIRST
    simulated = read_share(SLOT | {"SLURM_SHARE_SIMULATED": "1"})
    assert simulated is not None
    assert simulated.is_simulated


@pytest.mark.parametrize(
    ("environ", "uuids"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0"}, None),
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_SHARE_GPU_UUID": FIRST}, (FIRST,)),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_SHARE_GPU_UUID": FIRST}, None),
        ({"CUDA_VISIBLE_DEVICES": f"{FIRST}, {INSTANCE}"}, (FIRST, INSTANCE)),
    ],
)
def test_numbers_are_no_uuids_unless_slurm_share_tells_the_uuid(environ: dict[str, str], uuids: Any) -> None:
    share = read_share(environ)
    assert share is not None
    assert share.uuids == uuids


@pytest.mark.parametrize(
    ("text", "cap_mib"),
    [("0=8G", 8192), ("0=4096MB", 4096), ("1=8G", None), ("0=", None), ("0=many", None), ("1=1G,0=2G", 2048)],
)
def test_the_memory_cap_is_that_of_device_0(text: str, cap_mib: int | None) -> None:
    share = read_share({"CUDA_VISIBLE_DEVICES": FIRST, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": text})
    assert share is not None
    assert share.memory_cap_mib == cap_mib


def test_neighbours_are_the_ranks_of_the_node_with_a_gpu_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    visible = [FIRST, FIRST, f"{SECOND},{FIRST}", SECOND, "", "0", FIRST, FIRST]
    monkeypatch.setattr(Comm, "gpu", property(lambda comm: read_share({"CUDA_VISIBLE_DEVICES": visible[comm.rank]})))
    found = run(8, lambda comm: comm.gpu_neighbours(), per_node=6)
    assert found == [(1, 2), (0, 2), (0, 1, 3), (2,), (), None, (7,), (6,)]


def test_a_process_outside_a_run_has_its_share_and_no_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SLOT.items():
        monkeypatch.setenv(name, value)
    assert COMM_WORLD.gpu is not None
    assert COMM_WORLD.gpu.uuid == FIRST


def test_ranks_of_one_command_see_the_gpu_of_its_shell(tmp_path: Path) -> None:
    program = "from slurm_share.spmd import COMM_WORLD as c\nprint(c.gpu.uuid, c.gpu_neighbours())\n"
    (tmp_path / "prog.py").write_text(program)
    environ = os.environ | SLOT | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "slurm_share.spmd", "-n", "2", "prog.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
    assert sorted(line.removeprefix("[1] ") for line in done.stdout.splitlines()) == [
        f"{FIRST} (0,)",
        f"{FIRST} (1,)",
    ], done.stderr

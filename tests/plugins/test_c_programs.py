"""The plugin's pure parts, tested in C with the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"


PROGRAMS = [
    *(
        "test_options",
        "test_cores",
        "test_plan",
        "test_slots",
        "test_leases",
        "test_slot_wait",
        "test_mps",
        "test_exit_message",
    ),
    *("test_gres", "test_srun_arguments", "test_job_gpus", "test_batch_env", "test_site_mode", "test_given"),
    "test_private_folder",
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_tables_in_c_hold(program, c_program):
    """Each program prints the rows that failed, and ends with 0 only where all hold."""
    result = subprocess.run([c_program(program)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-4000:]


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Build the plugin; return its folder and the command of make."""
    if not Path("/usr/include/slurm/spank.h").exists():
        pytest.skip("NOT TESTED: libslurm-dev is not installed")
    folder = tmp_path_factory.mktemp("plugin")
    make = ["make", "-s", "-C", PLUGINS, f"BUILD={folder}"]
    subprocess.run(make, check=True)
    return folder, make


def test_only_slurms_symbols_leave_the_plugin(build):
    """slurmstepd maps the objects of all plugins into one process."""
    folder, _ = build
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", folder / "share_gpu.so"], capture_output=True, text=True, check=True
    )
    symbols = {line.split()[-1] for line in listing.stdout.splitlines()}
    assert symbols == {
        *("plugin_name", "plugin_type", "plugin_version", "spank_plugin_version"),
        *(
            "slurm_spank_init",
            "slurm_spank_init_post_opt",
            "slurm_spank_user_init",
            "slurm_spank_task_init",
            "slurm_spank_local_user_init",
        ),
        *("slurm_spank_task_post_fork", "slurm_spank_task_exit", "slurm_spank_exit"),
    }


def test_installing_replaces_the_object_in_one_step(build, tmp_path):
    """A second install leaves no half-written or temporary file beside the object."""
    install = [*build[1], f"DESTDIR={tmp_path}/root", "install"]
    subprocess.run(install, check=True)
    installed = tmp_path / "root/usr/lib/slurm-share/share_gpu.so"
    first = installed.stat().st_ino
    subprocess.run(install, check=True)
    assert installed.stat().st_ino != first
    assert sorted(path.name for path in installed.parent.iterdir()) == ["job_submit.lua", "share_gpu.so"]

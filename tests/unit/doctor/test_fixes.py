"""Actions of `slurm-share doctor --fix`: they change only what is ours and can be repeated."""

from __future__ import annotations

import os

import pytest

from slurm_share.core.errors import CommandError, StateError
from slurm_share.doctor import fixes
from slurm_share.doctor.checks.fixable import Fix


def test_a_link_is_pointed_elsewhere_in_one_step(tmp_path):
    link = tmp_path / "share_gpu.so"
    link.symlink_to("24.11/share_gpu.so")
    (tmp_path / "share_gpu.so.new").symlink_to("torn")
    for _ in range(2):
        fixes.relink(str(link), "26.05/share_gpu.so")
        assert [one.name for one in tmp_path.iterdir()] == ["share_gpu.so"]
        assert str(link.readlink()) == "26.05/share_gpu.so"
    link.unlink()
    link.write_text("an object")
    with pytest.raises(StateError, match="is no link"):
        fixes.relink(str(link), "26.05/share_gpu.so")
    assert link.read_text() == "an object"


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: files of root's need root")
def test_others_lose_their_write_permission_and_nothing_else_changes(tmp_path):
    file = tmp_path / "log"
    file.write_text("")
    file.chmod(0o666)
    fixes.narrow(str(file))
    assert file.stat().st_mode & 0o7777 == 0o644
    tmp_path.chmod(0o1777)
    fixes.narrow(str(tmp_path))
    assert tmp_path.stat().st_mode & 0o7777 == 0o1755
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(OSError, match="symbolic"):
        fixes.narrow(str(tmp_path / "link"))
    file.chmod(0o666)
    os.chown(file, 12345, 12345)
    with pytest.raises(StateError, match="uid 12345"):
        fixes.narrow(str(file))
    assert file.stat().st_mode & 0o7777 == 0o666


def test_the_epilog_is_run_as_slurmd_would(tmp_path):
    """With nothing of the caller's environment; one that fails is an error with its words."""
    program = tmp_path / "epilog"
    program.write_text(f'#!/bin/sh\nenv > {tmp_path}/env\n[ "$SLURM_JOB_ID" = 4711 ] || {{ echo why >&2; exit 1; }}\n')
    program.chmod(0o755)
    fixes.run_epilog(str(program), Fix("epilog", "", 4711, 99999, 2, "gpu"), "n1", timeout_s=300)
    said = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert {key: said[key] for key in said if key.startswith("SLURM")} == {
        "SLURM_JOB_ID": "4711", "SLURM_JOB_UID": "99999", "SLURM_JOB_GID": "99999", "SLURMD_NODENAME": "n1",
        "SLURM_SCRIPT_CONTEXT": "epilog_slurmd", "SLURM_JOB_RESTART_COUNT": "2", "SLURM_JOB_PARTITION": "gpu",
    }  # fmt: skip
    assert "HOME" not in said
    with pytest.raises(CommandError, match="why"):
        fixes.run_epilog(str(program), Fix("epilog", "", 1), "n1", timeout_s=300)


def test_a_link_that_is_gone_is_called_gone(tmp_path):
    with pytest.raises(StateError, match="is gone"):
        fixes.relink(str(tmp_path / "share_gpu.so"), "26.05/share_gpu.so")


def test_the_packages_program_is_run_and_its_reason_told(tmp_path):
    program = tmp_path / "choose"
    program.write_text(f"#!/bin/sh\necho $PATH >{tmp_path}/ran\n")
    program.chmod(0o755)
    fixes.choose_plugin(str(program))
    assert (tmp_path / "ran").read_text().startswith("/usr/sbin:")
    program.write_text("#!/bin/sh\necho lacks make >&2; exit 1\n")
    with pytest.raises(CommandError, match="lacks make"):
        fixes.choose_plugin(str(program))

"""A program on a user-mode Linux kernel with cgroup v2 only: it does what it does anywhere, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from localcluster import paths, process

pytestmark = [pytest.mark.cluster, pytest.mark.weekly, pytest.mark.weekly]

PROGRAM = """
trap 'echo interrupted; exit 7' INT
echo written > {folder}/file
cat /sys/fs/cgroup/cgroup.controllers {folder}/file
touch {kept}
sleep 600 & wait
"""


def kernels_of(pid: int) -> list[str]:
    """Return the processes below a process."""
    return process.run(["pgrep", "-P", str(pid)], check=False).stdout.split()


def test_a_program_on_a_kernel_of_its_own_leaves_the_machine_as_it_was(tmp_path: Path, can_make_clusters: None) -> None:
    kept = paths.CHECKOUT / f"build/kernel/{os.getpid()}"
    text = PROGRAM.format(folder=tmp_path, kept=kept)
    argv = [str(paths.HERE.parent / "cluster"), "--kernel", "v2", "run", "--", "bash", "-c", text]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        assert started.stdout
        assert started.stderr
        said = started.stdout.readline()
        if not said and started.wait() == 2:
            pytest.skip(f"NOT TESTED: {started.stderr.read().decode()}")
        assert set(said.split()) >= {b"memory", b"pids", b"cpu"}
        assert started.stdout.readline() == b"written\n"
        process.wait_until(kept.exists, "the file that is kept", 300)
        kept.unlink()
        children = kernels_of(started.pid)
        started.send_signal(signal.SIGINT)
        assert started.stdout.read() == b"interrupted\n"
        assert started.wait() == 7
    assert children
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert list(tmp_path.iterdir()) == []
    assert not (paths.RUN_ROOT / f"kernel.{started.pid}").exists()

"""`configure check`, which keeps a package from going while slurm.conf names its hooks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[3] / "packaging/share/libexec/configure"
OURS = "/opt/slurm-share/bin/slurm-share-epilog"


def check(conf: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """The check of that slurm.conf."""
    environ = {"PATH": os.environ["PATH"], "SLURM_CONF": str(conf), **environ}
    return subprocess.run(["/bin/sh", PROGRAM, "check"], env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "text",
    [
        f"Epilog={OURS}\n",
        f"ClusterName=x   EPILOG = {OURS} # ours\n",
        f'Epilog="{OURS}"\n',
        f"ClusterName=x \\\nEpilog={OURS}\n",
        "Prolog=hooks.d/*\n",
        "Prolog=/bin/true\nProlog={folder}/hooks.d/*\n",
        "Include more.conf\n",
        "include {folder}/more.d/*.conf\n",
    ],
)
def test_a_hook_of_ours_is_found_however_it_is_named(tmp_path: Path, text: str) -> None:
    """In any writing that Slurm reads, through includes, patterns and links."""
    (tmp_path / "hooks.d").mkdir()
    (tmp_path / "hooks.d/zz").symlink_to(OURS)
    (tmp_path / "more.d").mkdir()
    for more in ("more.conf", "more.d/a.conf"):
        (tmp_path / more).write_text(f"Epilog={OURS}\n")
    conf = tmp_path / "slurm.conf"
    conf.write_text(text.replace("{folder}", str(tmp_path)))
    done = check(conf)
    assert done.returncode == 1, done.stderr
    assert f"{conf} still names our hooks" in done.stderr
    assert "install --undo" in done.stderr
    assert check(conf, SLURM_SHARE_REMOVE_ANYWAY="1").returncode == 0


@pytest.mark.parametrize(
    "text", [f"#Epilog={OURS}\n", "Prolog=/bin/true\n", "", "include slurm.conf\n", "include no\n"]
)
def test_other_lines_hold_nothing_up(tmp_path: Path, text: str) -> None:
    """Comments, others' hooks, a file that includes itself."""
    (tmp_path / "slurm.conf").write_text(text)
    done = check(tmp_path / "slurm.conf")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_shared_job_on_this_host_holds_a_removal_up(tmp_path: Path) -> None:
    """Nobody would end its MPS daemons."""
    job = tmp_path / "run/slurm-share/jobs/42"
    job.mkdir(parents=True)
    done = check(tmp_path / "none", SLURM_SHARE_ROOT=str(tmp_path))
    assert done.returncode == 1
    assert "job 42 shares GPUs of this node" in done.stderr
    job.rmdir()
    assert check(tmp_path / "none", SLURM_SHARE_ROOT=str(tmp_path)).returncode == 0

"""The modules that Prolog and Epilog of an ordinary job load: every job of a cluster pays for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIGHT = {
    *("gc", "slurm_share", "slurm_share.core", "slurm_share.core.names", "slurm_share.share", "slurm_share.share.hook"),
    *("slurm_share.core.lazy", "slurm_share_hooks", "slurm_share_hooks.program"),
}
CODE = """
import os, sys
before = set(sys.modules)
from slurm_share_hooks import program, {hook}
code = {hook}.main()
print(code, *sorted(set(sys.modules) - before))
"""


def loaded(hook):
    """Run a hook for an ordinary job in a clean interpreter; its exit code and the modules it loaded."""
    run = subprocess.run(
        [sys.executable, "-I", "-c", CODE.format(hook=hook)],
        env={"SLURM_JOB_ID": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    code, *modules = run.stdout.split()
    return code, {module for module in modules if not module.startswith("__")}


def test_an_ordinary_jobs_hooks_load_nothing_heavy():
    assert loaded("prolog") == ("0", LIGHT | {"slurm_share_hooks.prolog"})
    assert loaded("epilog") == ("0", LIGHT | {"slurm_share_hooks.epilog"})


HELPER = """
import os, sys
from slurm_share.core import names
names.CONFIG_FILE, names.STATE_ROOT = sys.argv[1:]
from slurm_share_hooks import helper
from slurm_share.share import hook, user_folder
user_folder.lacks_mount = lambda paths: False
helper.load()
print(*sys.modules, flush=True)
before = set(sys.modules)
from slurm_share.core.errors import StateError
def leave(code):
    hook.explain(StateError("file", "why"))
    hook.explain(ValueError("why"))
    print(code, *sorted(set(sys.modules) - before), flush=True)
    os._exit(0)
helper.run_hook(helper.MAINS[os.environ.pop("HOOK")], leave)
"""
"""A hook in a process of the helper's; the first line lists what the helper has loaded."""
NEVER = {"pynvml", "psutil", "httpx", "rich", "asyncio", "ClusterShell", "logging", "slurm_share.slurm.jobs"}
"""Modules that neither the helper nor a hook loads."""
SHARED_JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_UID": "2001",
    "SLURM_JOB_GID": "2001",
    "SLURMD_NODENAME": "n1",
    "SPANK_SHARE_GPU": "2",
    "SLURM_JOB_EXTRA": "hers;slurm-share=on",
    "CUDA_VISIBLE_DEVICES": "0",
}


CHECKOUT = Path(__file__).parents[2]


@pytest.mark.parametrize("hook", ["prolog", "epilog"])
def test_the_helpers_hooks_find_everything_loaded(tmp_path, hook):
    """A hook pays each time for what it loads by itself; the helper has loaded it."""
    (tmp_path / "config.toml").write_text(f'mode = "on"\nlog_file = "{tmp_path}/log"\n')
    (tmp_path / "state/jobs/7").mkdir(parents=True)
    (tmp_path / "slurm_share").symlink_to(CHECKOUT / "slurm_share")
    (tmp_path / "slurm_share_hooks").symlink_to(CHECKOUT / "prolog")
    site = [str(tmp_path), *(path for path in sys.path if path.endswith("-packages"))]
    argv = [sys.executable, "-ISB", "-c", f"import sys; sys.path += {site!r}\n{HELPER}"]
    run = subprocess.run(
        [*argv, str(tmp_path / "config.toml"), str(tmp_path / "state")],
        capture_output=True,
        text=True,
        env={"HOOK": hook, **SHARED_JOB},
    )
    loaded, itself = run.stdout.splitlines()
    assert {"slurm_share.share.release", "slurm_share.node.gpus.driver", "tomllib"} <= set(loaded.split())
    assert NEVER & set(loaded.split()) == set()
    assert itself.split() == ["0"], run.stderr


LLLOAD = """
import sys
from slurm_share.cli import llload
from slurm_share.load.sources import srun
from slurm_share.load.sources import survey_reader
code = llload.main(["--demo", "-g", "-q"])
print(code, *sorted(sys.modules), file=sys.stderr)
"""
"""Runs `llload` and prints the modules that it has loaded."""


def test_llload_loads_no_engine_that_it_does_not_use():
    run = subprocess.run([sys.executable, "-I", "-c", LLLOAD], capture_output=True, text=True, check=True)
    code, *modules = run.stderr.split()
    assert code == "0"
    assert not {"httpx", "h11", "prometheus_client", "psutil", "pynvml", "textual", "asyncio"} & set(modules)


def test_every_public_name_can_be_imported():
    import slurm_share

    assert all(getattr(slurm_share, name) is not None for name in slurm_share.__all__)

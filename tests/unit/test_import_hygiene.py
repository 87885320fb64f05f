"""What an ordinary job's Prolog and Epilog load: every job of a cluster pays for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LIGHT = {"gc", "slurm_share", "slurm_share.names", "slurm_share_hooks", "slurm_share_hooks.hook"}
CODE = """
import os, sys
before = set(sys.modules)
from slurm_share_hooks import {hook}
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
    """Exit 0, and nothing was imported but the words and the hook itself."""
    assert loaded("prolog") == ("0", LIGHT | {"slurm_share_hooks.prolog"})
    assert loaded("epilog") == ("0", LIGHT | {"slurm_share_hooks.epilog"})


SHARED = """
import sys
from slurm_share import names
names.CONFIG_FILE, names.STATE_ROOT = sys.argv[1:]
from slurm_share_hooks import hook, settings_cache
settings_cache.SETTLED_S = 0.0
def main():
    hook.load_settings()
    from slurm_share_hooks import admission, observe, release
    loaded = {name: getattr(module, "__name__", "") for name, module in sys.modules.items() if module is not None}
    print(*(name for name, its_own in loaded.items() if its_own != "slurm_share_hooks.plain_records"), flush=True)
    return 0
hook.be_program(main)
"""
"""All that a shared job's hooks load, whatever befalls the job."""
NEVER = {"pynvml", "psutil", "typing_extensions", "httpx", "rich", "asyncio", "ClusterShell", "logging", "dataclasses"}
DEAR = {
    *("msgspec", "msgspec.json", "typing", "tomllib", "difflib", "json", "inspect", "subprocess", "selectors"),
    *("shutil", "tempfile", "random", "bz2", "lzma", "traceback", "ast", "decimal", "uuid", "datetime"),
}
"""What costs a hook a millisecond or more, and is loaded where it is needed, or not at all."""


CHECKOUT = Path(__file__).parents[2]


def shared(folder):
    """The modules that a hook has loaded when it is about to work, started as the packages start it."""
    site = [str(folder), *(path for path in sys.path if path.endswith("-packages"))]
    start = f"import sys; sys.path += {site!r}\n{SHARED}"
    argv = [sys.executable, "-IS", "-c", start, str(folder / "config.toml"), str(folder / "state")]
    return set(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root keeps settings")
def test_a_shared_jobs_hooks_load_nothing_dear(tmp_path):
    """The first hook after a change of the configuration reads it; those after it need neither TOML nor msgspec."""
    (tmp_path / "config.toml").write_text('mode = "on"\n')
    (tmp_path / "slurm_share").symlink_to(CHECKOUT / "slurm_share")
    (tmp_path / "slurm_share_hooks").symlink_to(CHECKOUT / "prolog")
    first, next_one = shared(tmp_path), shared(tmp_path)
    assert {"msgspec", "tomllib", "slurm_share_hooks.admission"} <= first
    assert {"slurm_share_hooks.release", "slurm_share.node.driver"} <= next_one
    assert NEVER & first == set()
    assert (NEVER | DEAR) & next_one == set()


LLLOAD = """
import sys
from slurm_share.cli import llload
from slurm_share.sources import srun, surveyor
code = llload.main(["--demo", "-g", "-q"])
print(code, *sorted(sys.modules), file=sys.stderr)
"""
"""What `llload` loads by itself, what it loads for its usual source, and a look at something."""


def test_llload_loads_no_engine_that_it_does_not_use():
    """Nor the driver's library: a look at one's nodes starts in a moment."""
    run = subprocess.run([sys.executable, "-I", "-c", LLLOAD], capture_output=True, text=True, check=True)
    code, *modules = run.stderr.split()
    assert code == "0"
    assert not {"httpx", "h11", "prometheus_client", "pynvml", "textual", "asyncio"} & set(modules)


def test_the_front_door_opens_to_every_name_it_shows():
    """What __all__ promises is there."""
    import slurm_share

    assert all(getattr(slurm_share, name) is not None for name in slurm_share.__all__)

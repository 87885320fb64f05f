"""What an ordinary job's Prolog and Epilog load: every job of a cluster pays for it."""

from __future__ import annotations

import subprocess
import sys

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
from slurm_share_hooks import hook
def main():
    from slurm_share_hooks import admission, observe, release
    print(*(name for name, module in sys.modules.items() if module is not None), flush=True)
    return 0
hook.be_program(main)
"""
"""All that a shared job's hooks may load."""


def test_a_shared_jobs_hooks_leave_out_what_python_has_itself():
    """msgspec would take typing_extensions, where it is installed, and with it `inspect` and the parser."""
    run = subprocess.run([sys.executable, "-I", "-c", SHARED], capture_output=True, text=True, check=True)
    modules = set(run.stdout.split())
    assert {"msgspec", "pynvml", "slurm_share_hooks.admission"} <= modules
    assert not {"typing_extensions", "httpx", "rich", "asyncio"} & modules


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

"""Prolog: decide about a shared job on this node, and write the plan that its tasks will carry out."""

from __future__ import annotations

import os
import sys
import time

from slurm_share import names

from . import hook


def main() -> int:
    """The Prolog of every job; an ordinary one costs the start of the interpreter and nothing more."""
    hook.set_search_path()
    if names.HOOK_VARIABLE not in os.environ:
        return names.EXIT_OK
    return hook.run("prolog", work)


def work() -> None:
    """Imported only for a shared job."""
    from slurm_share import config
    from slurm_share.paths import Paths

    from . import admission

    admission.admit_job(os.environ, Paths(), config.load().settings, time.time())


if __name__ == "__main__":
    sys.exit(main())

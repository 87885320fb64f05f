"""Epilog: remove what the Prolog of a shared job left on this node. Works alone, and twice."""

from __future__ import annotations

import os

from slurm_share import names

from . import hook


def main() -> int:
    """The Epilog of every job; one without a folder of ours costs one look for it."""
    hook.set_out()
    folder = f"{names.STATE_ROOT}/{names.JOBS_FOLDER}/{os.environ.get('SLURM_JOB_ID', 'none')}"
    if not os.path.lexists(folder):
        return names.EXIT_OK
    return hook.run("epilog", work)


def work() -> bool:
    """Imported only for a shared job. False: the node is unwell."""
    from slurm_share.paths import Paths

    from . import release

    settings = hook.load_settings("epilog")
    call_off = hook.watch("epilog", settings.release_deadline_s + release.SLACK_S, names.EXIT_NODE_UNWELL)
    try:
        return release.release_job(os.environ, Paths(), settings)
    finally:
        call_off()


def program() -> None:
    """The program that slurmd starts."""
    hook.be_program(main)


if __name__ == "__main__":
    program()

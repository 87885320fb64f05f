"""pPython's names on top of this package, for programs that were written for it.

A program started with `python -m slurm_share.spmd prog.py` or `llsub --spmd prog.py` has them. Any other process, such
as a notebook, gets them with

    from slurm_share.spmd import ppython
    ppython.install()

and runs as a single rank where it is not in a run.
"""

from __future__ import annotations

from .finder import install as install

"""pPython's names on top of this package, for programs that were written for pPython.

A program started with `python -m slurm_share.spmd prog.py` or `llsub --spmd prog.py` has them. Another process, such as
a notebook, gets them with

    from slurm_share.spmd import ppython
    ppython.install()

and is a single rank outside a run.
"""

from __future__ import annotations

from .finder import install as install

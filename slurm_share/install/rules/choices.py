"""Optional lines that also affect other users' jobs; each is written only with its `--with` value."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec import Struct

from ...share import site
from ...slurm.conf_text import ConfText

ALLOC, INTERACTIVE_STEP = "alloc", "interactive-step"
PARTIAL, MANAGED = "partial", "managed"
CHOICES = (ALLOC, INTERACTIVE_STEP, PARTIAL, MANAGED)
"""Values of `--with`. `partial`: not all nodes have the package. `managed`: edit parts that another tool writes."""


class OpenChoice(Struct, frozen=True):
    """One line that needs a `--with` value not given yet."""

    word: str
    line: str
    consequence: str
    """Effect on other users' jobs, and benefit for shares."""
    is_needed: bool
    """Whether shares need the line; nothing is written without it."""


def open_choices(slurm: ConfText, taken: Collection[str]) -> Iterator[OpenChoice]:
    """Yield the choices that neither the site's files nor `taken` settle."""
    flags, parameters = (
        frozenset(value.lower() for value in slurm.listed(key)) for key in ("PrologFlags", "LaunchParameters")
    )
    if ALLOC not in taken and not site.has_alloc(flags):
        yield OpenChoice(
            ALLOC,
            "PrologFlags=Alloc",
            "the Prolog of every job, the site's own too, then runs when the job is given its nodes, on all of them at "
            "once, and srun and salloc of everybody wait for it: 0.1 s more each, and a further second where a Prolog "
            "takes longer than that. Shares do without. With it, no user's srun can make a Prolog fail to start, which "
            "drains the node, and a job of several nodes that has unlike GPUs on them may begin with a step on some of "
            "its nodes",
            is_needed=False,
        )
    if INTERACTIVE_STEP not in taken and not site.has_interactive_step(parameters):
        yield OpenChoice(
            INTERACTIVE_STEP,
            "LaunchParameters=use_interactive_step",
            "the shell of every salloc, of everybody and at once, then runs on its job's first node. Shares do "
            "without: where the shell stays on the login node, each srun in it shares",
            is_needed=False,
        )

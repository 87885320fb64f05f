"""Lines that change other people's jobs as well: each is written where somebody says its word, and not otherwise."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec import Struct

from ..conf_text import ConfText
from ..installed import PROLOG_NAME
from . import site_rules

ALLOC, INTERACTIVE_STEP = "alloc", "interactive-step"
WORDS = (ALLOC, INTERACTIVE_STEP)
"""As `--with` takes them."""


class Choice(Struct, frozen=True):
    """One line that nobody has said the word for."""

    word: str
    line: str
    consequence: str
    """What changes for whom, and what shares have from it."""
    is_needed: bool
    """Whether shares need it: then nothing is written without the word."""


def open_choices(slurm: ConfText, taken: Collection[str]) -> Iterator[Choice]:
    """What a site has to choose: what it has already, or has said the word for, is chosen."""
    flags, parameters = (
        frozenset(word.lower() for word in slurm.words(key)) for key in ("PrologFlags", "LaunchParameters")
    )
    if ALLOC not in taken and not site_rules.has_alloc(flags) and _has_other_prolog(slurm):
        yield Choice(
            ALLOC,
            "PrologFlags=Alloc",
            "the site's own Prolog, too, then runs when a job is given its nodes, on all of them at once, and no "
            "longer with the job's first step on each. Shares need it: without it a node learns of a job with that "
            "job's first step, and until then takes itself for free though another user has been given it",
            is_needed=True,
        )
    if INTERACTIVE_STEP not in taken and not site_rules.has_interactive_step(parameters):
        yield Choice(
            INTERACTIVE_STEP,
            "LaunchParameters=use_interactive_step",
            "the shell of every salloc, of everybody and at once, then runs on its job's first node. Shares do "
            "without: where the shell stays on the login node, each srun in it shares",
            is_needed=False,
        )


def _has_other_prolog(slurm: ConfText) -> bool:
    """Whether anything but ours is there for Alloc to run earlier. A pattern counts: what it finds differs by node."""
    return any(value.rpartition("/")[2] != PROLOG_NAME for value in slurm.values("Prolog") if value)

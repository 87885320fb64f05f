"""Parse the controller's verdict on a job, and derive the job's mode from it and from the node's own mode.

job_submit.lua writes the verdict after the user's own text in the job's `extra` (or `comment`), as
`slurm-share=MODE[,FIELD...]`, with items separated by `;`. The fields:

    runs=R       the verdict holds for runs that were requeued fewer than R times; later runs are `off`
    whole        (observe) with `on`, the job would have whole nodes
    part         (observe) ... a part of one GPU
    tasks=N      (observe) ... so many tasks
    refused      (observe) ... been refused at submission
    share-gpu=S  (on) the job's share S, the last field: S may have commas in it

Unknown fields are of a later release and are ignored. A user may have written into the field: of several verdicts the
least holds, and one that cannot be parsed is `off`.
"""

from __future__ import annotations

from msgspec import Struct

from ...core import names, numbers
from ...core.typed import Literal

Mode = Literal["off", "observe", "on"]
MODES: tuple[Mode, ...] = ("off", "observe", "on")
"""The modes, the least first."""
NAME = names.VERDICT
_ITEM = f"{NAME}="
_SHARE = f",{names.OPTION}="
_MOST = 999_999


class JobVerdict(Struct, frozen=True):
    """The controller's verdict on one job."""

    mode: Mode
    runs: int | None = None
    """The number of runs, including those after a requeue, for which it holds; None: all."""
    whole: bool = False
    part: bool = False
    tasks: int | None = None
    refused: bool = False
    share: str = ""
    """The value of --share-gpu; empty: the verdict does not have it."""

    def at(self, restart_count: int | None) -> Mode:
        """Return the mode of the run after so many requeues; None counts as the first run."""
        return "off" if self.runs is not None and (restart_count or 0) >= self.runs else self.mode


def least(*modes: Mode) -> Mode:
    """Return the least of the modes."""
    return min(modes, key=MODES.index)


def read(*texts: str | None) -> JobVerdict | None:
    """Return the verdict in a job's fields, the least one of several; None: there is none."""
    found = [_one(item[len(_ITEM) :]) for text in texts for item in (text or "").split(";") if item.startswith(_ITEM)]
    return min(found, key=lambda one: MODES.index(one.mode), default=None)


def _one(text: str) -> JobVerdict:
    text, _, share = text.partition(_SHARE)
    mode, *values = text.split(",")
    said = dict(value.partition("=")[::2] for value in values)
    known = next((one for one in MODES if one == mode), None)
    if known is None:
        return JobVerdict("off")
    return JobVerdict(
        known,
        _number(said.get("runs")),
        whole="whole" in said,
        part="part" in said,
        tasks=_number(said.get("tasks")),
        refused="refused" in said,
        share=share,
    )


def _number(text: str | None) -> int | None:
    return numbers.whole(text, _MOST)


def replaced(text: str | None, item: str | None) -> str:
    """Return a field's text with `item` as its only verdict, at the end; None: without a verdict."""
    kept = [part for part in (text or "").split(";") if not part.startswith(_ITEM)]
    own = ";".join(kept)
    return own if item is None else f"{own};{item}" if own else item


def written(mode_and_fields: str, share: str) -> str:
    """Return the verdict as the item of a field; share: empty if it does not have it."""
    return f"{_ITEM}{mode_and_fields}{_SHARE}{share}" if share else f"{_ITEM}{mode_and_fields}"


def item(text: str | None) -> str | None:
    """Return the text of the verdict in a field; None: there is none, or more than one."""
    found = [part for part in (text or "").split(";") if part.startswith(_ITEM)]
    return found[0] if len(found) == 1 else None


class InForce(Struct, frozen=True):
    """The mode of one job on one node."""

    mode: Mode
    why: str
    """If it is not `on`: what decided that, for the job's user."""


def in_force(
    own: Mode,
    verdict: JobVerdict | None,
    everywhere: Mode | None,
    *,
    restart_count: int | None,
    shares: bool,
    uses_job_submit: bool,
) -> InForce:
    """Return the least of the node's `own` mode, the controller's verdict, and the mode file's mode (`everywhere`).

    A job that `shares` and has no verdict is `off`, unless the site does not use our job_submit.lua. For an ordinary
    job, which the hooks handle on nodes kept to one user, the verdict counts only if it is `off`.
    """
    said: list[InForce] = [InForce(own, f"this node has sharing {_STATES[own]} in the job's partition")]
    if uses_job_submit and verdict is not None and (shares or verdict.mode == "off"):
        mode = verdict.at(restart_count)
        said.append(InForce(mode, f"the controller has sharing {_STATES[mode]} for this job"))
    elif uses_job_submit and shares:
        said.append(InForce("off", "it came here without the controller's verdict"))
    if everywhere is not None:
        said.append(InForce(everywhere, "the site has sharing " + _STATES[everywhere]))
    return min(said, key=lambda one: MODES.index(one.mode))


_STATES = {"off": "switched off", "observe": "only observed", "on": "on"}


def mode_of_file(text: str) -> Mode:
    """Return the mode in the text of a mode file; `off` for any other text, since the mode was to be changed."""
    return next((one for one in MODES if one == text.strip()), "off")

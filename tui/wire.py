"""What the feed process and the dashboard say to one another: a line of JSON each, through pipes.

A survey of 10,000 nodes comes as Begin, many Parts and an End, so that the dashboard never decodes for longer than a
key press may wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from slurm_share.load import Advice, NodeRow, Survey
from slurm_share.slurm.records import QueuedJob

PART_NODES, PART_JOBS, PART_ADVICE = 50, 500, 100
"""In one Part, a millisecond's work each."""


class Position(Struct, frozen=True, gc=False, kw_only=True):
    """Where a replay stands."""

    number: int
    """Number of this survey, from 1."""
    count: int
    first: float
    """Unix time of the first survey."""
    last: float
    speed: float
    """1.0: as fast as it was recorded."""
    is_over: bool = False


class Point(Struct, frozen=True, gc=False, array_like=True):
    """The figures of one subject at one time; percent, may exceed 100. None: unknown."""

    taken: float
    """Unix time."""
    cpu_load_percent: float | None = None
    """Load of 5 minutes, of its CPUs."""
    gpu_load_percent: float | None = None
    """GPU load as llload has it (SM activity, else utilisation), a mean over its GPUs."""
    sm_percent: float | None = None
    """SM activity alone."""
    memory_percent: float | None = None
    """Host memory in use."""
    gpu_memory_percent: float | None = None


class Subject(Struct, frozen=True, gc=False):
    """What a history describes: a node, one of its GPUs, or a user or a job on all nodes."""

    node: str = ""
    gpu: str = ""
    """UUID."""
    user: str = ""
    job: int = 0
    """Slurm's number; 0: no job."""


# --- From the feed process --------------------------------------------------------------------------------------------


class Begin(Struct, frozen=True, gc=False, tag=True, kw_only=True):
    """A survey begins."""

    survey: Survey
    """Without its nodes and jobs."""
    nodes: int
    """How many follow."""
    took_s: float
    details: bool = True
    """False: a line for each node is all that there is of it (no processes, jobs and users)."""
    position: Position | None = None
    """In a replay."""
    is_earlier: bool = False
    """True: for the history alone; newer ones follow at once."""


class Part(Struct, frozen=True, gc=False, tag=True):
    """A part of a survey's nodes, jobs and advice."""

    rows: tuple[NodeRow, ...] = ()
    jobs: tuple[QueuedJob, ...] = ()
    advice: tuple[Advice, ...] = ()


class End(Struct, frozen=True, gc=False, tag=True):
    """The survey is complete."""


class FeedFailure(Struct, frozen=True, gc=False, tag="Trouble"):
    """A survey failed, and why; the next one is read at its time."""

    why: str
    is_over: bool = False
    """True: there is no next one, because what was asked for cannot be, or the dashboard does not listen any more."""


class RecordedPoints(Struct, frozen=True, gc=False, tag="Past"):
    """The answer to AskRecorded: all recorded points of a subject; none if nothing is recorded."""

    subject: Subject
    points: tuple[Point, ...]


Said = Begin | Part | End | FeedFailure | RecordedPoints

# --- To it ------------------------------------------------------------------------------------------------------------


class ReadNow(Struct, frozen=True, gc=False, tag="Look"):
    """Read a survey now, ahead of its time."""


class Every(Struct, frozen=True, gc=False, tag=True):
    """Set the interval between two surveys, seconds."""

    seconds: float


class Details(Struct, frozen=True, gc=False, tag=True):
    """Whether more than a line for each node is wanted."""

    wanted: bool


class Hold(Struct, frozen=True, gc=False, tag=True):
    """Pause or go on: a paused replay stands still, a paused source is not read."""

    held: bool


class Step(Struct, frozen=True, gc=False, tag=True):
    """In a replay: move forward by this number of surveys, or back by a negative number."""

    count: int


class Seek(Struct, frozen=True, gc=False, tag=True):
    """In a replay: go to this time."""

    taken: float


class Speed(Struct, frozen=True, gc=False, tag=True):
    """In a replay: set the speed; 2.0 is twice as fast as recorded."""

    factor: float


class AskRecorded(Struct, frozen=True, gc=False, tag="AskPast"):
    """Ask for the recorded points of a subject."""

    subject: Subject


Told = ReadNow | Every | Details | Hold | Step | Seek | Speed | AskRecorded

_encoder = msgspec.json.Encoder()
_said = msgspec.json.Decoder(Said)
_told = msgspec.json.Decoder(Told)


def line(message: Said | Told) -> bytes:
    """The message with its newline."""
    return _encoder.encode(message) + b"\n"


def said(text: str | bytes) -> Said:
    """What the feed process said. Raises msgspec.DecodeError for anything else."""
    message: Said = _said.decode(text)
    return message


def told(text: str | bytes) -> Told:
    """What the dashboard told. Raises msgspec.DecodeError for anything else."""
    message: Told = _told.decode(text)
    return message


def parts(rows: Sequence[NodeRow], jobs: Sequence[QueuedJob] = (), advice: Sequence[Advice] = ()) -> Iterator[Part]:
    """Split a survey into parts."""
    for at in range(0, len(rows), PART_NODES):
        yield Part(rows=tuple(rows[at : at + PART_NODES]))
    for at in range(0, len(jobs), PART_JOBS):
        yield Part(jobs=tuple(jobs[at : at + PART_JOBS]))
    for at in range(0, len(advice), PART_ADVICE):
        yield Part(advice=tuple(advice[at : at + PART_ADVICE]))

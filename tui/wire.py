"""The messages between the feed process and the dashboard, one line of JSON each, through pipes.

A survey of 10,000 nodes is sent as Begin, many Parts and End, so that decoding never delays a key press.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from slurm_share.load import Advice, NodeRow, QueueState, Survey
from slurm_share.slurm.records import QueuedJob

PART_NODES, PART_JOBS, PART_ADVICE = 50, 500, 100
"""Most entries of one Part. Decoding one takes about a millisecond."""


class Position(Struct, frozen=True, gc=False, kw_only=True):
    """The position of a replay in its recording."""

    number: int
    """Number of this survey, from 1."""
    count: int
    """Number of surveys in the recording."""
    first: float
    """Unix time of the first survey."""
    last: float
    speed: float
    """1.0: the speed at which it was recorded."""
    is_over: bool = False


class Point(Struct, frozen=True, gc=False, array_like=True):
    """The figures of one subject at one time, in percent; they may exceed 100. None: unknown."""

    taken: float
    """Unix time."""
    cpu_load_percent: float | None = None
    """Load average of 5 minutes, relative to the CPUs."""
    gpu_load_percent: float | None = None
    """GPU load as in llload (SM activity, else utilisation), the mean over the GPUs."""
    sm_percent: float | None = None
    """SM activity alone."""
    memory_percent: float | None = None
    """Host memory in use."""
    gpu_memory_percent: float | None = None


class Subject(Struct, frozen=True, gc=False):
    """The subject of a history: a node, one of its GPUs, or a user or a job on all nodes."""

    node: str = ""
    gpu: str = ""
    """UUID of the GPU."""
    user: str = ""
    job: int = 0
    """Slurm's number; 0: no job."""


class SurveyBegin(Struct, frozen=True, gc=False, tag=True, kw_only=True):
    """The first message of a survey."""

    survey: Survey
    """The survey without its nodes and jobs."""
    nodes: int
    """Number of nodes that follow."""
    took_s: float
    details: bool = True
    """False: the survey has one line for each node, and no processes, jobs and users."""
    position: Position | None = None
    """None: not a replay."""
    is_earlier: bool = False
    """True: the survey is for the history only; newer ones follow at once."""


class SurveyPart(Struct, frozen=True, gc=False, tag=True):
    """A part of a survey's nodes, jobs and advice."""

    rows: tuple[NodeRow, ...] = ()
    jobs: tuple[QueuedJob, ...] = ()
    advice: tuple[Advice, ...] = ()


class SurveyEnd(Struct, frozen=True, gc=False, tag=True):
    """The last message of a survey."""


class FeedFailure(Struct, frozen=True, gc=False, tag=True):
    """Reports that a survey failed. The next one follows after the interval."""

    why: str
    is_over: bool = False
    """True: no survey follows, because the request is invalid or the dashboard has stopped reading."""


class RecordedPoints(Struct, frozen=True, gc=False, tag=True):
    """Answers ReadRecorded with all recorded points of a subject; empty: there are none."""

    subject: Subject
    points: tuple[Point, ...]


class QueueRead(Struct, frozen=True, gc=False, tag=True):
    """The queue of the whole cluster, while ShowQueue asks for it."""

    state: QueueState


class JobLife(Struct, frozen=True, gc=False, tag=True, kw_only=True):
    """Answers ReadLife with the course of a job over its whole life."""

    job: int
    points: tuple[Point, ...] = ()
    """`cpu_load_percent`: CPU time in percent of the CPUs that it has. `memory_percent`: of its limit."""
    by: str = ""
    """The source of the points as a phrase for the title, such as: the agents' records."""
    problem: str = ""
    """Why nothing is known."""


class JobEnd(Struct, frozen=True, gc=False, tag=True):
    """Answers ReadEnd with Slurm's record of a job that has ended; None: Slurm does not know it any more."""

    job: int
    record: QueuedJob | None = None


Message = SurveyBegin | SurveyPart | SurveyEnd | FeedFailure | RecordedPoints | QueueRead | JobLife | JobEnd


class ReadNow(Struct, frozen=True, gc=False, tag=True):
    """Asks for a survey now, without waiting for the interval."""


class SetInterval(Struct, frozen=True, gc=False, tag=True):
    """Sets the interval between two surveys, seconds."""

    seconds: float


class ShowDetails(Struct, frozen=True, gc=False, tag=True):
    """Turns the details of surveys on or off: processes, jobs and users besides a line for each node."""

    wanted: bool


class ShowQueue(Struct, frozen=True, gc=False, tag=True):
    """Begins or ends reading the queue of the whole cluster."""

    wanted: bool


class PauseFeed(Struct, frozen=True, gc=False, tag=True):
    """Pauses or resumes: a paused replay stops, a paused source is not read."""

    held: bool


class StepReplay(Struct, frozen=True, gc=False, tag=True):
    """Moves a replay by this number of surveys; a negative number moves it back."""

    count: int


class Seek(Struct, frozen=True, gc=False, tag=True):
    """Moves a replay to this time."""

    taken: float


class SetSpeed(Struct, frozen=True, gc=False, tag=True):
    """Sets the speed of a replay; 2.0 is twice as fast as recorded."""

    factor: float


class ReadRecorded(Struct, frozen=True, gc=False, tag=True):
    """Asks for the recorded points of a subject."""

    subject: Subject


class ReadLife(Struct, frozen=True, gc=False, tag=True, kw_only=True):
    """Asks for the course of a job over its whole life, of a live cluster."""

    job: int
    nodes: tuple[str, ...] = ()
    began: float | None = None
    """Unix time of its start."""
    cpus: int | None = None
    gpus: int | None = None
    memory_mib: int | None = None
    """Resources that Slurm gave it on all nodes."""


class ReadEnd(Struct, frozen=True, gc=False, tag=True):
    """Asks how a job has ended."""

    job: int


Command = (
    ReadNow
    | SetInterval
    | ShowDetails
    | ShowQueue
    | PauseFeed
    | StepReplay
    | Seek
    | SetSpeed
    | ReadRecorded
    | ReadLife
    | ReadEnd
)

_encoder = msgspec.json.Encoder()
decode_message = msgspec.json.Decoder[Message](Message).decode
decode_command = msgspec.json.Decoder[Command](Command).decode
"""Return the message or command in a line. Raise msgspec.DecodeError if it holds none."""


def encode(message: Message | Command) -> bytes:
    return _encoder.encode(message) + b"\n"


def parts(
    rows: Sequence[NodeRow], jobs: Sequence[QueuedJob] = (), advice: Sequence[Advice] = ()
) -> Iterator[SurveyPart]:
    for at in range(0, len(rows), PART_NODES):
        yield SurveyPart(rows=tuple(rows[at : at + PART_NODES]))
    for at in range(0, len(jobs), PART_JOBS):
        yield SurveyPart(jobs=tuple(jobs[at : at + PART_JOBS]))
    for at in range(0, len(advice), PART_ADVICE):
        yield SurveyPart(advice=tuple(advice[at : at + PART_ADVICE]))

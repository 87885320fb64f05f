"""Records of decisions: the actions that a launcher carries out, and why waiting tasks did not start."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .speed_records import SharingMethod


class Start(Struct, frozen=True, tag="start", kw_only=True):
    """Start a task."""

    task: int
    gpus: tuple[str, ...]
    reserve_mib: int
    cap_mib: int | None = None
    is_alone: bool = False
    sm_percent: float | None = None
    """Share of the multiprocessors that the task may use; None: no limit."""
    sharing: SharingMethod | None = None
    """None: the method that is set up on the GPU."""
    why: str


class _OnGpu(Struct, frozen=True, kw_only=True):
    """The fields of an action on a running task."""

    task: int
    gpu: str
    why: str


class Pause(_OnGpu, frozen=True, tag="pause"):
    """Pause a running task (SIGSTOP). It keeps its memory, which stays booked."""


class Resume(_OnGpu, frozen=True, tag="resume"):
    """Resume a paused task (SIGCONT)."""


class Move(_OnGpu, frozen=True, tag="move"):
    """Tell a task to save its state and end, to start on another GPU. The attempt does not count."""


class Hold(Struct, frozen=True, tag="hold", kw_only=True):
    """Keep a GPU free for a task; `task` None: end the hold."""

    task: int | None
    gpu: str
    why: str


class GiveUp(Struct, frozen=True, tag="give up", kw_only=True):
    """End a waiting task without another attempt."""

    task: int
    outcome: Literal["gpu memory", "not started", "given up"]
    why: str


class Reserve(Struct, frozen=True, tag="reserve", kw_only=True):
    """Change the reservation of a running task."""

    task: int
    reserve_mib: int
    is_flat: bool
    why: str


Action = Start | Hold | GiveUp | Reserve | Pause | Resume | Move


class StartRefusal(Struct, frozen=True):
    """Why a waiting task did not start on a GPU."""

    task: int
    gpu: str
    """UUID; empty: the reason is not about a GPU (no free worker, or an earlier task has to start first)."""
    why: str
    room_mib: int | None = None
    needs_mib: int | None = None


class Decision(Struct, frozen=True, kw_only=True):
    """The result of one call of `decide`."""

    actions: tuple[Action, ...] = ()
    refused: tuple[StartRefusal, ...] = ()

"""Public interface of messages: communicators, with mpi4py's names and order of arguments."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn

from . import world
from .collective_calls import CollectiveCalls
from .constants import ANY_SOURCE as ANY_SOURCE
from .constants import ANY_TAG as ANY_TAG
from .gpus import GpuCalls
from .left_out import LeftOutCalls
from .point_to_point import PointToPoint
from .reductions import MAX as MAX
from .reductions import MIN as MIN
from .reductions import PROD as PROD
from .reductions import SUM as SUM
from .reductions import Op as Op
from .status import Status as Status


class Comm(PointToPoint, CollectiveCalls, GpuCalls, LeftOutCalls):
    """Communicator of all ranks of a run."""

    def __repr__(self) -> str:
        if "group" not in vars(self):
            return "<Comm, not connected yet>"
        return f"<Comm: rank {self.rank} of {self.size} on {self.node}>"

    def abort(self, code: int = 1, why: str = "") -> NoReturn:
        """End the run: the current or next call of every rank raises Aborted, and this process exits with the code."""
        self.transport.abort(int(code), why)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the reader is gone, or the stream is closed
                stream.flush()
        os._exit(int(code) & 0xFF or 1)

    Abort = abort
    """mpi4py's name of `abort`."""


COMM_WORLD = Comm(world.transport)

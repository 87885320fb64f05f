"""Read the history of one node, GPU, job or user from a recording while it is played, for the large plot."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from slurm_share.core.errors import StateError
from slurm_share.load import NodeLoad, NodeRow, Survey, idle
from slurm_share.load import figures as load_figures
from slurm_share.load import recording as load_recording

from .history_values import point_of
from .wire import Point, RecordedPoints, Subject

POINTS_MOST = 1000
"""Most points, more than a plot has columns. Longer recordings are sampled at even distances."""


class RecordedReader:
    """Reads in its own thread. A new question cancels an unanswered one."""

    def __init__(self, file: Path, say: Callable[[RecordedPoints], None]) -> None:
        self._file, self._say = file, say
        self._asked: Subject | None = None
        self._is_over = False
        self._came = threading.Condition()
        threading.Thread(target=self._run, name="recorded history", daemon=True).start()

    def ask(self, subject: Subject) -> None:
        """Read a subject's points and post them."""
        with self._came:
            self._asked = subject
            self._came.notify()

    def close(self) -> None:
        with self._came:
            self._is_over = True
            self._came.notify()

    def _run(self) -> None:
        # The file may change meanwhile, and the dashboard may end.
        with contextlib.suppress(StateError, OSError):
            recording = load_recording.Recording(self._file)
            try:
                places = _spread(sorted(recording.places(), key=lambda place: place.taken))
                while (subject := self._next()) is not None:
                    points = self._points(recording, places, subject)
                    if points is not None:
                        self._say(RecordedPoints(subject, points))
            finally:
                recording.close()

    def _next(self) -> Subject | None:
        with self._came:
            self._came.wait_for(lambda: self._asked is not None or self._is_over)
            subject, self._asked = self._asked, None
            return None if self._is_over else subject

    def _points(
        self, recording: load_recording.Recording, places: list[load_recording.Place], subject: Subject
    ) -> tuple[Point, ...] | None:
        found = []
        for place in places:
            if self._asked is not None or self._is_over:
                return None
            with contextlib.suppress(StateError):  # the line holds no survey
                found.append(_point(recording.at(place), subject))
        return tuple(found)


def _spread(places: list[load_recording.Place]) -> list[load_recording.Place]:
    if len(places) <= POINTS_MOST:
        return places
    return [places[at * (len(places) - 1) // (POINTS_MOST - 1)] for at in range(POINTS_MOST)]


def _point(survey: Survey, subject: Subject) -> Point:
    nodes = idle.judged(survey).nodes if subject.job else survey.nodes
    rows = [NodeRow(node, load_figures.figures(node)) for node in nodes if _has(node, subject)]
    return point_of(rows, subject, survey.taken)


def _has(node: NodeLoad, subject: Subject) -> bool:
    if subject.job:
        numbers = {one.job for one in node.held_gpus or ()}
        return node.snapshot is not None and subject.job in numbers.union(one.job for one in node.snapshot.jobs)
    if not subject.user:
        return node.name == subject.node
    return node.snapshot is not None and any(user.user == subject.user for user in node.snapshot.users)

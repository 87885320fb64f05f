"""Replay a recording: its surveys one after another, or the one of a given time."""

from __future__ import annotations

import bisect
from pathlib import Path

from msgspec.structs import replace

from ...core.errors import StateError
from ..recording import Recording, RecordingPlace
from ..snapshot import Survey


class Replay:
    """A recording, in place of a SurveyReader. Lines without a survey are left out and counted. Raises StateError for a
    file that cannot be read or has no survey."""

    def __init__(self, path: Path) -> None:
        self._recording = Recording(path)
        self._places: list[RecordingPlace] = sorted(self._recording.places(), key=lambda place: place.taken)
        self._next = 0
        self._lost = 0
        """Surveys that the file had when it was opened and has lost since."""
        self._ahead: Survey | None = None
        """The next survey, if it has been read."""
        try:
            self._check()
        except StateError:
            self._recording.close()
            raise

    @property
    def position(self) -> int:
        """Return the index of the next survey, from 0."""
        return self._next

    @property
    def count(self) -> int:
        """Return the number of surveys."""
        return len(self._places)

    @property
    def next_taken(self) -> float | None:
        """Return the Unix time of the next survey; None: there is none."""
        return self._places[self._next].taken if self._next < len(self._places) else None

    @property
    def first(self) -> float:
        """Return the Unix time of the first survey."""
        return self._places[0].taken

    @property
    def last(self) -> float:
        """Return the Unix time of the last survey."""
        return self._places[-1].taken

    @property
    def is_over(self) -> bool:
        """Return whether there is no further survey."""
        return not self._read_ahead()

    def seek(self, taken: float) -> None:
        """Go to the newest survey that is not later than `taken`; to the first if all are later."""
        count = -1
        while count != len(self._places):
            count = len(self._places)
            after = bisect.bisect_right(self._places, taken, key=lambda place: place.taken)
            self._next, self._ahead = max(0, after - 1), None
            self._read_ahead()

    def step(self, count: int) -> None:
        """Move forward by that many surveys, or back by a negative number; stop at either end."""
        self._next, self._ahead = max(0, min(len(self._places) - 1, self._next + count)), None

    def read(self, timeout_s: float = 0.0) -> Survey:
        """Return the next survey; at the end the last one again. Its source is "replay"; the snapshots keep theirs.
        Raises StateError if the file has no survey any more."""
        while not self._read_ahead():
            self._check()
            self._next = len(self._places) - 1
        survey, self._ahead = self._ahead, None
        assert survey is not None
        self._next += 1
        number = self._next
        self._read_ahead()  # so that a bad line at the end of the file is in the notes
        return replace(survey, source="replay", notes=(*survey.notes, *self._notes(survey, number)))

    def _read_ahead(self) -> bool:
        """Read the next survey ahead; return False if there is none."""
        while self._ahead is None and self._next < len(self._places):
            try:
                self._ahead = self._recording.at(self._places[self._next])
            except StateError:
                if self._recording.has_lost(self._places[self._next]):
                    self._lost += len(self._places) - self._next
                    del self._places[self._next :]
                    break
                # Its head was valid, and the rest is not.
                del self._places[self._next]
                self._recording.skipped += 1
        return self._ahead is not None

    def _check(self) -> None:
        if not self._places:
            lost = self._lost_text() if self._lost else ""
            raise StateError(str(self._recording.path), lost or f"holds no survey{self._skipped_text(' and ')}")

    def _notes(self, survey: Survey, number: int) -> list[str]:
        said = [f"recorded from {survey.source}: survey {number} of {len(self._places)}"]
        left_out = self._skipped_text(" ")
        said += [f"{self._recording.path.name} has{left_out}, left out"] if left_out else []
        return said + ([f"{self._recording.path.name} {self._lost_text()}"] if self._lost else [])

    def _lost_text(self) -> str:
        return f"has become shorter: {self._lost} survey{'s' * (self._lost != 1)} of it cannot be read any more"

    def _skipped_text(self, before: str) -> str:
        count = self._recording.skipped
        return f"{before}{count} line{'s' * (count != 1)} that {'are' if count != 1 else 'is'} none" if count else ""

    def close(self) -> None:
        """Close the recording's file."""
        self._recording.close()

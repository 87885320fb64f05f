"""Reads the queue of the whole cluster in the feed process, while a view shows it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from slurm_share.load import QueueState, queue_reader

from .wire import QueueRead

EVERY_S = 60.0
"""Seconds between two readings, as between two queries of Slurm for a survey."""
AGAIN_S = 5.0
"""Least seconds between two readings that the user asks for."""


class QueueWatcher:
    """Reads in a thread of its own, so that a slow Slurm delays no survey. It reads nothing until it is wanted."""

    def __init__(
        self,
        say: Callable[[QueueRead], None],
        read: Callable[[], QueueState] = queue_reader.read_queue_state,
        every_s: float = EVERY_S,
    ) -> None:
        self._say, self._read, self._every_s = say, read, every_s
        self._changed = threading.Condition()
        self._is_wanted = self._is_asked = self._is_over = False
        self._thread: threading.Thread | None = None

    def want(self, wanted: bool) -> None:
        """Begin to read at once, or stop."""
        with self._changed:
            self._is_asked |= wanted and not self._is_wanted
            self._is_wanted = wanted
            if wanted and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="queue", daemon=True)
                self._thread.start()
            self._changed.notify()

    def ask_again(self) -> None:
        """Read again soon, if it is wanted."""
        with self._changed:
            self._is_asked = self._is_wanted
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over or self._is_asked, self._every_s)
                self._changed.wait_for(lambda: self._is_over or self._is_wanted)
                self._is_asked = False
                if self._is_over:
                    return
            try:
                self._say(QueueRead(self._read()))
            except OSError:  # the dashboard has ended
                return
            with self._changed:
                self._changed.wait_for(lambda: self._is_over, min(AGAIN_S, self._every_s))

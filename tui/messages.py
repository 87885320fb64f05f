"""Messages from the feed to the dashboard. A newer picture replaces one that is not drawn yet, so that a slow terminal
skips pictures instead of falling behind."""

from __future__ import annotations

from textual.message import Message

from .picture import Picture


class Arrived(Message):
    """A complete survey, ready to be drawn."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        super().__init__()

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, Arrived)


class FeedFailed(Message):
    """A survey failed. The screen keeps the last one, whose age grows visibly."""

    def __init__(self, why: str, *, is_over: bool = False) -> None:
        """`is_over`: this source sends nothing more."""
        self.why, self.is_over = why, is_over
        super().__init__()

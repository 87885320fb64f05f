"""What reaches the dashboard from elsewhere. A newer picture takes the place of one that has not been drawn yet, so
that a slow terminal skips pictures instead of falling behind."""

from __future__ import annotations

from textual.message import Message

from .picture import Picture


class Arrived(Message):
    """A survey is here, whole."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        super().__init__()

    def can_replace(self, message: Message) -> bool:
        """Only the newest is drawn."""
        return isinstance(message, Arrived)


class FeedFailed(Message):
    """There is nothing new, and why; what is on the screen stays, and grows old visibly."""

    def __init__(self, why: str, *, is_over: bool = False) -> None:
        """`is_over`: nothing more will come from this source."""
        self.why, self.is_over = why, is_over
        super().__init__()

"""The actions of the keys for time: pause, read now, change the interval; in a replay step, speed and jump."""

from __future__ import annotations

from dataclasses import replace

from textual import on

from .program import MainScreen
from .widgets.replay_bar import ReplayBar
from .wire import Seek, SetInterval, SetSpeed, Step

INTERVALS_S = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class TimeKeys(MainScreen, inherit_bindings=False):
    """The part of the main screen that handles time."""

    def action_pause(self) -> None:
        self.dashboard.hold(not self.dashboard.status.held)

    def action_read_now(self) -> None:
        self.dashboard.read_now()

    def action_interval(self, by: int) -> None:
        """Set the next longer interval (`by` > 0) or the next shorter one."""
        now = self.dashboard.status.interval_s
        longer = [one for one in INTERVALS_S if one > now]
        shorter = [one for one in INTERVALS_S if one < now]
        wanted = (longer[:1] if by > 0 else shorter[-1:]) or [now]
        self.dashboard.status = replace(self.dashboard.status, interval_s=wanted[0])
        self.dashboard.feed.tell(SetInterval(wanted[0]))
        self.show_status()

    def _is_replay(self) -> bool:
        picture = self.dashboard.picture
        if picture is not None and picture.is_replay:
            return True
        self.dashboard.say("this key is for a recording: llload-tui --replay FILE")
        return False

    def action_step(self, count: int) -> None:
        """Pause the replay and move by `count` surveys."""
        if self._is_replay():
            self.dashboard.hold(True)
            self.dashboard.feed.tell(Step(count))

    def action_speed(self, factor: float) -> None:
        """Multiply the speed of the replay."""
        picture = self.dashboard.picture
        if self._is_replay() and picture is not None and picture.position is not None:
            self.dashboard.feed.tell(SetSpeed(picture.position.speed * factor))

    def action_jump(self) -> None:
        """Let the user choose a time of the recording."""
        from .screens.jump import Jump

        picture = self.dashboard.picture
        if self._is_replay() and picture is not None and picture.position is not None:
            self.app.push_screen(Jump(picture.position, picture.survey.taken), self._seek)

    @on(ReplayBar.Sought)
    def on_sought(self, event: ReplayBar.Sought) -> None:
        event.stop()
        self._seek(event.taken)

    def _seek(self, taken: float | None) -> None:
        if taken is not None:
            self.dashboard.feed.tell(Seek(taken))

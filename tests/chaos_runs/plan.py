"""The events of a chaos run: everything that is random, from a seed, decided before the run."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

USERS = ("alice", "bob")
SUBMITTED = {
    "whole": 4, "gpus": 4, "part": 4, "array": 2, "two_nodes": 2, "bare": 2, "escape": 1, "overtime": 1,
    "salloc": 2, "triple": 2, "ordinary": 3, "plain": 2,
}  # fmt: skip
"""The kinds of job that users submit, with their relative frequency (see jobs.py)."""
USER_ACTIONS = {"cancel": 4, "requeue": 4}
"""Actions of a user on his own job, with their relative frequency."""
CHEATER, CHEATER_UID = "carol", 2003
CHEATS = {
    "mount": 2, "hold_space": 2, "many_files": 1, "squat": 1, "replace": 2, "take_away": 1, "hold_locks": 1,
    "kill_own": 1, "outlive": 1, "fat": 1,
}  # fmt: skip
"""Actions of the third user against the others -> relative frequency (see cheater.py)."""
FAULTS = {
    "kill_task": 2, "kill_daemon": 2, "kill_server": 2, "kill_hook": 3, "kill_helper": 2, "kill_slurmd": 2,
    "cut_network": 2, "fill_state": 2, "fill_log": 1, "fill_spool": 1, "cut_power": 1, "reboot": 1,
}  # fmt: skip
"""The faults of a compute node (see hosts.py)."""
CONTROLLER_FAULTS = {"kill_slurmctld": 2, "cut_network": 1}
EVERY_S = {"user": (2.0, 9.0), "cheater": (6.0, 18.0), "node": (12.0, 45.0), "ctl": (35.0, 90.0)}
"""The least and the greatest time from one event of an actor to its next."""
LASTS_S = {
    "cut_network": (3.0, 35.0), "cut_power": (1.0, 20.0), "fill_state": (3.0, 12.0), "fill_log": (3.0, 12.0),
    "fill_spool": (2.0, 8.0), "kill_slurmd": (0.2, 4.0), "kill_slurmctld": (0.2, 5.0),
}  # fmt: skip
"""How long a fault lasts. A network is cut for shorter and for longer than SlurmdTimeout, here 20 s."""


@dataclass(frozen=True)
class Event:
    """An action of a user, or a fault of a host."""

    at_s: float
    """Seconds since the start of the run."""
    actor: str
    """alice, bob, carol, or the host with the fault."""
    action: str
    lasts_s: float = 0.0
    """How long a fault or a job's tasks last."""
    which: float = 0.0
    """Which of the user's jobs is meant, as a fraction of their number: 0 to 1."""


def make(seed: int, seconds: float, nodes: Sequence[str]) -> tuple[Event, ...]:
    """Return everything that happens within so many seconds, in order of time. The same seed gives the same answer.
    Nothing happens to the last nodes: see `hit_nodes`."""
    dice = random.Random(seed)
    nodes = hit_nodes(nodes)
    events: list[Event] = []
    faults = _deal(dice, FAULTS)
    for actor in nodes:
        events += [_fault(dice, at, actor, next(faults)) for at in _times(dice, "node", seconds)]
    faults = _deal(dice, CONTROLLER_FAULTS)
    events += [_fault(dice, at, "ctl", next(faults)) for at in _times(dice, "ctl", seconds)]
    for user in USERS:
        actions = _deal(dice, {**SUBMITTED, **USER_ACTIONS})
        for at in _times(dice, "user", seconds):
            events.append(_by_user(dice, at, user, next(actions)))
    cheats = _deal(dice, CHEATS)
    events += [_by_user(dice, at, CHEATER, next(cheats)) for at in _times(dice, "cheater", seconds)]
    return tuple(sorted(events, key=lambda event: (event.at_s, event.actor)))


def hit_nodes(nodes: Sequence[str]) -> Sequence[str]:
    """Return the nodes that faults hit: all but the last third, at least one. A fault cannot explain a loss on the
    others."""
    return nodes[: -max(1, len(nodes) // 3)]


def _times(dice: random.Random, kind: str, seconds: float) -> Iterator[float]:
    """Yield the times of one actor's events."""
    least, most = EVERY_S[kind]
    at = dice.uniform(0.0, most - least) if kind != "user" else dice.uniform(0.0, 1.0)
    while at < seconds:
        yield round(at, 1)
        at += dice.uniform(least, most)


def _deal(dice: random.Random, deck: dict[str, int]) -> Iterator[str]:
    """Yield the words in random order, each as often as its number says, again and again: every one occurs."""
    while True:
        cards = [card for card, count in deck.items() for _ in range(count)]
        dice.shuffle(cards)
        yield from cards


def _by_user(dice: random.Random, at: float, user: str, action: str) -> Event:
    return Event(at, user, action, round(dice.uniform(1.0, 8.0), 1), round(dice.random(), 3))


def _fault(dice: random.Random, at: float, host: str, action: str) -> Event:
    least, most = LASTS_S.get(action, (0.0, 0.0))
    return Event(at, host, action, round(dice.uniform(least, most), 1))

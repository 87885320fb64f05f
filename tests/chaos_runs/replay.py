"""A second verdict on a recorded run, from tests/bench/results/chaos_events.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .causes import Done
from .evidence import Evidence, LogLine
from .plan import Event
from .records import Drain, Line, Record, Submission
from .verdict import Judgement, judge


def judge_again(recorded: Mapping[str, Any]) -> Judgement:
    """Return the verdict on what `Chaos.recorded` wrote, without what was found on the nodes."""
    done = [
        Done(
            Event(told["at_s"], told["actor"], told["action"], told["lasts_s"], told["which"]),
            told["began_s"],
            told["began_s"] + told["took_s"],
            told["said"],
        )
        for told in recorded["events"]
    ]
    files = {}
    for name, lines in recorded["lines"].items():
        tag, _, job = name.partition(".")
        files[tag, int(job)] = tuple(Line(*line) for line in lines)
    return judge(
        [Submission(**told) for told in recorded["submissions"]],
        done,
        [Record(**told) for told in recorded["records"]],
        files,
        [Drain(**told) for told in recorded["drains"]],
        Evidence(
            tuple(LogLine(at, text) for at, text in recorded["log"]),
            {(tag, int(job)): text for name, text in recorded["outputs"].items() for tag, job in [name.split(".")]},
        ),
    )

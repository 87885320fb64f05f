"""All that a verdict was given, as tests/bench/results/chaos_events.json has it: the verdict can be given again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .causes import Done
from .plan import Event
from .verdict import Drain, Judgement, Line, Record, Submission, judge


def judge_again(papers: Mapping[str, Any]) -> Judgement:
    """The verdict on what `Chaos.papers` wrote. Left to the run itself: what was found on its nodes."""
    done = [
        Done(
            Event(told["at_s"], told["actor"], told["deed"], told["lasts_s"], told["which"]),
            told["began_s"],
            told["began_s"] + told["took_s"],
            told["said"],
        )
        for told in papers["events"]
    ]
    files = {}
    for name, lines in papers["lines"].items():
        tag, _, job = name.partition(".")
        files[tag, int(job)] = tuple(Line(*line) for line in lines)
    return judge(
        [Submission(**told) for told in papers["submissions"]],
        done,
        [Record(**told) for told in papers["records"]],
        files,
        [Drain(**told) for told in papers["drains"]],
    )

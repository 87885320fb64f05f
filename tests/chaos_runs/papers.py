"""All that a verdict was given, as tests/bench/results/chaos_events.json has it: the verdict can be given again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .causes import Done
from .evidence import Evidence, Said
from .plan import Event
from .records import Drain, Line, Record, Submission
from .verdict import Judgement, judge


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
        Evidence(
            tuple(Said(at, text) for at, text in papers["log"]),
            {(tag, int(job)): text for name, text in papers["outputs"].items() for tag, job in [name.split(".")]},
        ),
    )

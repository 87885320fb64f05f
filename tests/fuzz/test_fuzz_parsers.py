"""A short run of the fuzzing over every parser that reads what a user wrote: the same inputs each time.

The long one is `tests/fuzz.sh --minutes N`. A fault is shown with the least input that still has it.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import running
from target import Target
from targets import TARGETS


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_parser_takes_whatever_comes(target: Target) -> None:
    """Any bytes are an answer or one of the parser's own errors, and what it says of them can be shown."""
    count, crashes = running.run(target, "short", target.short)
    assert count == target.short
    assert not crashes, "\n\n".join(f"{crash.data!r}\n{crash.error}" for crash in crashes)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_good_example_is_good(target: Target) -> None:
    good = 0
    for data in target.seeds:
        try:
            target.call(data)
            good += 1
        except target.allowed:
            continue
    assert good * 2 >= len(target.seeds)


def test_a_fault_is_found_and_shown_with_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parser that cannot take a bracket behind a digit is found out, and nothing but that is left of the input."""

    def call(data: bytes) -> None:
        for first, second in itertools.pairwise(data):
            if chr(first).isdigit() and second == ord("["):
                raise IndexError("behind a digit")

    _, crashes = running.run(Target("weak", "nobody", (b"n1,n2,n[3-4]",), call), 1, 5000)
    assert len(crashes) == 1
    assert len(crashes[0].data) == 2
    assert "behind a digit" in crashes[0].error

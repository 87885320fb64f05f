"""Telling a waiting person what is going on: one line a stage, with the seconds it took."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

Say = Callable[[str], None]


def to_stderr(line: str) -> None:
    """Say one line on stderr; stdout belongs to results."""
    print(line, file=sys.stderr, flush=True)


def to_nobody(line: str) -> None:
    """Keep quiet."""


@contextlib.contextmanager
def stage(say: Say, what: str) -> Iterator[None]:
    """Say `what` when it is done, with its seconds; say so too when it fails."""
    start = time.monotonic()
    try:
        yield
    except BaseException:
        say(f"  {what}: stopped after {time.monotonic() - start:.1f} s")
        raise
    say(f"  {what}: {time.monotonic() - start:.1f} s")

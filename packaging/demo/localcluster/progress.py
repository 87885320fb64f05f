"""Progress messages: one line per stage, with its duration."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator


def say(line: str) -> None:
    """Print one line on stderr; stdout is for results."""
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def stage(what: str) -> Iterator[None]:
    """Report `what` with its duration when the stage ends, and also if it fails."""
    start = time.monotonic()
    try:
        yield
    except BaseException:
        say(f"  {what}: stopped after {time.monotonic() - start:.1f} s")
        raise
    say(f"  {what}: {time.monotonic() - start:.1f} s")

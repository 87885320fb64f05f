"""The record of a fuzzing target, and the checks that several targets share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from slurm_share.core.errors import SlurmShareError

DATA = Path(__file__).parents[1] / "data"


class Target(Struct, frozen=True):
    """A parser under test."""

    name: str
    reader: str
    """The user that runs it: root, slurm-share (the agent's user), or the user, on text that others wrote."""
    seeds: tuple[bytes, ...]
    call: Callable[[bytes], None]
    allowed: tuple[type[Exception], ...] = ()
    short: int = 500
    """Inputs in the short form, a second or two for most; fewer for a target that makes files or compiles patterns."""


def text(data: bytes) -> str:
    """Decode bytes as a reader does that may get anything."""
    return data.decode("utf-8", "surrogateescape")


def is_line(sentence: str, most: int = 4000) -> None:
    """Check that it is one line, fit for a log or a terminal."""
    assert sentence.isprintable(), sentence
    assert len(sentence) <= most, len(sentence)


@contextlib.contextmanager
def may_refuse(*allowed: type[Exception]) -> Iterator[None]:
    """Accept these errors; the sentence of one of ours is one line."""
    try:
        yield
    except allowed as error:
        if isinstance(error, SlurmShareError):
            is_line(str(error))


def each(readers: Iterable[Callable[[str], Any]], *allowed: type[Exception]) -> Callable[[bytes], None]:
    """Return a call that gives the text to each of the readers."""

    def call(data: bytes) -> None:
        for read in readers:
            with may_refuse(*allowed):
                read(text(data))

    return call


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Run a block without stderr: log lines go there, too."""
    kept = os.dup(2)
    with open(os.devnull, "w") as null:
        os.dup2(null.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def recorded(*patterns: str) -> tuple[bytes, ...]:
    """Return the recorded answers in tests/data."""
    found = tuple(file.read_bytes() for pattern in patterns for file in sorted(DATA.glob(pattern)))
    assert found, patterns
    return found

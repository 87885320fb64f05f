"""The ledger's bytes: Ledger <-> JSON, both directions pure."""

from __future__ import annotations

import msgspec

from ..core.errors import StateError
from .records import Ledger

VERSION = 1


def render(ledger: Ledger) -> bytes:
    """The ledger as JSON with its version."""
    return msgspec.json.encode({"version": VERSION, "ledger": ledger})


def parse(data: bytes, file: str = "ledger") -> Ledger:
    """The ledger in `data`. Raises StateError, naming `file`, for anything `render` would not have written."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version != VERSION:
            raise StateError(file, f"version {version} was written by another release; this one knows {VERSION}")
        return msgspec.json.decode(data, type=_Envelope).ledger
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateError(file, f"is not a ledger: {error}") from error


class _Versioned(msgspec.Struct):
    version: int


class _Envelope(msgspec.Struct):
    ledger: Ledger

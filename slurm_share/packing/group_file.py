"""Write and read `groups.jsonl` in the folder of a node: the measured groups of tasks, for `pack explain`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from .rules.speed_account import GroupResult

GROUPS = "groups.jsonl"
MOST_BYTES = 16 << 20

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(GroupResult).decode


def append_groups(folder: Path, groups: Sequence[GroupResult]) -> str:
    """Append groups to the file in a node's folder. Return the reason of a failure; empty: success."""
    if not groups:
        return ""
    try:
        with open(folder / GROUPS, "ab") as opened:
            if opened.tell() < MOST_BYTES:
                opened.write(b"".join(_encode(one) + b"\n" for one in groups))
    except OSError as error:
        return str(error.strerror)
    return ""


def read_groups(file: Path) -> Iterator[GroupResult]:
    """Yield the groups of a file; lines that cannot be decoded are skipped. Raises OSError."""
    with open(file, "rb") as opened:
        for line in opened.read(2 * MOST_BYTES).splitlines():
            try:
                yield _decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue

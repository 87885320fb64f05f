"""Inputs for parsers: changed copies of good ones, the same for the same seed."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

MOST_BYTES = 8192
TRIES_MOST = 3000
WORDS = (
    *(b"", b"\0", b"\n", b"\r\n", b"\x1b[2J", b"\xff", b"\xc3\xbc", b"\xe2\x80\xae", b"\xd9\xa4", b"[/red]", b"\\"),
    *(b"-1", b"0", b"00", b"4294967295", b"4294967296", b"9" * 30, b"9" * 5000, b"1e999", b"nan", b"0x10", b" ", b"\t"),
    *(b"=", b",", b";", b":", b"/", b"../", b"$(id)", b"`id`", b"'", b'"', b"[", b"]", b"{", b"}", b"(", b")", b"null"),
    *(
        b"[" * 3000,
        b'{"a":' * 1500,
        b"9" * 400,
        b"\xd9\xa1",
        b"e999",
        b"00000000000000000001",
        b"\x85",
        b"\xe2\x80\xa8",
    ),
    *(b"GPU-", b"MIG-", b"gpu:", b"shard:", b"end\n", b"slot ", b"job_", b"uid_", b"step_", b"slurmstepd: [4711.0]"),
)
"""Texts that parsers often fail on: ends, numbers out of range, terminal controls, markup, shell syntax, their own
keywords. """


NUMBERS = (
    *(b"", b"0", b"-1", b"1_0", b" 1", b"0x1", b"1e999", b"0" * 19 + b"1", b"\xd9\xa1", b"\xc2\xb2", b"2147483648"),
    *(b"4294967296", b"9223372036854775808", b"18446744073709551616", b"9" * 400, b"9" * 4301, b"1." + b"9" * 400),
)
"""Numbers, and texts that some readers of numbers take for one."""
_DIGITS = re.compile(rb"[0-9]+")


def changed(seeds: Sequence[bytes], dice: random.Random) -> bytes:
    """Return a seed after one to six changes, or random bytes."""
    if dice.random() < 0.02:
        return dice.randbytes(dice.randrange(200))
    data = bytearray(dice.choice(seeds))
    for _ in range(dice.randint(1, 6)):
        _change(data, seeds, dice)
    return bytes(data[:MOST_BYTES])


def _change(data: bytearray, seeds: Sequence[bytes], dice: random.Random) -> None:
    at = dice.randint(0, len(data))
    match dice.randrange(8):
        case 0 if at < len(data):
            data[at] = dice.randrange(256)
        case 1 if at < len(data):
            data[at] ^= 1 << dice.randrange(8)
        case 2:
            del data[at : at + dice.randrange(24)]
        case 3:
            data[at:at] = dice.choice(WORDS)
        case 4:
            other = dice.choice(seeds)
            start = dice.randint(0, len(other))
            data[at:at] = other[start : start + dice.randrange(64)]
        case 5:
            data[at:at] = bytes(data[at : at + dice.randrange(64)])
        case 6:
            if found := list(_DIGITS.finditer(data)):
                number = dice.choice(found)
                data[number.start() : number.end()] = dice.choice(NUMBERS)
        case _:
            end = at + dice.randrange(12)
            data[at:end] = dice.choice(WORDS)


def endless(seeds: Sequence[bytes], seed: object) -> Iterator[bytes]:
    """Yield the seeds themselves, then changed ones without end."""
    dice = random.Random(str(seed))
    yield from seeds
    while True:
        yield changed(seeds, dice)


def smallest(data: bytes, fails: object) -> bytes:
    """Return fewer bytes with the same failure: drop pieces while it stays, TRIES_MOST times at most."""
    size, tries = len(data) // 2, 0
    while size:
        start = 0
        while start < len(data) and tries < TRIES_MOST:
            tries += 1
            shorter = data[:start] + data[start + size :]
            if fails(shorter):  # type: ignore[operator]
                data = shorter
            else:
                start += size
        size //= 2
    return data

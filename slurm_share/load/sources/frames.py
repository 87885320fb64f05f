"""Split messages of any length into short lines of text, and join them again, to send snapshots through srun.

slurmstepd forwards a task's output in pieces of 1024 bytes and mixes the pieces of several tasks, so a longer line
arrives with another task's text in its middle. A message is sent as lines of less than LINE_BYTES::

    @slurm-share z n1 9f3a01bc 1/3 5d0c77a2 eNrtXW1v...

Fields: the encoding, `z` (zlib and base64), `b` (base64) or `r` (raw); the node; the CRC-32 of the whole message, which
identifies and verifies it; the part and the number of parts; the CRC-32 of this line; its text. Other lines, such as
output of a .bashrc, are ignored.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Collection, Iterator

from msgspec import Struct

LINE_BYTES = 900
"""Most bytes of a line, its newline included: below the 1024 of slurmstepd (MAX_MSG_LEN, src/common/io_hdr.h)."""
MESSAGE_BYTES = 64 * 1024 * 1024
"""Most bytes of a message: far above any snapshot, and a limit for a faulty sender."""
_MARK = "@slurm-share"
_NODE_MAX = 255
_LINE = re.compile(
    r"@slurm-share ([zbr]) ([!-~]{1,255}) ([0-9a-f]{8}) ([1-9][0-9]{0,5})/([1-9][0-9]{0,5}) ([0-9a-f]{8}) ([ -~]*)\Z"
)
_PLAIN = re.compile(rb"[ -~]*\Z")


def split(data: bytes, node: str) -> Iterator[str]:
    """Yield the lines, without newlines, that carry `data` of `node`. Raises ValueError for more than MESSAGE_BYTES,
    and for a name with blanks or beyond ASCII."""
    if not re.fullmatch(rf"[!-~]{{1,{_NODE_MAX}}}", node):
        raise ValueError(f"{node!r} is no node's name")
    if len(data) > MESSAGE_BYTES:
        raise ValueError(f"{len(data)} bytes are more than a message may have")
    kind, text = _pack(data)
    whole = f"{zlib.crc32(data):08x}"
    head = f"{_MARK} {kind} {node} {whole}"
    room = LINE_BYTES - 1 - len(head) - len(" 999999/999999 ") - len("12345678 ")
    parts = [text[start : start + room] for start in range(0, len(text), room)] or [""]
    for number, part in enumerate(parts, 1):
        line = f"{number}/{len(parts)}"
        yield f"{head} {line} {_line_sum(node, whole, line, part)} {part}"


def _pack(data: bytes) -> tuple[str, str]:
    packed = base64.b64encode(zlib.compress(data)).decode()
    if _PLAIN.match(data) and _MARK.encode() not in data:  # a reader begins at the last mark of a line
        return ("r", data.decode()) if len(data) <= len(packed) else ("z", packed)
    plain = base64.b64encode(data).decode()
    return ("b", plain) if len(plain) <= len(packed) else ("z", packed)


def _line_sum(node: str, whole: str, line: str, part: str) -> str:
    return f"{zlib.crc32(f'{node} {whole} {line} {part}'.encode()):08x}"


class _Begun(Struct):
    """The parts of a message that have arrived."""

    whole: str
    kind: str
    parts: int
    texts: dict[int, str] = {}
    size: int = 0


class Joiner:
    """A joiner of the lines of messages from some nodes; from any if `nodes` is None. Damaged messages are dropped.
    Lines with another node's name, which anybody can write, are ignored, so that the memory is bounded."""

    def __init__(self, nodes: Collection[str] | None = None) -> None:
        self._nodes = None if nodes is None else frozenset(nodes)
        self.lost = 0
        """Messages with a missing or damaged line."""
        self.noise = 0
        """Lines that are not ours."""
        self._begun: dict[str, _Begun] = {}

    def feed(self, line: str) -> tuple[str, bytes] | None:
        """Return (node, message) if this line completes a message. A line may have other output before it, which ended
        without a newline."""
        start = line.rfind(_MARK)
        found = _LINE.match(line.rstrip("\r\n"), start) if start >= 0 else None
        if found is None:
            if start >= 0:
                self.lost += 1
            else:
                self.noise += 1
            return None
        kind, node, whole, number, parts, line_sum, text = found.groups()
        if line_sum != _line_sum(node, whole, f"{number}/{parts}", text) or int(number) > int(parts):
            self.lost += 1
            return None
        if self._nodes is not None and node not in self._nodes:
            self.noise += 1
            return None
        begun = self._begun.get(node)
        if begun is None or (begun.whole, begun.kind, begun.parts) != (whole, kind, int(parts)):
            if begun is not None:
                self.lost += 1  # the message before is incomplete
            begun = self._begun[node] = _Begun(whole, kind, int(parts))
        if int(number) not in begun.texts:
            begun.texts[int(number)] = text
            begun.size += len(text)
        if begun.size > 2 * MESSAGE_BYTES:
            del self._begun[node]
            self.lost += 1
            return None
        if len(begun.texts) < begun.parts:
            return None
        del self._begun[node]
        data = _unpack(kind, "".join(begun.texts[part] for part in range(1, begun.parts + 1)))
        if data is None or f"{zlib.crc32(data):08x}" != whole:
            self.lost += 1
            return None
        return node, data


def _unpack(kind: str, text: str) -> bytes | None:
    if kind == "r":
        return text.encode()
    try:
        data = base64.b64decode(text, validate=True)
        if kind == "b":
            return data
        inflate = zlib.decompressobj()
        data = inflate.decompress(data, MESSAGE_BYTES)
        return data if inflate.eof else None
    except (binascii.Error, ValueError, zlib.error):
        return None

"""The short form of `JobUse` in a job's SystemComment: `slurm-share-use:1:BASE64`.

It is what is known of a job outside its nodes after its end, for as long as slurmdbd keeps the job. BASE64 (the
alphabet of URLs, without `=`) is a raw deflate stream of a JSON list with one `JobUse` for each node and start. The
short form has no `tasks`, and figures with one digit after the point; fields with their default are left out. Text of
others in the same field (burst buffers, a site's scripts) survives: ours stands behind it and a `;`.

Everything here is pure, and no text raises an exception: slurmdbd's administrators can write what they like there.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from ..core.numbers import whole
from ..core.text_files import NOT_JSON
from .records import VERSION, EnergyUse, GpuEnergy, GpuUse, JobUse

Record = TypeVar("Record", JobUse, GpuUse, GpuEnergy, EnergyUse)
Merged = TypeVar("Merged", JobUse, GpuUse)

MARK = "slurm-share-use"
MOST_NODES = 16
"""Nodes of a job whose records are in its comment. Of a larger job only the first node's is there."""
NODE_BYTES = 2048
"""Bytes of one node's record in a comment, at most; of a node with eight GPUs they are about 1300."""
MOST_BYTES = 60_000
"""Bytes of a whole SystemComment: slurmdbd's column is a `text` of MySQL, of 65,535 bytes."""
_MOST_JSON_BYTES = 1 << 20
"""Bytes that a comment may unpack to; 16 nodes with eight GPUs each make 60,000."""
_OURS = re.compile(rf";?{MARK}:([0-9]{{1,9}}):([A-Za-z0-9_-]*)")
_SAFE = re.compile(r"[ !#-&(-\[\]-~]*")
"""Printable ASCII without quotes and the backslash: sacctmgr turns a quote into a backtick, and slurmdbd (26.05) puts
the text into its SQL as it is."""
_SHOW = "sacct -X -o SystemComment%40 -j JOB shows the field"


class FoundUse(Struct, frozen=True):
    """The records in a SystemComment."""

    uses: tuple[JobUse, ...] = ()
    problem: str | None = None
    """A sentence about a record that cannot be read; None: all could, or there is none."""


def decode(comment: str | None) -> FoundUse:
    """Return the records in a job's SystemComment, whatever else is there. Never raises."""
    uses: tuple[JobUse, ...] = ()
    problem = None
    for match in _OURS.finditer(comment or ""):
        found = _decode_one(match[1], match[2])
        uses = merge(uses, found.uses)
        problem = problem or found.problem
    return FoundUse(uses, problem)


def merge(known: Sequence[JobUse], new: Iterable[JobUse]) -> tuple[JobUse, ...]:
    """Return the records of both, one for each node and start, by start and node.

    Of two for the same node and start, each figure is the new one's, or the old one's where the new one does not know.
    """
    found = {_key(one): one for one in known}
    for one in new:
        before = found.get(_key(one))
        found[_key(one)] = one if before is None else _fill(one, before)
    return tuple(found[key] for key in sorted(found))


def put(comment: str | None, uses: Sequence[JobUse]) -> str:
    """Return the SystemComment with these records merged into those that it has.

    It is returned as it is where that is not possible (`why_not` has the reason).
    """
    if why_not(comment, uses) is not None:
        return comment or ""
    return _put(comment or "", uses)


def why_not(comment: str | None, uses: Sequence[JobUse]) -> str | None:
    """Return why these records cannot be put into a SystemComment, as a sentence without its end; None: they can."""
    text = comment or ""
    versions = [whole(match[1]) or 0 for match in _OURS.finditer(text)]
    if max(versions, default=0) > VERSION:
        return "it has a record of a newer slurm-share"
    if not _SAFE.fullmatch(_without_ours(text)) or text != text.strip():
        return "it has text with characters that sacctmgr cannot write back unchanged"
    if len(_put(text, uses)) > MOST_BYTES:
        return f"its text has {len(text)} characters, which leaves too little room"
    return None


def encode(uses: Sequence[JobUse]) -> str:
    """Return the records as `slurm-share-use:1:BASE64`, of NODE_BYTES for each of them at most.

    A record that is longer is shortened: the sources of its figures go first, then the reasons for what is unknown,
    then what is nobody's, and at last its GPUs, with a reason.
    """
    limit = NODE_BYTES * max(1, len(uses))
    short = [short_form(one) for one in uses]
    text = _pack(short)
    for shorten in _SHORTENINGS:
        if len(text) <= limit:
            break
        short = [one if len(_pack([one])) <= NODE_BYTES else shorten(one) for one in short]
        text = _pack(short)
    return text


def short_form(use: JobUse) -> JobUse:
    """Return a record without its tasks, with rounded figures."""
    gpus = tuple(msgspec.structs.replace(_rounded(one), energy=_rounded_energy(one.energy)) for one in use.gpus)
    others = tuple(_rounded(one) for one in use.others)
    return msgspec.structs.replace(_rounded(use), gpus=gpus, others=others, tasks=())


def _put(comment: str, uses: Sequence[JobUse]) -> str:
    others = _without_ours(comment)
    ours = encode(merge(decode(comment).uses, uses))
    return f"{others};{ours}" if others else ours


def _without_ours(comment: str) -> str:
    return _OURS.sub("", comment)


def _decode_one(version: str, data: str) -> FoundUse:
    if (whole(version) or 0) > VERSION:
        return FoundUse(
            problem=f"the record in SystemComment is of version {version}; this slurm-share reads up to {VERSION}: "
            "use the newer one"
        )
    unpacking = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        packed = base64.b64decode(data + "=" * (-len(data) % 4), altchars=b"-_", validate=True)
        text = unpacking.decompress(packed, _MOST_JSON_BYTES)
    except (binascii.Error, ValueError, zlib.error):
        return _damaged("it is not complete")
    if not unpacking.eof:
        return _damaged("it is too long" if unpacking.unconsumed_tail else "it is not complete")
    try:
        uses = msgspec.json.decode(text, type=tuple[JobUse, ...])
    except NOT_JSON as error:
        return _damaged(str(error))
    if any(one.version > VERSION for one in uses):
        return _damaged("a part of it is of a newer version")
    return FoundUse(uses)


def _damaged(why: str) -> FoundUse:
    return FoundUse(problem=f"the record of slurm-share in SystemComment cannot be read: {why} ({_SHOW})")


def _key(use: JobUse) -> tuple[int, str]:
    return (use.restarts or 0, use.node)


def _fill(new: JobUse, old: JobUse) -> JobUse:
    """Return the new record with the old one's figures where the new one has none."""
    before = {one.uuid: one for one in old.gpus}
    gpus = [_filled(one, before.pop(one.uuid)) if one.uuid in before else one for one in new.gpus]
    rest = {one.uuid: one for one in old.others} | {one.uuid: one for one in new.others}
    return msgspec.structs.replace(_filled(new, old), gpus=(*gpus, *before.values()), others=tuple(rest.values()))


def _filled(new: Merged, old: Merged) -> Merged:
    changes: dict[str, Any] = {}
    for name in new.__struct_fields__:
        here, there = getattr(new, name), getattr(old, name)
        if name in ("by", "unknown"):
            changes[name] = there | here
        elif here in (None, ()) and there not in (None, ()):
            changes[name] = there
    filled = msgspec.structs.replace(new, **changes)
    unknown = {name: why for name, why in changes["unknown"].items() if getattr(filled, name, None) in (None, ())}
    return msgspec.structs.replace(filled, unknown=unknown)


def _pack(uses: Sequence[JobUse]) -> str:
    data = msgspec.json.encode([_sparse(one) for one in uses])
    packing = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, 9)
    packed = packing.compress(data) + packing.flush()
    return f"{MARK}:{VERSION}:{base64.urlsafe_b64encode(packed).rstrip(b'=').decode()}"


def _sparse(record: Any) -> dict[str, Any]:
    """Return a record as JSON's values, without fields that have their default."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(record):
        value = getattr(record, field.name)
        if value is None or value in ({}, (), "") or (not field.required and value == field.default):
            continue
        if isinstance(value, Struct):
            value = _sparse(value)
        elif isinstance(value, tuple):
            value = [_sparse(one) for one in value]
        found[field.name] = value
    return found


def _rounded(record: Record) -> Record:
    values = {name: getattr(record, name) for name in record.__struct_fields__}
    changes = {name: round(value, 1) for name, value in values.items() if isinstance(value, float)}
    return msgspec.structs.replace(record, **changes)


def _rounded_energy(energy: EnergyUse | None) -> EnergyUse | None:
    return None if energy is None else _rounded(energy)


def _without_sources(use: JobUse) -> JobUse:
    return msgspec.structs.replace(use, by={}, gpus=tuple(msgspec.structs.replace(one, by={}) for one in use.gpus))


def _without_reasons(use: JobUse) -> JobUse:
    gpus = tuple(msgspec.structs.replace(one, unknown={}) for one in use.gpus)
    return msgspec.structs.replace(use, unknown={}, gpus=gpus)


def _without_others(use: JobUse) -> JobUse:
    return msgspec.structs.replace(use, others=())


def _without_gpus(use: JobUse) -> JobUse:
    why = f"{len(use.gpus)} GPUs are too many for SystemComment; the node's own record has them"
    return msgspec.structs.replace(use, gpus=(), unknown={"gpus": why})


_SHORTENINGS: tuple[Callable[[JobUse], JobUse], ...] = (
    _without_sources,
    _without_reasons,
    _without_others,
    _without_gpus,
)
"""Ways to make a record shorter, in order."""

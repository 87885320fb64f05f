"""The rates of a launcher's tasks, `rates.json` in its folder (core/live.py), for llload and the dashboard.

The file is replaced about every 5 s while tasks run, and removed at the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from ..core import live
from ..core.live import LiveFolder
from ..packing import NodeRates

RATES = "rates.json"
MOST_BYTES = 1024 * 1024
VERSION = 1
_decode = msgspec.json.Decoder(NodeRates).decode


def write_rates(folder: LiveFolder | None, rates: NodeRates | None) -> None:
    """Replace the file of a launcher, or remove it (None). Errors are ignored: the file is only for display."""
    data = b"" if rates is None else msgspec.json.encode(rates)
    if folder is None or len(data) > MOST_BYTES:
        return
    with contextlib.suppress(OSError):
        if data:
            folder.replace(RATES, data)
        else:
            folder.remove(RATES)


def read_rates(
    tmp: Path, uids: Iterable[int], given: Callable[[int], Path] | None = None
) -> dict[int, tuple[NodeRates, ...]]:
    """Return uid -> rates of the user's living launchers, for users who have any. `given`: the folder that root makes
    for a user."""
    found = {}
    for uid in uids:
        where = None if given is None else given(uid)
        read = live.read_all(tmp, uid, RATES, _decode, MOST_BYTES, where)
        if rates := tuple(one for one in read if one.version == VERSION):
            found[uid] = rates
    return found

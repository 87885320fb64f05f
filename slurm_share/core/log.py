"""Write one line to the hooks' log, a file or systemd's journal.

Without the logging package, whose import takes longer than a Prolog's work, and without systemd's library: the journal
takes a datagram of lines FIELD=value (systemd.journal-fields(7), "Native Journal Protocol").
"""

from __future__ import annotations

import os
import time

from . import append_file, numbers

LINE_LIMIT = 2000
JOURNAL = "/run/systemd/journal/socket"
IDENTIFIER = "slurm-share"
"""SYSLOG_IDENTIFIER of every line in the journal: journalctl -t slurm-share."""
_OF_JOB = ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_JOB_UID")
"""Numbers in a hook's environment that a line has as fields of the same name."""
UNWELL = "NODE UNWELL"
"""In lines that say why the node is drained."""
_ERROR, _INFORMATION = 3, 6
"""The priorities LOG_ERR and LOG_INFO of syslog(3)."""

_to_journal = False


def use_journal(wanted: bool) -> None:
    """Choose where the next lines of this process go."""
    global _to_journal
    _to_journal = wanted


def line(file: str, who: str, text: str) -> None:
    """Append `text` to the journal if it is chosen and takes the line, else to `file`; and to stderr, which slurmd
    keeps when a hook fails.

    Never raises and never waits: a log or stderr that cannot be written must not fail or delay a job.
    """
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)[:LINE_LIMIT]
    is_logged = _to_journal and _send(who, safe)
    if not (is_logged and _stderr_is_journal()):
        _to_stderr(f"slurm-share {who}: {safe}\n")
    if is_logged or not file:
        return
    try:
        # Without a lock, since a hook does not wait. The log is on a local disk: the lines of two hooks do not mix.
        data = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {who}: {safe}\n".encode("utf-8", "backslashreplace")
        append_file.append(file, data, mode=0o640, lock_s=None)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        _to_stderr(f"slurm-share {who}: cannot write {file!r}: {error}\n")


def _send(who: str, safe: str) -> bool:
    """Send a line to the journal; return False if there is none, or its socket is full."""
    import socket  # only where a site has chosen the journal

    fields = [
        f"MESSAGE={who}: {safe}",
        f"PRIORITY={_ERROR if UNWELL in safe else _INFORMATION}",
        f"SYSLOG_IDENTIFIER={IDENTIFIER}",
    ]
    fields += [f"SLURM_SHARE_PROGRAM={who}"]
    given = {name: numbers.whole(os.environ.get(name), numbers.UINT32_MOST) for name in _OF_JOB}
    fields += [f"{name}={number}" for name, number in given.items() if number is not None]
    data = "".join(f"{field}\n" for field in fields).encode("utf-8", "backslashreplace")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as link:
            link.sendto(data, JOURNAL)
    except OSError:
        return False
    return True


def _stderr_is_journal() -> bool:
    """Return whether systemd connected stderr to the journal (JOURNAL_STREAM of systemd.exec(5)), which would have the
    line twice."""
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def _to_stderr(text: str) -> None:
    try:
        os.write(2, text.encode("utf-8", "backslashreplace"))
    except OSError:
        pass  # closed, full, or its reader is gone

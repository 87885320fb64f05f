"""Notify systemd of the agent's state, as sd_notify(3) does: one datagram."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


def notify(text: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send a state such as READY=1; return False if systemd does not listen."""
    place = environ.get("NOTIFY_SOCKET", "")
    if not place.startswith(("/", "@")):
        return False
    address = "\0" + place[1:] if place.startswith("@") else place
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as link:
            link.sendto(text.encode(), address)
    except OSError:
        return False
    return True


def watchdog_s(environ: Mapping[str, str] = os.environ) -> float | None:
    """Return systemd's watchdog interval in seconds (WATCHDOG_USEC); None without a watchdog."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    usec = environ.get("WATCHDOG_USEC", "")
    return int(usec) / 1e6 if usec.isascii() and usec.isdigit() and int(usec) > 0 else None

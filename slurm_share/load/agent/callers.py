"""Identify the caller at the other end of the local socket, and what the caller may see."""

from __future__ import annotations

import grp
import os
import pwd
import socket
import struct

from msgspec import Struct

_UCRED = struct.Struct("iII")
"""struct ucred of unix(7): pid, uid, gid."""


class Caller(Struct, frozen=True):
    """A user of this node who calls the agent."""

    uid: int
    user: str
    everything: bool
    """True: root, the agent's own user or an operator, who may see all users' load."""


def peer_uid(link: socket.socket) -> int:
    """Return the user id of the process at the other end. Raises OSError if it has closed already."""
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(credentials)[1])


def identify(uid: int, operators_group: str) -> Caller:
    """Return the user with that number. Reads the system's user database, which may be slow (LDAP)."""
    if uid == 0:
        return Caller(uid, "root", True)
    try:
        entry = pwd.getpwuid(uid)
    except (KeyError, OSError):
        return Caller(uid, str(uid), uid == os.geteuid())
    return Caller(uid, entry.pw_name, uid == os.geteuid() or _is_in(entry, operators_group))


def is_operator(uid: int, operators_group: str) -> bool:
    """Return whether that user is in the site's operators group."""
    try:
        return _is_in(pwd.getpwuid(uid), operators_group)
    except (KeyError, OSError):
        return False


def _is_in(entry: pwd.struct_passwd, group: str) -> bool:
    """Return whether the user is in the group, by getgrouplist, as a login does. The group's own list of members lacks
    users whose primary group it is, and from LDAP it may be empty."""
    try:
        return bool(group) and grp.getgrnam(group).gr_gid in os.getgrouplist(entry.pw_name, entry.pw_gid)
    except (KeyError, OSError):
        return False

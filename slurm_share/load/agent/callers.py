"""Who is at the other end of the local socket, and what they may see."""

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
    """A user of this node."""

    uid: int
    user: str
    everything: bool
    """Root, the agent's own user, an operator: may see everybody's."""


def peer_uid(link: socket.socket) -> int:
    """Return the user id of the process at the other end. Raises OSError if it has closed already."""
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(credentials)[1])


def identify(uid: int, operators_group: str) -> Caller:
    """Return the user with that number. Asks the system's user database, which may take its time (LDAP)."""
    if uid == 0:
        return Caller(uid, "root", True)
    try:
        entry = pwd.getpwuid(uid)
    except (KeyError, OSError):
        return Caller(uid, str(uid), uid == os.geteuid())
    everything = uid == os.geteuid() or (bool(operators_group) and _is_in(entry, operators_group))
    return Caller(uid, entry.pw_name, everything)


def is_operator(uid: int, operators_group: str) -> bool:
    """Return whether that user is in the site's operators group."""
    try:
        return bool(operators_group) and _is_in(pwd.getpwuid(uid), operators_group)
    except (KeyError, OSError):
        return False


def _is_in(entry: pwd.struct_passwd, group: str) -> bool:
    """Through getgrouplist, as a login would: the list of names in the group's own entry leaves out those whose primary
    group it is, and where it comes from LDAP it may be empty."""
    try:
        return grp.getgrnam(group).gr_gid in os.getgrouplist(entry.pw_name, entry.pw_gid)
    except (KeyError, OSError):
        return False

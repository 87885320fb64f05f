"""Decide what a request may ask for: by its path, its Host and its Origin. Values only.

A browser sends requests to this server in the name of any page that it shows. `Host` tells whether the page believes
that it talks to somebody else (DNS rebinding), `Origin` and `Sec-Fetch-Site` which page has asked.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from slurm_share.core.errors import UsageError, shown

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
"""The names of this host that mean this host to every browser."""
_BASE_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")

Kind = Literal["entry", "login", "page", "file", "socket"]
"""The first page, which takes the link; the form of Open OnDemand; the page with the dashboard, its files, and its
websocket."""


@dataclass(frozen=True)
class Place:
    """Where the server is, as browsers see it."""

    base_path: str = ""
    """Empty, or a path that begins with a slash and does not end with one."""
    page_id: str = ""
    """Name of the folder below the base path that has the pages. It is random: browsers send the cookies of a host to
    all its ports, and so to other users' servers, but only for paths within the cookie's own."""
    hosts: frozenset[str] = frozenset(LOOPBACK)
    """The names in `Host` that are answered, without port, in lower case."""
    public_url: str = ""
    """Scheme and host by which browsers know a proxy, such as https://ondemand.example.edu; empty: none is known."""
    has_tls: bool = False

    @property
    def entry(self) -> str:
        return f"{self.base_path}/"

    @property
    def pages(self) -> str:
        return f"{self.base_path}/{self.page_id}/"

    @property
    def is_secure(self) -> bool:
        """True: browsers see https, and must send the cookie over nothing else."""
        return self.has_tls or self.public_url.startswith("https://")


@dataclass(frozen=True)
class Target:
    """A path of this server."""

    kind: Kind
    name: str = ""
    """Name of the file."""


def target(place: Place, path: str) -> Target | None:
    """Return what a path, as it stands in the request, is; None: nothing. Nothing in it is decoded or resolved."""
    if not path.startswith(f"{place.base_path}/"):
        # a proxy that removes the base path (/rnode of Open OnDemand) needs no --base-path
        return Target("entry") if place.base_path and path == place.base_path else None
    rest = path[len(place.base_path) + 1 :]
    if rest in ("", "login"):
        return Target("login" if rest else "entry")
    page, slash, name = rest.partition("/")
    if page != place.page_id or not slash:
        return None
    if name in ("", "ws"):
        return Target("socket" if name else "page")
    return Target("file", name)


def refusal(place: Place, kind: Kind, headers: Mapping[str, str]) -> str:
    """Return why a request is refused whoever sends it, as a sentence; empty: it is not."""
    host = headers.get("Host", "").lower()
    match = _HOST.fullmatch(host)
    if match is None or match[1] not in place.hosts:
        return (
            f"this address is not known by the name {shown(host)}; start the server with "
            "--public-url and the address that the browser shows, if that is meant"
        )
    origin = headers.get("Origin")
    if origin is None:
        if kind == "socket":
            return "a websocket needs the header Origin, which browsers send"
    elif not (kind == "login" and origin == "null") and not _is_own(place, host, origin):
        return "another page has asked for this"
    site, mode = headers.get("Sec-Fetch-Site", "same-origin"), headers.get("Sec-Fetch-Mode", "")
    if site in ("same-origin", "none") or (kind in ("entry", "login", "page") and mode == "navigate"):
        return ""
    return "another page has asked for this"


def _is_own(place: Place, host: str, origin: str) -> bool:
    return origin.lower() == place.public_url or origin.lower() in (f"http://{host}", f"https://{host}")


def base_path(text: str) -> str:
    """Return the base path without its last slash. Raises UsageError."""
    found = text.rstrip("/")
    if not _BASE_PATH.fullmatch(found) or {".", ".."} & set(found.split("/")):
        raise UsageError(
            f"--base-path {shown(text)} is no path such as /node/n1/8080/: letters, digits, dots and hyphens "
            "between slashes, and no .. or . alone"
        )
    return found


def public_url(text: str) -> str:
    """Return scheme and host of a public address, in lower case. Raises UsageError."""
    try:
        parts = urlsplit(text.lower())
        fits = parts.scheme in ("http", "https") and _HOST.fullmatch(parts.netloc) and parts.path in ("", "/")
    except ValueError:
        fits = None
    if not fits or parts.query or parts.fragment:
        raise UsageError(
            f"--public-url {shown(text)} is no address such as https://ondemand.example.edu; "
            "what follows the host belongs to --base-path"
        )
    return f"{parts.scheme}://{parts.netloc}"


def is_loopback(address: str) -> bool:
    """Return whether only this host reaches an address: a number, or a name that always means this host."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


def host_of(url: str) -> str:
    """Return the host of a public URL without its port."""
    match = _HOST.fullmatch(urlsplit(url).netloc)
    return match[1] if match else ""

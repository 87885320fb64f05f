"""A reverse proxy that does to requests and answers what Open OnDemand's does for /node and /rnode.

After the template of its Apache configuration (ood-portal.conf.erb): `Host` is kept; /node keeps the path, /rnode takes
the first three parts away; cookies get the path of the node and port; addresses in `Location` lose their host, and get
the first three parts again for /rnode. The portal's own login is left out.
"""

from __future__ import annotations

import contextlib
import re
import socket
import socketserver
import threading
from collections.abc import Iterator

_PATH = re.compile(rb"^(?P<method>[A-Z]+) (?P<base>/(?P<kind>r?node)/[^/ ]+/(?P<port>\d+))(?P<rest>/[^ ]*|) HTTP/1.1$")


def _head(stream: socket.socket) -> tuple[list[bytes], bytes]:
    """Read the lines of a request or answer up to the empty one; return them, and what was read of the rest."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = stream.recv(65536)
        if not more:
            return [], b""
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    return head.split(b"\r\n"), rest


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


class _Exchange(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        lines, rest = _head(self.request)
        match = _PATH.match(lines[0]) if lines else None
        if match is None:
            self.request.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        is_relative = match["kind"] == b"rnode"
        path = (match["rest"] or b"/") if is_relative else match["base"] + match["rest"]
        is_upgrade = any(line.lower().startswith(b"upgrade:") for line in lines)
        headers = [line for line in lines[1:] if is_upgrade or not line.lower().startswith(b"connection:")]
        headers += [] if is_upgrade else [b"Connection: close"]
        with socket.create_connection(("127.0.0.1", int(match["port"]))) as server:
            server.sendall(b"\r\n".join([match["method"] + b" " + path + b" HTTP/1.1", *headers, b"", rest]))
            sending = threading.Thread(target=_pass_on, args=(self.request, server), daemon=True)
            sending.start()
            lines, rest = _head(server)
            answered = [self._changed(line, match["base"], is_relative) for line in lines]
            with contextlib.suppress(OSError):
                self.request.sendall(b"\r\n".join([*answered, b"", rest]))
            _pass_on(server, self.request)

    @staticmethod
    def _changed(line: bytes, base: bytes, is_relative: bool) -> bytes:
        name, _, value = line.partition(b": ")
        if name.lower() == b"set-cookie":
            value = re.sub(rb";\s*Path[^;]*", b"", value, flags=re.IGNORECASE)
            return name + b": " + re.sub(rb"^([^;]+)", rb"\1; Path=" + base, value)
        if name.lower() == b"location":
            value = re.sub(rb"^[^/]+//[^/]+", b"", value)
            return name + b": " + (base if is_relative else b"") + value
        return line


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False


@contextlib.contextmanager
def portal() -> Iterator[int]:
    """Run the proxy, and yield its port."""
    with _Server(("127.0.0.1", 0), _Exchange) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()

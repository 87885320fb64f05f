"""Plays the agents of many nodes on one host: python many_agents.py COUNT SNAPSHOT TOKEN (a bench's helper, as root).

One process answers on port 594 for every node (which one, the Host header says), with one recorded snapshot under that
node's name, with and without details; is the DNS server that knows the nodes' names; and on port 9432 has one page with
the metrics of all nodes, as a Prometheus that scrapes each agent gets them. Of the metrics only those of nodes: the
GPUs and jobs of ten thousand nodes are millions of series, and the query for a line per node does not touch them.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from msgspec.structs import replace

from slurm_share.load import metrics, snapshot
from slurm_share.load.agent.newest import without_details

NAME = "node{:05d}"
HERE = bytes([127, 0, 0, 1])
MARK = "NODE-GOES-HERE"


class Agents(asyncio.Protocol):
    """HTTP as the agent speaks it: one request a connection."""

    bodies: dict[bytes, tuple[bytes, bytes]]
    token: bytes
    page: bytes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        if not self.data.endswith(b"\r\n\r\n"):
            return
        head = self.data.split(b"\r\n")
        target = head[0].split()[1]
        headers = {name.lower(): value for name, _, value in (line.partition(b": ") for line in head[1:])}
        if target == b"/metrics/all":
            self.answer(b"200 OK", self.page, b"text/plain; version=0.0.4")
        elif headers.get(b"authorization") != b"Bearer " + self.token:
            self.answer(b"401 Unauthorized", b"", b"text/plain")
        else:
            before, after = self.bodies[target]
            self.answer(b"200 OK", before + headers[b"host"].split(b":")[0] + after, b"application/json")

    def answer(self, status: bytes, body: bytes, kind: bytes) -> None:
        head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        self.transport.write(head % (status, kind, len(body)) + body)  # type: ignore[attr-defined]
        self.transport.close()


class Names(asyncio.DatagramProtocol):
    """DNS: every name is here (A), and has no other address."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, peer: tuple[str, int]) -> None:
        end = data.index(b"\0", 12) + 5
        wants_a = data[end - 4 : end - 2] == b"\0\x01"
        head = data[:2] + b"\x81\x80\0\x01" + (b"\0\x01" if wants_a else b"\0\0") + b"\0\0\0\0"
        answer = b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04" + HERE if wants_a else b""
        self.transport.sendto(head + data[12:end] + answer, peer)  # type: ignore[attr-defined]


def page(seen: snapshot.Snapshot, count: int) -> bytes:
    """The nodes' metrics, family by family."""
    lines = []
    for line in metrics.render(replace(seen, node=MARK)).decode().splitlines():
        if not line.startswith(("slurm_share_node_", "# HELP slurm_share_node_", "# TYPE slurm_share_node_")):
            continue
        lines += [line] if line.startswith("#") else [line.replace(MARK, NAME.format(n)) for n in range(1, count + 1)]
    return "\n".join(lines).encode() + b"\n"


async def main() -> None:
    count, file, token = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    seen = snapshot.parse_snapshot(file.read_bytes(), str(file))
    whole, line = (
        tuple(snapshot.render(replace(one, node=MARK)).split(MARK.encode())) for one in (seen, without_details(seen))
    )
    Agents.bodies = {b"/snapshot": whole, b"/snapshot?details=no": line}  # type: ignore[dict-item]
    Agents.token, Agents.page = token.read_bytes().strip(), page(seen, count)
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(Names, ("127.0.0.1", 53))
    for port in (594, 9432):
        await loop.create_server(Agents, "0.0.0.0", port, backlog=4096)
    print("serving", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())

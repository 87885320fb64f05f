"""Two nodes on this machine for tests/bench/spmd.py: python spmd_nodes.py ours|sockets PROGRAM. Needs root.

Each node is a network namespace, and a veth pair joins them, as in the local cluster. For `ours` each node runs the
processes that a launcher would start: a rendezvous process and one rank. Abstract sockets do not cross namespaces, so
the ranks can only use TCP. Slurm is not involved. The namespaces end with this process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from slurm_share.spmd import key_folder, names, wire
from slurm_share.spmd.rules import ends

ADDRESSES = ("10.213.77.1", "10.213.77.2")
PORT = 47113
"""Any address will do: no other process is in these namespaces."""
PAIR = (("n1", 1), ("n2", 1))
_DIES_WITH_US = ["setpriv", "--pdeathsig", "KILL"]


def namespaces() -> list[subprocess.Popen[bytes]]:
    """Return two processes that each hold a network namespace; the namespaces are joined and have addresses."""
    hold = [*_DIES_WITH_US, "unshare", "--net", "sh", "-c", "echo; exec sleep infinity"]
    found = [subprocess.Popen(hold, stdout=subprocess.PIPE) for _ in ADDRESSES]
    for one in found:
        assert one.stdout is not None
        if one.stdout.readline() != b"\n":
            sys.exit("spmd_nodes.py: no network namespace could be made; run it as root")
    second = str(found[1].pid)
    _ip(found[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", second)
    for one, address in zip(found, ADDRESSES, strict=True):
        _ip(one, "link", "set", "lo", "up")
        _ip(one, "address", "add", f"{address}/24", "dev", "eth0")
        _ip(one, "link", "set", "eth0", "up")
    return found


def _in(node: subprocess.Popen[bytes], *argv: str) -> list[str]:
    return [*_DIES_WITH_US, "nsenter", f"--net=/proc/{node.pid}/ns/net", *argv]


def _ip(node: subprocess.Popen[bytes], *words: str) -> None:
    subprocess.run(_in(node, "ip", *words), check=True)


def plain(nodes: list[subprocess.Popen[bytes]], program: str) -> int:
    """Run the program once in each namespace."""
    ranks = []
    for rank, node in enumerate(nodes):
        env = {"SPMD_RANK": str(rank), "SPMD_ADDRESS": ADDRESSES[0], "SPMD_PORT": str(PORT)}
        ranks.append(subprocess.Popen(_in(node, sys.executable, program), env=os.environ | env))
    return max(abs(rank.wait()) for rank in ranks)


def ours(nodes: list[subprocess.Popen[bytes]], program: str, folder: str) -> int:
    """Run a rank on each node, with its rendezvous process."""
    key_folder.make_folder(folder)
    pipe = subprocess.PIPE
    meeting = [
        subprocess.Popen(_in(node, sys.executable, "-m", "slurm_share.spmd.rendezvous"), stdin=pipe, stdout=pipe)
        for node in nodes
    ]
    ranks = []
    for number, (node, process) in enumerate(zip(nodes, meeting, strict=True)):
        _tell(process, wire.Setup("bench.0", number, PAIR, folder=folder, interface=ADDRESSES[number]))
        assert process.stdout is not None
        ready = wire.decode(process.stdout.readline())
        assert isinstance(ready, wire.Ready), ready
        env = {
            names.ENV_RENDEZVOUS: ready.name,
            names.ENV_ADDRESS: ready.address,
            names.ENV_RANK: str(number),
            names.ENV_SIZE: "2",
            names.ENV_NODE: str(number),
            names.ENV_NODES: "2",
            names.ENV_LOCAL_RANK: "0",
            names.ENV_LOCAL_SIZE: "1",
        }
        command = _in(node, sys.executable, "-u", "-m", "slurm_share.spmd", program)
        ranks.append(subprocess.Popen(command, env=os.environ | env))
    codes = []
    for number, rank in enumerate(ranks):
        codes.append(rank.wait())
        code, signal = (codes[-1], None) if codes[-1] >= 0 else (None, -codes[-1])
        _tell(meeting[number], wire.RankEnded(number, PAIR[number][0], code, signal, ends.reason(code, signal)))
    return max(map(abs, codes + [process.wait(20) for process in meeting]))


def _tell(process: subprocess.Popen[bytes], message: wire.Record) -> None:
    assert process.stdin is not None
    process.stdin.write(wire.encode(message))
    process.stdin.flush()


def main(peer: str, program: str) -> int:
    nodes = namespaces()
    try:
        if peer == "sockets":
            return plain(nodes, program)
        with tempfile.TemporaryDirectory(prefix="spmd-nodes-") as folder:
            return ours(nodes, program, str(Path(folder) / "rendezvous"))
    finally:
        for one in nodes:
            one.kill()
            one.wait()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

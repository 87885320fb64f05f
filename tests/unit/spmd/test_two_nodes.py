"""Ranks of two nodes on this machine: real rendezvous processes, real ranks, TCP between them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping

import pytest
from rendezvous_ends import PATIENCE_S, Node, variables

from slurm_share.spmd import key_folder, wire


class Nodes:
    """Two nodes of two ranks each, or of other numbers, started as by two launchers."""

    def __init__(
        self, folder: str, program: str, size: int = 4, per_node: int = 2, environ: Mapping[str, str] = os.environ
    ) -> None:
        key_folder.make_folder(folder)
        self.size, self.per_node, self.environ = size, per_node, environ
        pair = (("n1", per_node), ("n2", size - per_node))
        what = {"folder": folder, "heartbeat_s": 0.5, "lost_s": 3.0}
        self.nodes = [Node(wire.Setup("1.0", node, pair, interface=f"127.0.0.{node + 1}", **what)) for node in range(2)]
        self.ranks = [self._start(rank, program) for rank in range(size)]

    def _start(self, rank: int, program: str) -> subprocess.Popen[str]:
        number, local = divmod(rank, self.per_node)
        node = self.nodes[number]
        ready = node.ready if local else node.start()
        found = variables(ready, rank, self.size, self.per_node)
        command = [sys.executable, "-u", "-m", "slurm_share.spmd", program]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env={**self.environ, **found}, stdout=pipe, stderr=pipe, text=True)

    def said(self, rank: int) -> tuple[str, str]:
        """Wait until a rank has ended, report that to its node, and return the rank's output."""
        process = self.ranks[rank]
        said = process.communicate(timeout=PATIENCE_S)
        code = process.returncode
        self.nodes[rank // self.per_node].end(rank, *((code, None) if code >= 0 else (None, -code)))
        return said

    def close(self) -> None:
        for process in self.ranks:
            process.kill()
            process.communicate()
        for node in self.nodes:
            node.close()


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a program on two nodes."""
    made: list[Nodes] = []

    def begin(text: str) -> Nodes:
        path = tmp_path / "prog.py"
        path.write_text("import time\nfrom slurm_share.spmd import COMM_WORLD as comm\n" + textwrap.dedent(text))
        made.append(Nodes(str(tmp_path / "rendezvous"), str(path)))
        return made[-1]

    yield begin
    for nodes in made:
        nodes.close()


def test_ranks_of_two_nodes_send_each_other_messages(start):
    nodes = start("""
        comm.send(("from", comm.rank), (comm.rank + 1) % comm.size)
        print(comm.node, comm.recv(), comm.allreduce(comm.rank))
    """)
    assert [nodes.said(rank) for rank in range(4)] == [
        ("n1 ('from', 3) 6\n", ""),
        ("n1 ('from', 0) 6\n", ""),
        ("n2 ('from', 1) 6\n", ""),
        ("n2 ('from', 2) 6\n", ""),
    ]
    assert [node.wait() for node in nodes.nodes] == [0, 0]


def test_a_ring_of_receives_across_nodes_is_named_on_all(start):
    nodes = start("comm.recv((comm.rank + 1) % comm.size, 'x')")
    table = "; ".join(f"rank {rank} waits in recv for ({(rank + 1) % 4}, 'x')" for rank in range(4))
    for rank in range(4):
        assert table in nodes.said(rank)[1]
    assert {table in node.expect(wire.RunEnding).why for node in nodes.nodes} == {True}


def test_a_death_on_one_node_is_named_on_the_other(start):
    nodes = start("""
        import os, signal
        comm.barrier()
        if comm.rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.barrier()
    """)
    nodes.said(3)
    for rank in range(3):
        assert nodes.said(rank) == ("", f"rank {rank} ends: rank 3 on n2 was killed by SIGKILL\n")
    why = "rank 3 on n2 was killed by SIGKILL; the other 3 were ended"
    assert {node.expect(wire.RunEnding).why for node in nodes.nodes} == {why}
    assert [node.wait() for node in nodes.nodes] == [0, 0]

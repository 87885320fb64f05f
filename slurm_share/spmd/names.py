"""Names of the environment, the protocol's version and limits. Standard library only: the launcher imports this."""

from __future__ import annotations

VERSION = 1
"""Version of frames and of the messages to and from the rendezvous process. Both ends must have the same."""

ENV_RENDEZVOUS = "LLSUB_RENDEZVOUS"
"""Abstract Unix socket of the node's rendezvous process, without the leading NUL byte."""
ENV_RANK = "LLSUB_RANK"
"""Number of this rank in the run, from 0."""
ENV_SIZE = "LLSUB_SIZE"
"""Number of ranks in the run."""
ENV_NODE = "LLSUB_NODE"
"""Number of this node in the run, from 0."""
ENV_NODES = "LLSUB_NODES"
"""Number of nodes in the run."""
ENV_LOCAL_RANK = "LLSUB_LOCAL_RANK"
"""Number of this rank on its node, from 0."""
ENV_LOCAL_SIZE = "LLSUB_LOCAL_SIZE"
"""Number of ranks on this node."""
ENV_ADDRESS = "LLSUB_ADDRESS"
"""Address of this node on which a rank listens for other nodes' ranks; set in a run of more than one node."""
ENV_PARENT = "LLSUB_PARENT"
"""Process id of the command that runs the ranks on this machine: they end with it."""
ENV_PORTS = "LLSUB_PORTS"
"""Range of TCP ports (`60000-60999`): a rank listens on one of them; unset: on any port."""
ENV_START_S = "LLSUB_START_S"
"""Seconds from the first rank's hello within which all others must have said theirs."""
ENV_SEND_LIMIT = "LLSUB_SEND_LIMIT"
"""Most bytes of messages that a rank keeps for receivers that have not taken them."""
ENV_TRANSPORT = "LLSUB_TRANSPORT"
"""`mpi`: mpi4py; `own`: ours; unset: mpi4py in an MPI world of more than one rank, else ours."""
ENV_PPYTHON_MPI = "PPYTHON_USE_MPI4PY"
"""pPython's name for the same: 1 is mpi4py."""
ENV_CHECK = "LLSUB_CHECK"
"""1: every body is sent with a checksum, which the receiver compares."""

START_S = 300.0
"""Where ENV_START_S is not set."""
HEARTBEAT_S = 2.0
"""Between two signs of life that rendezvous processes of different nodes give each other."""
LOST_S = 15.0
"""A node's rendezvous process that has said nothing for so long is lost."""
WAITING_S = 2.0
"""A call that waits for longer tells the rendezvous process what it waits for."""
END_GRACE_S = 10.0
"""Between the end of one rank and SIGTERM for those that are still there."""
HANDSHAKE_S = 5.0
"""Within which both ends of a new connection must have proved who they are."""
HALF_OPEN = 64
"""Most connections that have not proved anything yet; for one more, the oldest is closed."""
MOST_RANKS = 1024
"""In a run."""
MOST_RANKS_PER_NODE = 256
"""Of one run."""
NOTED_CONNECTIONS = 512
"""A rank with more connections to other ranks says so once."""
TAG_BYTES = 255
"""Length of the longest tag, in UTF-8."""
META_BYTES = 1 << 20
"""Length of the longest description of a body, such as an array's dtype and shape. A longer one is refused."""
INLINE_BYTES = 16 << 10
"""Bodies up to this size go with the frame through the socket."""
SEGMENT_MIN = 64 << 10
"""Size of the smallest segment of shared memory."""
SEGMENT_IDLE = 512 << 20
"""Most bytes of free segments that a rank keeps for later messages."""
PIECE_BYTES = 64 << 20
"""Larger bodies go through segments in pieces of this size."""
CONTROL_BYTES = 256 << 10
"""The longest message to or from a rendezvous process: Welcome of 1,024 nodes with long names."""
RANK_LINE_BYTES = 64 << 10
"""The longest message of a rank to its rendezvous process."""

"""Names of the environment, the protocol's version and limits. Standard library only: the launcher imports this."""

from __future__ import annotations

VERSION = 1
"""Version of frames and of the messages to and from the rendezvous process. Both ends must have the same."""

ENV_RENDEZVOUS = "LLSUB_RENDEZVOUS"
"""Abstract Unix socket of the node's rendezvous process, without the leading NUL byte."""
ENV_RANK = "LLSUB_RANK"
ENV_SIZE = "LLSUB_SIZE"
ENV_NODE = "LLSUB_NODE"
"""Number of this node in the run, from 0."""
ENV_NODES = "LLSUB_NODES"
ENV_LOCAL_RANK = "LLSUB_LOCAL_RANK"
ENV_LOCAL_SIZE = "LLSUB_LOCAL_SIZE"
ENV_ADDRESS = "LLSUB_ADDRESS"
"""Address of this node on which a rank listens for other nodes' ranks; set in a run of more than one node."""
ENV_PARENT = "LLSUB_PARENT"
"""Process id of the command that runs the ranks on this machine: they end with it."""
ENV_PORTS = "LLSUB_PORTS"
"""Range of TCP ports (`60000-60999`) of which a rank listens on one; unset: any."""
ENV_START_S = "LLSUB_START_S"
"""How long all ranks may take until they have said hello."""
ENV_SEND_LIMIT = "LLSUB_SEND_LIMIT"
"""Bytes of messages that a rank keeps for receivers that have not taken them."""
ENV_TRANSPORT = "LLSUB_TRANSPORT"
"""`mpi`: mpi4py; `own`: ours; unset: mpi4py in an MPI world of more than one rank, else ours."""
ENV_PPYTHON_MPI = "PPYTHON_USE_MPI4PY"
"""pPython's name for the same: 1 is mpi4py."""
ENV_CHECK = "LLSUB_CHECK"
"""1: every body is sent with a checksum, and compared."""

START_S = 300.0
HEARTBEAT_S = 2.0
LOST_S = 15.0
"""A node's rendezvous process that has said nothing for so long is lost."""
WAITING_S = 2.0
"""A call that waits for longer tells the rendezvous process what it waits for."""
END_GRACE_S = 10.0
"""Between the end of one rank and SIGTERM for those that are still there."""
HANDSHAKE_S = 5.0
HALF_OPEN = 64
"""Connections that have not proved anything yet; the oldest is closed for a new one."""
MOST_RANKS = 1024
MOST_RANKS_PER_NODE = 256
TAG_BYTES = 255
META_BYTES = 1 << 20
INLINE_BYTES = 16 << 10
"""Bodies up to this size go with the frame through the socket."""
SEGMENT_MIN = 64 << 10
SEGMENT_IDLE = 512 << 20
"""Bytes of free segments that a rank keeps."""
PIECE_BYTES = 64 << 20
"""Larger bodies go through segments in pieces of this size."""
CONTROL_BYTES = 256 << 10
"""The longest message to or from a rendezvous process: Welcome of 1,024 nodes with long names."""
RANK_LINE_BYTES = 64 << 10
"""The longest message of a rank to its rendezvous process."""

"""Environment variables, protocol version and limits. Standard library only: the launcher imports this."""

from __future__ import annotations

VERSION = 2
"""Version of the frames and of the messages to and from the rendezvous process. Both ends must agree.

Version 2 has rings (RING and WAKE), messages that are answered, and contexts of other communicators.
"""

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
"""Address of this node on which ranks listen for ranks of other nodes; set if the run has several nodes."""
ENV_PARENT = "LLSUB_PARENT"
"""Process id of the command that runs the ranks on this machine; the ranks end when it ends."""
ENV_PORTS = "LLSUB_PORTS"
"""Range of TCP ports (`60000-60999`): a rank listens on one of them; unset: on any port."""
ENV_START_S = "LLSUB_START_S"
"""Seconds after the first rank's Hello within which all other ranks must send theirs."""
ENV_SEND_LIMIT = "LLSUB_SEND_LIMIT"
"""Limit in bytes of the messages that a rank keeps for receivers that have not taken them yet."""
ENV_TRANSPORT = "LLSUB_TRANSPORT"
"""`mpi`: mpi4py; `own`: sockets; unset: mpi4py in an MPI world of more than one rank, else sockets."""
ENV_PPYTHON_MPI = "PPYTHON_USE_MPI4PY"
"""pPython's variable for the same choice: 1 means mpi4py."""
ENV_CHECK = "LLSUB_CHECK"
"""1: the sender adds a checksum to every body, and the receiver compares it."""

EXIT_SAVED = 75
"""Exit code of a rank that has saved its state and goes on in a later job; as core/names.py."""
GOOD_CODES = (0, EXIT_SAVED)
"""Exit codes of ranks that have not failed."""
START_S = 300.0
"""Default of ENV_START_S."""
HEARTBEAT_S = 2.0
"""Seconds between two heartbeats that the rendezvous processes of different nodes send each other."""
LOST_S = 15.0
"""Seconds without a message after which a node's rendezvous process counts as lost."""
WAITING_S = 2.0
"""Seconds after which a waiting call tells the rendezvous process what it waits for."""
END_GRACE_S = 10.0
"""Seconds between the end of one rank and SIGTERM for the remaining ones."""
HANDSHAKE_S = 5.0
"""Seconds within which both ends of a new connection must authenticate."""
REFUSALS_NAMED = 20
"""Limit of lines about refused connections in the log of a process; other users could fill it."""
HALF_OPEN = 64
"""Limit of unauthenticated connections; one more closes the oldest."""
MOST_RANKS = 1024
"""Limit of ranks in a run."""
MOST_RANKS_PER_NODE = 256
"""Limit of ranks of one run on a node."""
NOTED_CONNECTIONS = 512
"""A rank with more connections to other ranks prints a note once."""
TAG_BYTES = 255
"""Limit of the length of a tag in UTF-8."""
META_BYTES = 1 << 20
"""Limit of the description of a body, such as an array's dtype and shape. A longer one is refused."""
INLINE_BYTES = 16 << 10
"""Bodies up to this size go through the socket, with the frame."""
SEGMENT_MIN = 64 << 10
"""Size of the smallest segment of shared memory."""
SEGMENT_IDLE = 512 << 20
"""Limit of the free segments that a rank keeps for later messages."""
PIECE_BYTES = 64 << 20
"""Larger bodies go through segments in pieces of this size."""
CONTROL_BYTES = 256 << 10
"""Limit of a message to or from a rendezvous process: room for Welcome of 1,024 nodes with long names."""
RANK_LINE_BYTES = 64 << 10
"""Limit of a message from a rank to its rendezvous process."""

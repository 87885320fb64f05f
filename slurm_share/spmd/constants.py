"""Constants of messages, with mpi4py's names."""

from __future__ import annotations

ANY_SOURCE = -1
"""As a source: any rank."""
ANY_TAG = -1
"""As a tag to receive: any tag. None means the same."""
PROC_NULL = -2
"""As a rank: none. A message to it vanishes; one from it is empty and there at once."""
ROOT = -3
UNDEFINED = -32766
"""As a colour of `Split`: this rank is in no new communicator. As a result: there is none."""
COMM_TYPE_SHARED = 1
"""For `Split_type`: ranks of one node."""


class InPlace(int):
    """Type of IN_PLACE, which mpi4py's users also compare with `is`."""

    def __repr__(self) -> str:
        return "IN_PLACE"


IN_PLACE = InPlace(-1)
"""As a send buffer: the data are in the receive buffer."""
IDENT, CONGRUENT, SIMILAR, UNEQUAL = 0, 1, 2, 3
"""Results of `Compare`: the same; the same ranks in the same order; the same ranks in another order; other ranks."""
GRAPH, CART, DIST_GRAPH = 1, 2, 3
"""Kinds of topology; only CART exists here."""


class Bottom(int):
    """Type of BOTTOM."""

    def __repr__(self) -> str:
        return "BOTTOM"


BOTTOM = Bottom(0)
"""As a buffer in a list with a count of 0: an empty one."""
INFO_NULL = None
"""No hints, as an argument that programs for mpi4py pass; there are none."""

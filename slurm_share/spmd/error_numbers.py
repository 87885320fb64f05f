"""Numbers of mpi4py's classes of errors. Errors here are Python classes; programs may compare their `error_class`."""

from __future__ import annotations

SUCCESS = 0
ERR_BUFFER, ERR_COUNT, ERR_TYPE, ERR_TAG, ERR_COMM, ERR_RANK, ERR_ROOT, ERR_GROUP, ERR_OP, ERR_TOPOLOGY = range(1, 11)
ERR_DIMS, ERR_ARG, ERR_UNKNOWN, ERR_TRUNCATE, ERR_OTHER, ERR_INTERN, ERR_IN_STATUS, ERR_PENDING = range(11, 19)
ERR_REQUEST = 19
ERR_NO_MEM = 34

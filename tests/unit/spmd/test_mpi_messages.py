"""Parts of the transport over MPI that need no MPI: messages as bytes, and the end of a rank."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any
from unittest.mock import MagicMock

import pytest

from slurm_share.spmd import mpi4py_transport as mpi
from slurm_share.spmd.envelope import RAW, Tag
from slurm_share.spmd.transport import USER, Queues


@pytest.mark.parametrize("tag", [0, -(1 << 63), "a", "", "i5", "\udc80"])
def test_tags_of_every_kind_come_as_they_were(tag: Tag) -> None:
    data = mpi._pack(0, USER, tag, RAW, b"meta", [memoryview(b"body")])
    _kind, message = mpi._unpack(3, memoryview(data))
    assert (message.envelope.tag, message.envelope.meta, bytes(message.take())) == (tag, b"meta", b"body")


@pytest.mark.parametrize("is_late", [True, False])
def test_ranks_whose_last_collective_calls_differ_end_with_an_abort(
    monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    aborted: list[Any] = []
    monkeypatch.setattr(mpi.MpiTransport, "abort", lambda _self, code, why: aborted.append((code, why)))
    made: Any = mpi.MpiTransport.__new__(mpi.MpiTransport)
    made.rank, made.size, made._closed, made._lock = 0, 1, False, threading.RLock()
    made._mpi, made._comm, made._block = MagicMock(), MagicMock(), MagicMock()
    made._mpi.Is_finalized.return_value = False
    made._ended, made._sent, made._queues = set(), deque(), Queues(0)
    made._queues.finish(1 << 32 | 4)
    if is_late:
        data = mpi._pack(0, 1 << 32 | 4, "bcast(root=1)", RAW, b"", [])
        made._queues.put(mpi._unpack(1, memoryview(data))[1])
    made.close()
    assert [code for code, _why in aborted] == [1] * is_late
    assert all("collective call 4" in why for _code, why in aborted)


def test_a_jobs_memory_limits_what_is_kept_for_receivers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLSUB_SEND_LIMIT", raising=False)
    monkeypatch.setattr("slurm_share.spmd.memory.total_bytes", lambda: 400_000)
    comm = MagicMock(**{"Get_rank.return_value": 0, "Get_size.return_value": 2})
    comm.allgather.side_effect = lambda here: [here, here]
    assert mpi.MpiTransport(MagicMock(), comm)._limit == 400_000 // mpi.MEMORY_PART // 2

"""Wrong arguments of mpi4py's calls are refused in a sentence, and no message is lost by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from in_threads import run

from slurm_share.spmd import MPI
from slurm_share.spmd.comm import Comm
from slurm_share.spmd.errors import UsageError

TWO = np.array([0, 1])

REFUSED: dict[str, tuple[Callable[[Any], object], str]] = {
    "send to an array": (lambda comm: comm.send(1, TWO), "there is no rank array"),
    "object and rank exchanged": (lambda comm: comm.send(0, TWO), "there is no rank array"),
    "array and rank exchanged": (lambda comm: comm.Send(0, TWO), "there is no rank array"),
    "receive from an array": (lambda comm: comm.recv(None, TWO), "there is no rank array"),
    "post a receive from an array": (lambda comm: comm.irecv(None, TWO), "there is no rank array"),
    "receive an array of tags": (lambda comm: comm.recv(None, 0, TWO), "is no tag"),
    "source first and an array of tags": (lambda comm: comm.recv(0, TWO), "is no tag"),
    "probe for an array": (lambda comm: comm.iprobe(TWO), "there is no rank array"),
    "scatter a number": (lambda comm: comm.scatter(5), "one value for each of the 1 ranks, not 5"),
    "alltoall of a number": (lambda comm: comm.alltoall(5), "one value for each of the 1 ranks, not 5"),
    "wait for one request as a list": (lambda _: MPI.Request.waitall(MPI.Request()), "needs a list of requests"),
    "wait for nothing": (lambda _: MPI.Request.Waitany(None), "waitany needs a list of requests, not None"),
    "wait for a number": (lambda _: MPI.Request.waitsome([1]), "waitsome needs objects Request .* not 1"),
    "start a request that is not persistent": (
        lambda comm: MPI.Prequest.Startall([comm.isend(1, MPI.PROC_NULL)]),
        "Startall needs objects Prequest",
    ),
    "one status for many": (lambda _: MPI.Request.waitall([], MPI.Status()), "statuses are a list"),
    "a number among the statuses": (lambda _: MPI.Request.waitall([MPI.Request()], [3]), "is an MPI.Status or None"),
    "a group of a number": (lambda comm: comm.Get_group().Incl(0), "Incl needs a list of ranks, not 0"),
    "union with nothing": (lambda comm: comm.Get_group().Union(None), "Union needs two groups, not None"),
    "intersection with a list": (lambda comm: comm.Get_group().Intersection([0]), "needs two groups"),
    "difference with a list": (lambda comm: comm.Get_group().Difference([0]), "needs two groups"),
    "group compared with a number": (lambda comm: comm.Get_group().Compare(5), "Compare needs two groups"),
    "vector of a word": (lambda _: MPI.INT.Create_vector("a", 1, 1), "a datatype is made of integers, not 'a'"),
    "subarray of fractions": (lambda _: MPI.INT.Create_subarray([2.5], [1], [0]), "made of integers, not 2.5"),
    "communicator compared with a number": (lambda comm: comm.Compare(5), "Compare needs two communicators"),
}


@pytest.mark.parametrize(("call", "why"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_argument_is_refused_in_a_sentence(call: Callable[[Any], object], why: str) -> None:
    def main(comm: Comm) -> None:
        with pytest.raises(UsageError, match=why):
            call(comm)

    run(1, main)


RECEIVES: dict[str, Callable[[Any], object]] = {
    "recv": lambda comm: comm.recv(None, 0, 0, 5),
    "Recv": lambda comm: comm.Recv(np.zeros(1), 0, 0, 5),
    "probe": lambda comm: comm.probe(0, 0, 5),
    "iprobe": lambda comm: comm.iprobe(0, 0, 5),
    "mprobe": lambda comm: comm.mprobe(0, 0, 5),
    "improbe": lambda comm: comm.improbe(0, 0, 5),
    "sendrecv": lambda comm: comm.sendrecv(2, 0, 1, None, 0, 0, 5),
    "Sendrecv": lambda comm: comm.Sendrecv(np.zeros(1), 0, 1, np.zeros(1), 0, 0, 5),
    "Sendrecv_replace": lambda comm: comm.Sendrecv_replace(np.zeros(1), 0, 1, 0, 0, 5),
}


@pytest.mark.parametrize("call", RECEIVES.values(), ids=RECEIVES)
def test_a_status_that_is_none_costs_no_message(call: Callable[[Any], object]) -> None:
    def main(comm: Comm) -> None:
        comm.Send(np.ones(1), 0)
        with pytest.raises(UsageError, match=r"a status is an MPI\.Status or None, not 5"):
            call(comm)
        assert comm.recv() == np.ones(1)
        assert not comm.iprobe()

    run(1, main)


def test_a_request_waited_for_with_a_wrong_status_can_be_waited_for_again() -> None:
    def main(comm: Comm) -> None:
        request = comm.irecv(None, 0)
        comm.send("a", 0)
        with pytest.raises(UsageError, match="a status is"):
            request.wait(5)  # type: ignore[arg-type]
        assert request.wait() == "a"

    run(1, main)


def test_types_by_letter_are_the_named_ones() -> None:
    assert MPI._typedict["d"] is MPI.DOUBLE  # type: ignore[attr-defined]
    assert all(MPI.Datatype.fromcode(code) == one for code, one in MPI._typedict.items())  # type: ignore[attr-defined]

"""Buffer specifications name the elements that mpi4py's name, and the memory order of arrays is kept or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_threads import on_ranks

from slurm_share.spmd import MPI
from slurm_share.spmd.buffer_specs import readable, readable_blocks, typed_blocks, writable, writable_blocks
from slurm_share.spmd.comm import Comm
from slurm_share.spmd.errors import CollectiveMismatch, MessageMismatch, UsageError

A = np.arange(12.0)
COLUMN = MPI.DOUBLE.Create_vector(3, 1, 4)


@pytest.mark.parametrize(
    ("spec", "elements"),
    [
        (A, range(12)),
        ([A, MPI.DOUBLE], range(12)),
        ((A, "d"), range(12)),
        ([A, "float64"], range(12)),
        ([A, np.float64], range(12)),
        ([A, np.dtype("f8")], range(12)),
        ([A, 5], range(5)),
        ([A, None], range(12)),
        ([A, 5, MPI.DOUBLE], range(5)),
        ([A, None, MPI.DOUBLE], range(12)),
        ([A, (5, 2)], range(2, 7)),
        ([A, (None, 2), MPI.DOUBLE], range(2, 12)),
        ([A, [5, 2], MPI.DOUBLE], range(2, 7)),
        ([A, 5, 2, MPI.DOUBLE], range(2, 7)),
        ([A, np.int64(3), None, "d"], range(3)),
        ([A, 0, MPI.DOUBLE], ()),
        ([None, 0, MPI.DOUBLE], ()),
        ([memoryview(A), MPI.DOUBLE], range(12)),
        ([A, 1, COLUMN], (0, 4, 8)),
        ([A, (1, 0), COLUMN], (0, 4, 8)),
        ([A.reshape(3, 4), 2, MPI.DOUBLE.Create_contiguous(3)], range(6)),
        ([A, 2, MPI.DOUBLE.Create_indexed([2, 1], [4, 0])], (4, 5, 0, 10, 11, 6)),
        ([A, 1, MPI.DOUBLE.Create_subarray([3, 4], [2, 2], [1, 1])], (5, 6, 9, 10)),
        ([A, 1, MPI.DOUBLE.Create_subarray([4, 3], [2, 2], [1, 1], MPI.ORDER_F)], (5, 6, 9, 10)),
        ([A, 4, COLUMN.Create_resized(0, 8)], (0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11)),
        ([A, MPI.DOUBLE.Create_vector(2, 1, 2).Create_resized(0, 32)], (0, 2, 4, 6, 8, 10)),
        ([A, 1, MPI.DOUBLE.Create_struct([1, 2], [0, 64], [MPI.DOUBLE, MPI.DOUBLE])], (0, 8, 9)),
    ],
)
def test_a_specification_names_its_elements(spec: Any, elements: Any) -> None:
    found = readable(spec, "Send")
    assert found.flat.dtype == A.dtype
    assert found.flat.tolist() == list(elements)
    if isinstance(spec, (list, tuple)) and isinstance(spec[0], np.ndarray):
        into = np.full(spec[0].shape, -1.0)
        space = writable([into, *spec[1:]], "Recv")
        space.flat[:] = found.flat
        space.store()
        expected = np.full(12, -1.0)
        expected[list(elements)] = list(elements)
        assert into.ravel().tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ([A, 13], "Send: the buffer has 96 bytes, which is too few for 13 of "),
        ([A, (5, 8)], "too few for 5 of .* from byte 64 on"),
        ([A, -1, "d"], "a count is at least 0, not -1"),
        ([A, 1, -1, "d"], "a displacement is at least 0, not -1"),
        ([A, 1.5, "d"], "a count is an integer, not 1.5"),
        ([A, (None, 13), "d"], "the displacement 13 is beyond the end"),
        ([A, MPI.INT], "elements of float64, and the type MPI_INT has elements of int32"),
        ([A, MPI.LONG], "elements of float64, and the type MPI_LONG has elements of int64"),
        ([np.arange(4), MPI.INT], "elements of int64, and the type MPI_INT"),
        ([A, "no such"], "'no such' is no type of elements"),
        ([A, "O"], "'O' is no type of elements"),
        ([A], "a list of 1 is not understood"),
        ([A, 1, 2, 3, 4], "a list of 5 is not understood"),
        ([A, (1, 2, 3), "d"], r"give \[buffer, \(count, displacement\), type\]"),
        ([A, COLUMN], "give a count: the buffer has 96 bytes, which is no multiple of the 72 bytes"),
        ([A, 2, COLUMN], "too few for 2 of"),
        ([[1, 2], "d"], "needs an array or another buffer"),
        ([None, 1, "d"], "the buffer has 0 bytes"),
        (None, "needs an array or another buffer, not None"),
    ],
)
def test_what_cannot_be_meant_is_refused(spec: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        readable(spec, "Send")


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        (A, [range(4), range(4, 8), range(8, 12)]),
        ([A[:11], MPI.DOUBLE], [range(4), range(4, 8), range(8, 11)]),
        ([A, [1, 2, 3]], [range(1), range(1, 3), range(3, 6)]),
        ([A, np.array([1, 2, 3]), "d"], [range(1), range(1, 3), range(3, 6)]),
        ([A, 2, "d"], [range(2), range(2, 4), range(4, 6)]),
        ([A, ([1, 2, 3], [9, 4, 0])], [(9,), (4, 5), (0, 1, 2)]),
        ([A, ([1, 2, 3], None), MPI.DOUBLE], [range(1), range(1, 3), range(3, 6)]),
        ([A, (2, 4), MPI.DOUBLE], [(0, 1), (4, 5), (8, 9)]),
        ([A, [1, 0, 2], [9, 0, 4], MPI.DOUBLE], [(9,), (), (4, 5)]),
        ([A, [1, 1, 0], [0, 1, 2], COLUMN.Create_resized(0, 8)], [(0, 4, 8), (1, 5, 9), ()]),
    ],
)
def test_parts_for_each_rank_are_those_of_the_counts_and_displacements(spec: Any, parts: Any) -> None:
    assert [part.flat.tolist() for part in readable_blocks(spec, "Scatterv", 3).parts] == [list(one) for one in parts]
    with pytest.raises(UsageError, match="there are 2 counts, and 3 are needed"):
        writable_blocks([A, [1, 2], "d"], "Gatherv", 3)
    with pytest.raises(UsageError, match="too few"):
        writable_blocks([A, [1, 2, 20], "d"], "Gatherv", 3)


def test_displacements_of_parts_with_types_are_bytes() -> None:
    blocks = typed_blocks([A, ([2, 1], [8, 0]), [MPI.DOUBLE, COLUMN]], "Alltoallw", 2, to_fill=False)
    assert [part.flat.tolist() for part in blocks.parts] == [[1, 2], [0, 4, 8]]


def test_a_struct_of_several_types_moves_its_bytes_and_no_padding() -> None:
    kind = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.INT, MPI.DOUBLE]).Commit()
    assert (kind.Get_size(), kind.Get_extent()) == (12, (0, 16))
    records = np.array([(1, 0.5), (2, 1.5)], np.dtype("i4,f8", align=True))
    other = np.zeros_like(records)
    space = writable([other, 2, kind], "Recv")
    space.flat[:] = readable([records, 2, kind], "Send").flat
    space.store()
    assert other.tolist() == records.tolist()


def test_named_types_are_those_of_mpi4py() -> None:
    theirs = pytest.importorskip("mpi4py.MPI", reason="there is no mpi4py for this machine")
    names = [name for name, one in vars(MPI).items() if isinstance(one, MPI.Datatype)]
    assert len(names) > 80
    for name in names:
        ours, other = getattr(MPI, name), getattr(theirs, name)
        if name in ("DATATYPE_NULL", "FLOAT16_T"):
            continue  # the first has no size; MPICH calls the second MPIX
        assert (ours.name, ours.Get_size(), ours.Get_extent()) == (other.name, other.Get_size(), other.Get_extent())
        if not name.endswith("_INT") and name != "TWOINT":
            assert ours.typestr == other.typestr or ours.dtype == np.dtype("g") or ours.dtype == np.dtype("G"), name
            assert ours.fromcode(ours.tocode()).dtype == ours.dtype


@given(data=st.data())
def test_derived_types_have_the_sizes_of_mpi4py(data: st.DataObject) -> None:
    theirs = pytest.importorskip("mpi4py.MPI", reason="there is no mpi4py for this machine")
    ours, other = MPI.DOUBLE, theirs.DOUBLE
    few = st.integers(1, 3)
    for _ in range(data.draw(few)):
        make = data.draw(
            st.sampled_from(["contiguous", "vector", "hvector", "indexed", "subarray", "resized", "struct"])
        )
        words: tuple[Any, ...] = {
            "contiguous": lambda: (data.draw(few),),
            "vector": lambda: (data.draw(few), data.draw(few), data.draw(st.integers(-4, 5))),
            "hvector": lambda: (data.draw(few), data.draw(few), 8 * data.draw(st.integers(-4, 5))),
            "indexed": lambda: (lengths := data.draw(st.lists(few, min_size=1, max_size=3)), [3 * n for n in lengths]),
            "subarray": lambda: ([4, 5], [2, 3], [1, 2], data.draw(st.sampled_from([MPI.ORDER_C, MPI.ORDER_F]))),
            "resized": lambda: (data.draw(st.sampled_from([0, -8])), 8 * data.draw(st.integers(1, 9))),
            "struct": lambda: ([1, 2], [0, 400]),
        }[make]()
        if make == "struct":
            ours = MPI.Datatype.Create_struct(*words, [ours, MPI.INT])
            other = theirs.Datatype.Create_struct(*words, [other, theirs.INT])
        else:
            ours, other = (getattr(one, f"Create_{make}")(*words) for one in (ours, other))
        assert (ours.Get_size(), ours.Get_extent(), ours.Get_true_extent()) == (
            other.Get_size(),
            other.Get_extent(),
            other.Get_true_extent(),
        ), (make, words)


C2, F2 = np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize(("sent", "into"), [(C2, F2), (F2, C2), ([C2, MPI.DOUBLE], F2), (C2, [F2, "d"])])
def test_an_array_in_another_memory_order_is_received_right(sent: Any, into: Any) -> None:
    @on_ranks(2)
    def program(comm: Comm) -> None:
        if comm.rank == 0:
            comm.Send(sent, 1)
            return
        room = np.zeros_like(into[0] if isinstance(into, list) else into)
        comm.Recv([room, *into[1:]] if isinstance(into, list) else room, 0)
        assert room.tolist() == C2.tolist()

    program()


@on_ranks(2)
def test_an_array_in_another_memory_order_and_shape_is_refused(comm: Comm) -> None:
    if comm.rank == 0:
        comm.Send(F2, 1)
        comm.Send(F2, 1)
        comm.Send(C2, 1)
        return
    with pytest.raises(
        MessageMismatch, match=r"array \[2, 3\] in Fortran order, the buffer is one of \[3, 2\] in C order"
    ):
        comm.Recv(np.zeros((3, 2)), 0)
    flat = np.zeros(6)
    comm.Recv(flat, 0)
    assert flat.tolist() == F2.ravel(order="K").tolist()
    comm.Recv(np.zeros((2, 3), order="F"), 0)
    comm.Recv(np.zeros((3, 2)), 0)


@on_ranks(2)
def test_only_the_elements_of_a_shorter_message_are_written(comm: Comm) -> None:
    if comm.rank == 0:
        comm.Send([A, 2, MPI.DOUBLE], 1)
        return
    into = np.full(12, -1.0)
    comm.Recv([into, 1, COLUMN], 0)
    assert into.tolist() == [0, -1, -1, -1, 1, *[-1] * 7]


def test_a_broadcast_between_memory_orders_is_refused() -> None:
    @on_ranks(2)
    def program(comm: Comm) -> None:
        comm.Bcast((C2 if comm.rank else F2).copy(order="K"))

    with pytest.raises(CollectiveMismatch, match="6 x float64 in Fortran order"):
        program()


class Tensor:
    """An array of another library in host memory, as PyTorch's tensors are."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)


def test_an_array_of_another_library_in_host_memory_is_a_buffer() -> None:
    array = np.arange(6.0)
    assert np.shares_memory(readable([Tensor(array), MPI.DOUBLE], "Send").array, array)

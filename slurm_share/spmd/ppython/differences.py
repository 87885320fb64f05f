"""Where programs for pPython 0.10.4 meet another behaviour here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """One behaviour that is another than pPython 0.10.4's."""

    names: str
    """The functions or operators, separated by spaces."""
    there: str
    """What pPython 0.10.4 does."""
    here: str


DIFFERENCES = (
    Difference(
        "SendMsg MPI_Send",
        "a second message of one source, destination and tag replaces the first if that was not received yet",
        "messages of one source, destination and tag are received in the order in which they were sent",
    ),
    Difference("SendMsg", "a destination list of one rank sends nothing", "it sends to that rank"),
    Difference(
        "SendMsg MPI_Mcast MPI_Bcast BcastMsg multicast",
        "to several ranks: the source waits until all have received",
        "the source does not wait",
    ),
    Difference(
        "MPI_Bcast BcastMsg",
        "other ranks may receive a broadcast with MPI_Recv",
        "all ranks call the broadcast, in the same order; another tag at the source is an error",
    ),
    Difference(
        "RecvMsg MPI_Recv",
        "raises after 359 s",
        "waits until the message comes; raises when the sender has ended or all ranks wait for each other",
    ),
    Difference(
        "pyMPI_Save_messages",
        "messages kept while it was on can be received once more after it was switched off",
        "they are forgotten when it is switched off",
    ),
    Difference(
        "X[i,j] X[a:b,:]", "reading returns None", "reading returns the elements on every rank; all ranks must do it"
    ),
    Difference(
        "X[i,j]= X[a:b,:]=",
        "single elements, whole arrays and one form of 3-D slices can be assigned, in 2 to 4 dimensions",
        "any combination of whole numbers and slices, in any number of dimensions",
    ),
    Difference(
        "X[:,:]= remap transpose_grid",
        "right only where in each dimension one of the two maps is block or both are equal",
        "right for any two maps and any shape, any number of ranks in them and any order of them",
    ),
    Difference(
        "remap transpose_grid",
        "the result is float64, or complex128 where this rank has an imaginary part other than 0",
        "the type of the elements is kept, the same on all ranks",
    ),
    Difference("transpose_grid", "the argument loses its local part", "the argument stays as it is"),
    Difference(
        "+ - * / ** < ==",
        "+ - * only; A*B stores the result in A; A == B is one truth value, true if any element is equal",
        "all of NumPy's element-wise operators; each returns a new array; its truth value is an error",
    ),
    Difference(
        "copy", "the result of an operator cannot be copied or used in another one", "every array can be copied"
    ),
    Difference(
        "put_local",
        "a number raises AttributeError; shapes are not checked",
        "a number fills a new local part; a part of another shape is an error, but for dimensions of length 1",
    ),
    Difference("dtype nbytes", "as constructed", "those of the local part"),
    Difference(
        "agg agg_all",
        "fails with NumPy 2.4 and newer, and for a map on fewer ranks than the run; ranks in another order can give "
        "elements in another order, without a word",
        "right for all of these",
    ),
    Difference(
        "fft", "along a dimension that several ranks share: a result of the wrong shape", "right along any dimension"
    ),
    Difference(
        "agg agg_all remap synch fft find mtimes",
        "ranks outside the map may leave the call out",
        "collective: all ranks of the run call it",
    ),
    Difference("find", "elements of an overlap are listed twice", "each element is listed once"),
    Difference(
        "gagg", "needs D4M and pygraphblas; other ranks get partial results", "needs neither; they get their own"
    ),
    Difference(
        "use_gpu gpu_device",
        "CUDA_VISIBLE_DEVICES=0 is no GPU; any other value needs CuPy",
        "true where a GPU is visible and CuPy is there, which is imported when gpu_device is used; it is the first "
        "visible one",
    ),
    Difference(
        "import pPython",
        "must come before all flat modules; imports SymPy and multipledispatch",
        "any order inside a run; NumPy only",
    ),
    Difference(
        "program",
        "runs inside a function: module-level names are not seen by its functions, __name__ is not __main__",
        "runs as a program",
    ),
    Difference(
        "program",
        "where one rank fails, the others wait 359 s or for ever, and the exit code is 0",
        "the others raise PeerEnded, or are ended after 10 s; the exit code is not 0",
    ),
    Difference(
        "PythonMPI/",
        "messages are files in this folder, and a full disk leaves half of one",
        "messages are in memory; only what ranks print is in this folder, and only with pRUN",
    ),
    Difference(
        "pRUN",
        "ends an earlier run of the same folder and deletes PythonMPI/; returns 0 also where a rank failed",
        "ends nothing; raises where a rank failed",
    ),
)

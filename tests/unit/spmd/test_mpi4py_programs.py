"""Programs of the usual kinds for mpi4py give the same with ours, by changing the import line alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from test_two_nodes import Nodes

PROGRAMS = Path(__file__).with_name("programs")
MPIEXEC = Path(sys.executable).parent / "mpiexec"
NAMES = (
    "fft_transpose", "histogram", "jacobi", "kmeans", "life", "master_worker", "matrix_product", "monte_carlo",
    "odd_even_sort", "parameter_server", "pi", "pipeline", "ring", "sample_sort", "token_ring", "tree_reduction",
)  # fmt: skip
"""Programs of which rank 0 alone prints; other files of the folder are those of other tests."""
SIZES = (1, 2, 3, 4, 8)
IMPORT, OURS = "from mpi4py import MPI\n", "from slurm_share.spmd import MPI\n"
TOGETHER = """\
import os, runpy, sys
is_first = os.environ.get("LLSUB_RANK", os.environ.get("PMI_RANK", "0")) == "0"
for name in sys.argv[1:]:
    if is_first:
        print("#", name, flush=True)
    runpy.run_path(os.path.join(sys.path[0], name + ".py"), run_name="__main__")
"""
"""Runs one program after the other on the same ranks; rank 0 alone prints."""
NAME_LINE = re.compile(r"^# .*\n", re.MULTILINE)


def environ(**more: str) -> dict[str, str]:
    """Return an environment without variables of another run, with one thread per rank, in which waiting MPI yields."""
    unwanted = ("PMI", "OMPI", "MPI", "HYDRA", "SLURM", "LLSUB", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return {**kept, **threads, "MPIR_CVAR_POLLS_BEFORE_YIELD": "1", **more}


def ours(folder: Path) -> Path:
    """Write all programs with our import line; nothing else is changed."""
    for name in NAMES:
        text = (PROGRAMS / f"{name}.py").read_text()
        assert text.count(IMPORT) == text.count("mpi4py") == 1, name
        (folder / f"{name}.py").write_text(text.replace(IMPORT, OURS))
    return folder


def output(argv: list[str], folder: Path) -> str:
    """Return what the ranks print. It fails after an error, and after a line in standard error."""
    done = subprocess.run(argv, cwd=folder, env=environ(), capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def on_ours(folder: Path, size: int, name: str, *words: str) -> str:
    return output([sys.executable, "-m", "slurm_share.spmd", "-n", str(size), f"{name}.py", *words], folder)


@cache
def by_mpi4py(size: int) -> dict[str, str]:
    """Return what each program prints with mpi4py and MPICH, in one run of all of them."""
    pytest.importorskip("mpi4py", reason="there is no mpi4py for this machine")
    return parted(output([str(MPIEXEC), "-n", str(size), sys.executable, "-c", TOGETHER, *NAMES], PROGRAMS))


def parted(text: str) -> dict[str, str]:
    """Return the output of a run of all programs by their names."""
    return dict(zip(NAMES, NAME_LINE.split(text)[1:], strict=True))


def on_two_nodes(folder: Path, size: int, name: str) -> str:
    """Return what the ranks print on two nodes of this machine, with TCP between them."""
    nodes = Nodes(str(folder / "rendezvous"), str(folder / f"{name}.py"), size, -(-size // 2), environ())
    try:
        said = [nodes.said(rank) for rank in range(size)]
    finally:
        nodes.close()
    assert [error for _, error in said] == [""] * size
    return "".join(text for text, _ in said)


def test_there_are_fifteen_programs_of_different_kinds() -> None:
    """Their calls are those that programs use most."""
    assert len(NAMES) >= 15
    text = "".join((PROGRAMS / f"{name}.py").read_text() for name in NAMES)
    used = set(re.findall(r"\.([A-Za-z_]+)\(", text)) | set(re.findall(r"MPI\.([A-Z_]+)\b", text))
    assert {
        "send", "recv", "isend", "irecv", "ssend", "Send", "Recv", "Isend", "Irecv", "Waitall", "waitall",
        "Waitany", "Testall", "test", "Sendrecv", "Sendrecv_replace", "sendrecv", "Send_init", "Recv_init",
        "Startall", "Iprobe", "Mprobe", "mprobe", "Bcast", "Scatter", "Scatterv", "Gather", "Gatherv", "Allgather",
        "Allgatherv", "Alltoall", "Alltoallv", "Reduce", "Allreduce", "Scan", "Exscan", "Reduce_scatter",
        "Reduce_scatter_block", "bcast", "gather", "allgather", "alltoall", "reduce", "allreduce", "scan", "exscan",
        "Split", "Split_type", "Dup", "Create_group", "Create_cart", "Shift", "Sub", "Get_cart_rank", "Get_coords",
        "Wtime", "Get_processor_name", "PROC_NULL", "IN_PLACE", "ANY_SOURCE", "ANY_TAG", "MINLOC", "MAXLOC",
        "Create", "DOUBLE", "INT",
    } <= used  # fmt: skip


@pytest.mark.parametrize("size", [1, 3, *(pytest.param(size, marks=pytest.mark.weekly) for size in (2, 4))])
def test_all_programs_give_the_same_in_one_run(tmp_path: Path, size: int) -> None:
    """One after the other on the same ranks: none leaves a message or a communicator that disturbs the next."""
    (ours(tmp_path) / "together.py").write_text(TOGETHER)
    said = parted(on_ours(tmp_path, size, "together", *NAMES))
    assert said == by_mpi4py(size)


@pytest.mark.weekly
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_a_program_gives_the_same_on_every_number_of_ranks(tmp_path: Path, name: str, size: int) -> None:
    alone = output([str(MPIEXEC), "-n", str(size), sys.executable, f"{name}.py"], PROGRAMS)
    assert on_ours(ours(tmp_path), size, name) == alone == by_mpi4py(size)[name]


@pytest.mark.parametrize("size", [4])
def test_all_programs_give_the_same_on_two_nodes(tmp_path: Path, size: int) -> None:
    (ours(tmp_path) / "together.py").write_text(TOGETHER.replace("sys.argv[1:]", repr(NAMES)))
    said = parted(on_two_nodes(tmp_path, size, "together"))
    assert said == by_mpi4py(size)


@pytest.mark.weekly
@pytest.mark.parametrize("size", [2, 3, 4, 8])
@pytest.mark.parametrize("name", NAMES)
def test_a_program_gives_the_same_on_two_nodes(tmp_path: Path, name: str, size: int) -> None:
    assert on_two_nodes(ours(tmp_path), size, name) == by_mpi4py(size)[name]

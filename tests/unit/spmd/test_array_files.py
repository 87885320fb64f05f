"""Distributed arrays in .npy files: NumPy reads and writes the same, and failures of a rank."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import DTYPES, assert_is, random_map, random_shape, spread, whole_array
from hypothesis import given, settings
from hypothesis import strategies as st
from in_threads import on_ranks, run

from slurm_share.spmd import array_files
from slurm_share.spmd.array_files import load, save
from slurm_share.spmd.comm import Comm
from slurm_share.spmd.dmat import zeros
from slurm_share.spmd.errors import ArrayFileError, CollectiveMismatch, PeerEnded, UsageError
from slurm_share.spmd.rules.maps import Map

ROWS = Map((2, 1))


def names(folder: str | Path) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def test_a_plain_array_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"not ndarray; numpy\.save writes a plain one"):
        save(tmp_path / "a.npy", np.ones(3))  # type: ignore[arg-type]
    assert names(tmp_path) == []


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1), size=st.integers(1, 5), dtype=st.sampled_from(DTYPES), order=st.sampled_from("CF")
)
def test_files_hold_what_numpy_holds(seed: int, size: int, dtype: Any, order: Any) -> None:
    generator = np.random.default_rng(seed)
    ndim = int(generator.integers(1, 5))
    shape = random_shape(generator, ndim, 9)
    source, target = random_map(generator, ndim, size), random_map(generator, ndim, size)
    whole = whole_array(shape, dtype)
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder, "ours"), Path(folder, "theirs.npy")
        np.save(theirs, np.asarray(whole, order=order))

        def program(comm: Comm) -> None:
            save(ours, spread(whole, source, comm))
            assert_is(load(str(ours), target, comm), whole)
            assert_is(load(theirs, target, comm), whole)

        run(size, program)
        found = np.load(ours)
        assert found.dtype == whole.dtype
        np.testing.assert_array_equal(found, whole)
        assert names(folder) == ["ours", "theirs.npy"]


def test_the_dtype_of_the_file_is_the_one_that_holds_all_parts(tmp_path: Path) -> None:
    def program(comm: Comm) -> None:
        array = zeros(4, 3, map=ROWS, comm=comm)
        if comm.rank:
            array.local = array.local + 2j
        save(tmp_path / "a.npy", array)

    run(2, program)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), [[0] * 3] * 2 + [[2j] * 3] * 2)


def test_the_path_is_that_of_rank_0(tmp_path: Path) -> None:
    def program(comm: Comm) -> None:
        save(tmp_path / f"rank{comm.rank}.npy", zeros(4, 3, map=ROWS, comm=comm))
        assert_is(load(tmp_path / f"rank{comm.rank}.npy", ROWS, comm), np.zeros((4, 3)))

    run(2, program)
    assert names(tmp_path) == ["rank0.npy"]


def test_an_older_file_is_replaced_and_its_readers_keep_it(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(3))
    with open(path, "rb") as reader:
        run(2, lambda comm: save(path, zeros(4, 3, map=ROWS, comm=comm)))
        np.testing.assert_array_equal(np.load(reader), [0, 1, 2])
    np.testing.assert_array_equal(np.load(path), np.zeros((4, 3)))


@pytest.mark.parametrize(("step", "rank"), [("_begin", 0), ("_write_rows", 0), ("_write_rows", 1), ("_finish", 0)])
def test_where_a_rank_fails_all_raise_and_the_older_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, rank: int
) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(3))
    real = getattr(array_files, step)

    def failing(*given: Any) -> Any:
        if step != "_write_rows" or given[1].comm.rank == rank:
            raise OSError(28, os.strerror(28))
        return real(*given)

    monkeypatch.setattr(array_files, step, failing)

    def program(comm: Comm) -> str:
        with pytest.raises(ArrayFileError) as error:
            save(path, zeros(4, 3, map=ROWS, comm=comm))
        return str(error.value)

    expected = f"rank {rank} cannot write {path}: No space left on device"
    assert run(2, program) == [expected] * 2
    assert names(tmp_path) == ["a.npy"]
    np.testing.assert_array_equal(np.load(path), np.arange(3))


def test_nothing_is_left_where_a_rank_ends_while_the_file_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 has made the file, and learns in the call in which it says so that another rank has ended."""
    real = array_files._begin

    def begin(*given: Any) -> None:
        real(*given)
        assert len(names(tmp_path)) == 1
        raise PeerEnded(1, "n1", 1, None, "ended with code 1")

    monkeypatch.setattr(array_files, "_begin", begin)
    with pytest.raises(PeerEnded):
        run(1, lambda comm: save(tmp_path / "a.npy", zeros(4, 3, map=Map((1, 1)), comm=comm)))
    assert names(tmp_path) == []


@pytest.mark.parametrize("path", ["loop", "a\0b"])
def test_a_path_that_leads_nowhere_is_an_error_on_all_ranks(tmp_path: Path, path: str) -> None:
    (tmp_path / "loop").symlink_to("loop")

    def program(comm: Comm) -> None:
        with pytest.raises(ArrayFileError, match="rank 0 cannot write"):
            save(tmp_path / path, zeros(4, 3, map=ROWS, comm=comm))
        with pytest.raises(ArrayFileError, match="rank 0 cannot read"):
            load(tmp_path / path, ROWS, comm)

    run(2, program)


def test_nothing_is_left_where_a_rank_ends_while_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = array_files._write_rows

    def ending(*given: Any) -> Any:
        if given[1].comm.rank == 1:
            raise KeyError("a rank that ends")
        return real(*given)

    monkeypatch.setattr(array_files, "_write_rows", ending)
    ended: list[type] = []

    def program(comm: Comm) -> None:
        try:
            save(tmp_path / "a.npy", zeros(4, 3, map=ROWS, comm=comm))
        except BaseException as error:
            ended.append(type(error))
            raise

    with pytest.raises((KeyError, PeerEnded)):
        run(2, program)
    assert set(ended) == {KeyError, PeerEnded}
    assert names(tmp_path) == []


def test_rows_and_the_name_are_on_disk_before_save_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, synced = os.fsync, []

    def noting(file: int) -> None:
        synced.append(Path(f"/proc/self/fd/{file}").readlink())
        real(file)

    monkeypatch.setattr(os, "fsync", noting)
    run(3, lambda comm: save(tmp_path / "a.npy", zeros(4, 3, map=Map((3, 1)), comm=comm)))
    *parts, last = synced
    assert last == tmp_path
    assert len(parts) == 4, "the header, and the rows of three ranks"
    assert {one.suffix for one in parts} == {".part"}


@on_ranks(2)
def test_paths_that_cannot_be_written_are_named(comm: Comm, tmp_path: Path) -> None:
    array = zeros(4, 3, map=ROWS, comm=comm)
    with pytest.raises(ArrayFileError, match=r"rank 0 cannot write .*/missing/a.npy: No such file or directory"):
        save(tmp_path / "missing" / "a.npy", array)
    with pytest.raises(ArrayFileError, match=f"cannot write {tmp_path}: it is a directory"):
        save(tmp_path, array)


def test_what_is_no_ordinary_file_is_not_replaced_and_a_link_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "a.npy")

    def program(comm: Comm) -> None:
        array = zeros(4, 3, map=ROWS, comm=comm)
        with pytest.raises(ArrayFileError, match="it is no regular file"):
            save(tmp_path / "pipe", array)
        save(tmp_path / "link", array)
        save(tmp_path / "link", array + 1)

    run(2, program)
    assert names(tmp_path) == ["a.npy", "link", "pipe"]
    assert (tmp_path / "link").is_symlink()
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.ones((4, 3)))


def broken(path: Path, kind: str) -> None:
    """Write a file that is not a complete array of numbers."""
    np.save(path, whole_array((6, 5), "f8"))
    data = path.read_bytes()
    if kind == "short":
        path.write_bytes(data[:-1])
    elif kind == "other":
        path.write_bytes(b"P5 640 480 255\n" + data)
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "header":
        path.write_bytes(data.replace(b"'descr'", b"'desc',"))
    elif kind == "long":
        path.write_bytes(b"\x93NUMPY\x02\x00\xff\xff\xff\x7f{")
    elif kind == "objects":
        np.save(path, np.array([None, 1]), allow_pickle=True)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("missing", "No such file or directory"),
        ("short", r"it has 367 bytes, and an array of shape \(6, 5\) of float64 needs 368"),
        ("other", "it is no .npy file"),
        ("empty", "it is no .npy file"),
        ("header", "no header of an array"),
        ("long", "its header is 2147483647 bytes long"),
        ("objects", "holds Python objects"),
    ],
)
def test_files_that_cannot_be_read_are_an_error_on_all_ranks(tmp_path: Path, kind: str, reason: str) -> None:
    path = tmp_path / "a.npy"
    if kind != "missing":
        broken(path, kind)

    def program(comm: Comm) -> None:
        with pytest.raises(ArrayFileError, match=f"rank 0 cannot read .*a.npy: .*{reason}"):
            load(path, ROWS, comm)

    run(2, program)


def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((4, 3)))
    real = array_files._read_part

    def shortened(name: str, header: Any, map: Map, rank: int) -> Any:
        os.truncate(name, 150)
        return real(name, header, map, rank)

    monkeypatch.setattr(array_files, "_read_part", shortened)

    def program(comm: Comm) -> None:
        with pytest.raises(ArrayFileError, match=r"cannot read .*a.npy: it ended while it was read"):
            load(path, ROWS, comm)

    run(2, program)


def test_a_map_of_another_number_of_dimensions_or_ranks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(4))

    def program(comm: Comm) -> None:
        with pytest.raises(UsageError, match="a map of 2 dimensions cannot distribute an array of 1"):
            load(path, ROWS, comm)
        with pytest.raises(UsageError, match="names rank 2, and the run has 2"):
            load(path, Map((3,)), comm)
        with pytest.raises(CollectiveMismatch):
            save(path, zeros(4, 4, map=Map((2, 1), "c" if comm.rank else "b"), comm=comm))
        with pytest.raises(CollectiveMismatch):
            load(path, Map((2,), "c" if comm.rank else "b"), comm)

    run(2, program)
    np.testing.assert_array_equal(np.load(path), np.zeros(4))


@on_ranks(2)
def test_a_header_longer_than_64_kib_is_written_and_read(comm: Comm, tmp_path: Path) -> None:
    dtype = np.dtype([(f"field{number:05}", "u1") for number in range(4000)])
    whole = np.ones((3,), dtype)
    path = tmp_path / "a.npy"
    save(path, spread(whole, Map((2,)), comm))
    assert_is(load(path, Map((2,), "c"), comm), whole)


@pytest.mark.filterwarnings("ignore:Stored array in format")
@pytest.mark.parametrize("name", ["ascii", "größe", "温度"])
def test_names_of_fields_in_any_script_are_written_and_read(tmp_path: Path, name: str) -> None:
    whole = whole_array((4, 3), np.dtype([(name, "<f8")]))
    np.save(tmp_path / "theirs.npy", whole)

    def program(comm: Comm) -> None:
        array = load(tmp_path / "theirs.npy", ROWS, comm)
        assert_is(array, whole)
        save(tmp_path / "ours.npy", array)

    run(2, program)
    np.testing.assert_array_equal(np.load(tmp_path / "ours.npy"), whole)

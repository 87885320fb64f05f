"""The file of a launcher's rates: access rights, and files that are ignored."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec
import pytest

from slurm_share.packing.speed_records import NodeRates, Rate, TaskRate
from slurm_share.triples import rates_file
from slurm_share.triples.rates_file import MOST_BYTES, MOST_FILES, RatesFile, read_rates

UID = os.getuid()
ME = frozenset({UID})
RATES = NodeRates(
    job="12",
    run="train.sh",
    unix_s=1.5,
    source="progress",
    tasks=(TaskRate(task=0, pid=77, rate=Rate(per_s=2.0, error_per_s=0.1, windows=3, source="progress"), units=9.0),),
)


def folder(tmp: Path) -> Path:
    return tmp / f"slurm-share-{UID}" / "rates"


@pytest.fixture
def written(tmp_path: Path) -> RatesFile:
    """A file of a launcher that lives: this process."""
    file = RatesFile(tmp_path, "12")
    file.write(RATES)
    return file


def test_what_is_written_is_read_until_it_is_removed(tmp_path: Path, written: RatesFile) -> None:
    assert read_rates(tmp_path, ME) == {UID: (RATES,)}
    later = msgspec.structs.replace(RATES, unix_s=6.5)
    written.write(later)
    assert read_rates(tmp_path, ME) == {UID: (later,)}
    [path] = folder(tmp_path).iterdir()
    assert path.name == f"12.{os.getpid()}"
    assert path.stat().st_mode & 0o077 == 0
    written.remove()
    written.remove()
    assert list(tmp_path.iterdir()) == []  # nothing of ours is left where administrators have installed nothing
    assert read_rates(tmp_path, ME) == {}


def test_several_launchers_of_a_user_are_all_there(tmp_path: Path, written: RatesFile) -> None:
    other = RatesFile(tmp_path, "13/../x")
    other.write(msgspec.structs.replace(RATES, job="13"))
    assert {one.job for one in read_rates(tmp_path, ME)[UID]} == {"12", "13"}
    other.remove()


def put(tmp_path: Path, data: bytes) -> int:
    """A file in a launcher's place with a lock on it; its descriptor."""
    path = folder(tmp_path) / "hostile.1"
    path.write_bytes(data)
    path.chmod(0o600)
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"job":7,"unix_s":1.0}',
        b'{"job":"12","unix_s":"now"}',
        b'{"job":"12","unix_s":1.0,"tasks":[{"task":"x","pid":1}]}',
        b'{"job":"12","unix_s":1.0,"source":"guess"}',
        b'{"job":"12","unix_s":1.0,"version":2}',
        b'{"job":"12","unix_s":1.0,"tasks":' + b"[" * 100000,
        b'{"job":"12","unix_s":1.0,"run":"' + b"x" * MOST_BYTES + b'"}',
    ],
)
def test_wrong_content_is_passed_over(tmp_path: Path, written: RatesFile, data: bytes) -> None:
    fd = put(tmp_path, data)
    assert read_rates(tmp_path, ME) == {UID: (RATES,)}
    os.close(fd)


def test_right_content_of_that_kind_would_have_been_read(tmp_path: Path, written: RatesFile) -> None:
    fd = put(tmp_path, msgspec.json.encode(RATES))
    assert read_rates(tmp_path, ME) == {UID: (RATES, RATES)}
    os.fchmod(fd, 0o666)
    assert read_rates(tmp_path, ME) == {UID: (RATES,)}
    os.close(fd)


def test_links_fifos_and_folders_are_passed_over(tmp_path: Path, written: RatesFile) -> None:
    [real] = folder(tmp_path).iterdir()
    (folder(tmp_path) / "link").symlink_to(real)
    os.mkfifo(folder(tmp_path) / "fifo")
    (folder(tmp_path) / "folder").mkdir()
    assert read_rates(tmp_path, ME) == {UID: (RATES,)}


def test_folder_that_is_a_link_is_neither_read_nor_written(tmp_path: Path, written: RatesFile) -> None:
    own = tmp_path / f"slurm-share-{UID}"
    own.rename(tmp_path / "elsewhere")
    own.symlink_to(tmp_path / "elsewhere")
    assert read_rates(tmp_path, ME) == {}
    RatesFile(tmp_path, "14").write(RATES)
    assert len(list((tmp_path / "elsewhere" / "rates").iterdir())) == 1


def test_folder_that_others_may_write_is_not_written(tmp_path: Path) -> None:
    own = tmp_path / f"slurm-share-{UID}"
    own.mkdir()
    own.chmod(0o777)
    file = RatesFile(tmp_path, "14")
    file.write(RATES)
    assert list(own.iterdir()) == []
    assert read_rates(tmp_path, ME) == {UID: (RATES,)}
    file.remove()
    assert list(tmp_path.iterdir()) == [own]


def test_rates_in_both_of_a_users_folders_are_read(tmp_path: Path, written: RatesFile) -> None:
    given = tmp_path / "given"
    given.mkdir(mode=0o700)
    file = RatesFile(tmp_path, "13", given)
    file.write(msgspec.structs.replace(RATES, job="13"))
    found = read_rates(tmp_path, ME, lambda uid: given)
    assert sorted(one.job for one in found[UID]) == ["12", "13"]


@pytest.mark.skipif(UID != 0, reason="NOT TESTED: only root can give files away")
def test_folder_and_file_of_another_user_are_passed_over(tmp_path: Path, written: RatesFile) -> None:
    [real] = folder(tmp_path).iterdir()
    os.chown(real, 12345, 12345)
    assert read_rates(tmp_path, ME) == {}
    os.chown(real, 0, 0)
    assert read_rates(tmp_path, ME) == {UID: (RATES,)}
    os.chown(folder(tmp_path), 12345, 12345)
    assert read_rates(tmp_path, ME) == {}
    assert read_rates(tmp_path, frozenset({12345})) == {}


def test_disk_that_takes_nothing_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RatesFile(tmp_path, "12")
    monkeypatch.setattr(rates_file.os, "write", lambda fd, data: 0)
    file.write(RATES)
    assert list(folder(tmp_path).iterdir()) == []
    monkeypatch.undo()
    file.write(RATES)
    assert read_rates(tmp_path, ME) == {UID: (RATES,)}
    file.remove()
    RatesFile(tmp_path / "none", "12").write(RATES)
    assert read_rates(tmp_path / "none", ME) == {}


def test_file_larger_than_readers_take_is_not_written(tmp_path: Path) -> None:
    file = RatesFile(tmp_path, "12")
    file.write(msgspec.structs.replace(RATES, run="x" * MOST_BYTES))
    assert not folder(tmp_path).exists()


def test_launcher_is_found_among_the_files_of_many_dead_ones(tmp_path: Path, written: RatesFile) -> None:
    for number in range(MOST_FILES * 3):
        (folder(tmp_path) / f"11.{number}").write_bytes(msgspec.json.encode(RATES))
    assert read_rates(tmp_path, ME) == {UID: (RATES,)}
    alive = [RatesFile(tmp_path, f"{number}") for number in range(MOST_FILES + 2)]
    for file in alive:
        file.write(RATES)
    assert len(read_rates(tmp_path, ME)[UID]) == MOST_FILES


def test_folder_that_another_launcher_removed_is_made_anew(tmp_path: Path) -> None:
    file = RatesFile(tmp_path, "12")
    file.write(RATES)
    (folder(tmp_path) / f"12.{os.getpid()}").unlink()
    folder(tmp_path).rmdir()
    file.write(RATES)
    assert read_rates(tmp_path, ME) == {}
    file.write(RATES)
    assert read_rates(tmp_path, ME) == {UID: (RATES,)}
    file.remove()

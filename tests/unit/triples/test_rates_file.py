"""The file of a launcher's rates; that it belongs to a living launcher of its user is tested in test_live.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from slurm_share.core.live import LiveFolder
from slurm_share.packing.speed_records import NodeRates, Rate, TaskRate
from slurm_share.triples.rates_file import MOST_BYTES, RATES, read_rates, write_rates

UID = os.getuid()
ME = frozenset({UID})
FIGURES = NodeRates(
    job="12",
    run="train.sh",
    unix_s=1.5,
    source="progress",
    tasks=(TaskRate(task=0, pid=77, rate=Rate(per_s=2.0, error_per_s=0.1, windows=3, source="progress"), units=9.0),),
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[LiveFolder]:
    made = LiveFolder(tmp_path, "12")
    yield made
    made.close()


def test_what_is_written_is_read_until_it_is_removed(tmp_path: Path, folder: LiveFolder) -> None:
    write_rates(folder, FIGURES)
    assert read_rates(tmp_path, ME) == {UID: (FIGURES,)}
    later = msgspec.structs.replace(FIGURES, unix_s=6.5)
    write_rates(folder, later)
    assert read_rates(tmp_path, ME) == {UID: (later,)}
    assert [path.name for path in folder.path.iterdir()] == [RATES]
    write_rates(folder, None)
    write_rates(folder, None)
    assert read_rates(tmp_path, ME) == {}


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
def test_wrong_content_is_passed_over(tmp_path: Path, folder: LiveFolder, data: bytes) -> None:
    (folder.path / RATES).write_bytes(data)
    assert read_rates(tmp_path, ME) == {}


def test_disk_that_takes_nothing_is_no_error(
    tmp_path: Path, folder: LiveFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: 0)
        write_rates(folder, FIGURES)
    assert list(folder.path.iterdir()) == []
    write_rates(None, FIGURES)


def test_file_larger_than_readers_take_is_not_written(folder: LiveFolder) -> None:
    write_rates(folder, msgspec.structs.replace(FIGURES, run="x" * MOST_BYTES))
    assert list(folder.path.iterdir()) == []

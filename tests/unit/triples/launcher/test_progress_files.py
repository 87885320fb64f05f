"""The files in which tasks write how much they have done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_share.core.errors import StateError
from slurm_share.core.live import LiveFolder
from slurm_share.triples.launcher.rates import FRESH_S, ProgressFiles, parse_number


@pytest.fixture
def files(tmp_path: Path) -> Iterator[ProgressFiles]:
    """Those of a launcher with its folder."""
    live = LiveFolder(tmp_path, "12")
    made = ProgressFiles(live)
    yield made
    made.close()
    live.close()


@pytest.mark.parametrize(
    ("data", "number"),
    [
        (b"120\n", 120),
        (b"120", 120),
        (b"1\n2\n3\n", 3),
        (b"12\n34\n5", 34),
        (b"7.5e3            \n", 7500),
        (b"loss 0.1 step 9\n", 9),
        (b"", None),
        (b"\n", None),
        (b"nan\n", None),  # other words: test_log_counts.py
        (b"\x00\xff\n", None),
    ],
)
def test_number_of_the_last_whole_line(data: bytes, number: float | None) -> None:
    assert parse_number(data) == number


def test_each_write_is_seen_whoever_makes_it_and_however(files: ProgressFiles) -> None:
    """Also where the folder changes twice within one tick of the file system's clock."""
    file = files.folder / "3"
    assert files.read(3) is None
    for number in range(50):
        file.write_text(f"{number}\n")
        found = files.read(3)
        assert found is not None
        assert found[0] == number
        files.remove(3, time.monotonic())
        assert files.read(3) is None
    (files.folder / "new").write_text("60\n")
    (files.folder / "new").rename(file)
    found = files.read(3)
    assert found is not None
    assert found == (60, file.stat().st_mtime)


def test_a_file_left_behind_is_removed_unless_the_folder_was_empty_just_now(files: ProgressFiles) -> None:
    file = files.folder / "3"
    assert files.read(3) is None
    file.write_text("1\n")
    files.remove(3, 0.0)
    assert file.exists()
    files.remove(3, time.monotonic() + FRESH_S)
    assert not file.exists()


def test_appended_numbers_are_read_from_the_end(files: ProgressFiles) -> None:
    (files.folder / "0").write_text("".join(f"{number}\n" for number in range(10000)))
    found = files.read(0)
    assert found is not None
    assert found[0] == 9999


def test_what_is_no_folder_in_its_place_is_a_sentence(tmp_path: Path) -> None:
    live = LiveFolder(tmp_path, "12")
    (live.path / "progress").symlink_to(tmp_path)
    with pytest.raises(StateError, match="is no folder, or a link"):
        ProgressFiles(live)
    live.close()

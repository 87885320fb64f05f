"""The files in which tasks write how much they have done."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_share.core.errors import StateError
from slurm_share.triples.launcher.progress_files import ProgressFiles, parse_number


@pytest.fixture
def files(tmp_path: Path) -> Iterator[ProgressFiles]:
    """Those of a launcher with its folder."""
    made = ProgressFiles(tmp_path, "12")
    yield made
    made.close()


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
        files.remove(3)
        assert files.read(3) is None
    (files.folder / "new").write_text("60\n")
    (files.folder / "new").rename(file)
    found = files.read(3)
    assert found is not None
    assert found == (60, file.stat().st_mtime)


def test_appended_numbers_are_read_from_the_end(files: ProgressFiles) -> None:
    (files.folder / "0").write_text("".join(f"{number}\n" for number in range(10000)))
    found = files.read(0)
    assert found is not None
    assert found[0] == 9999


def test_folder_is_removed_at_the_end_with_what_is_in_it(tmp_path: Path, files: ProgressFiles) -> None:
    (files.folder / "0").write_text("5")
    assert files.folder.stat().st_mode & 0o077 == 0
    files.close()
    assert list(tmp_path.iterdir()) == []


def test_folders_of_launchers_that_live_stay(tmp_path: Path, files: ProgressFiles) -> None:
    (files.folder / "0").write_text("5")
    left = tmp_path / f"slurm-share-{os.getuid()}" / "progress" / "left.1"
    left.mkdir()
    (left / "0").write_text("6")
    other = ProgressFiles(tmp_path, "13")
    assert files.read(0) is not None
    assert not left.exists()
    other.close()


def test_folder_that_root_made_is_used_and_stays(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir(mode=0o700)
    made = ProgressFiles(tmp_path, "12", given)
    assert made.folder.parent == given / "progress"
    made.close()
    assert list(tmp_path.iterdir()) == [given]


def test_folder_for_temporary_files_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="cannot be used"):
        ProgressFiles(tmp_path / "none", "12")


def test_long_name_of_a_job_is_cut(tmp_path: Path) -> None:
    made = ProgressFiles(tmp_path, "local-" + "x/" * 200)
    assert len(made.folder.name) <= 128
    made.close()


LAUNCHERS = """
import sys
from pathlib import Path
from slurm_share.triples.launcher.progress_files import ProgressFiles
for number in range(200):
    files = ProgressFiles(Path(sys.argv[1]), f"12-{number}")
    (files.folder / "0").write_text("1\\n")
    assert files.read(0) is not None
    files.close()
"""


def test_launchers_that_start_and_end_at_once_leave_nothing(tmp_path: Path) -> None:
    """Each removes the empty folders at its end, while others are making theirs in them."""
    running = [subprocess.Popen([sys.executable, "-c", LAUNCHERS, str(tmp_path)]) for _ in range(4)]
    assert [process.wait(60) for process in running] == [0, 0, 0, 0]
    assert list(tmp_path.iterdir()) == []

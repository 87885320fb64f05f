"""Which paths are one file, and which output files of a job would overwrite a file that is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_share.core.errors import UsageError
from slurm_share.triples import overwriting


def test_paths_are_one_file_through_links_and_before_they_exist(tmp_path: Path) -> None:
    (tmp_path / "b").touch()
    (tmp_path / "soft").symlink_to("b")
    (tmp_path / "hard").hardlink_to(tmp_path / "b")
    (tmp_path / "real").mkdir()
    (tmp_path / "folder").symlink_to("real")
    same = overwriting.Identities()
    for name in ("b", "soft", "hard", "./real/../b"):
        assert same.of(f"{tmp_path}/{name}") == same.of(f"{tmp_path}/b")
    assert same.of(f"{tmp_path}/folder/new") == same.of(f"{tmp_path}/real/new") != same.of(f"{tmp_path}/new")
    assert same.of("no\0file") != same.of(f"{tmp_path}/b")


def test_the_output_of_a_job_overwrites_no_file_that_is_read(tmp_path: Path) -> None:
    (tmp_path / "job.sh").touch()
    read = [("the script", f"{tmp_path}/job.sh")]
    overwriting.check_job_files([("-o", f"{tmp_path}/new")], read)
    with pytest.raises(UsageError, match=r"-o \S+ would overwrite the script"):
        overwriting.check_job_files([("-o", f"{tmp_path}/./job.sh")], read)
    with pytest.raises(UsageError, match=r"--error .* is a folder"):
        overwriting.check_job_files([("--error", str(tmp_path))], read)

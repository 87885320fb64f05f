"""Files with records of use: names, whole replacement, and what a reader refuses."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from slurm_share.core.errors import StateError
from slurm_share.core.records import JobStart
from slurm_share.usage import files
from slurm_share.usage.records import VERSION, GpuUse, JobUse, UseSeries


def use(job: int, restarts: int | None = None) -> JobUse:
    return JobUse(job=job, restarts=restarts, uid=1000, node="n1", gpus=(GpuUse(uuid="GPU-a", memory_peak_mib=7),))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    series = UseSeries(job=4711, uid=1000, node="n1", every_s=5.0, at=[1.0], memory_mib=[None])
    assert files.write(tmp_path, use(4711, 2)).name == "use-4711.2.json"
    assert files.write(tmp_path, series).name == "series-4711.json"
    assert files.read(tmp_path / "use-4711.2.json", JobUse) == use(4711, 2)
    assert files.read(tmp_path / files.series_name(JobStart(4711)), UseSeries) == series
    assert (tmp_path / "use-4711.2.json").stat().st_mode & 0o777 == 0o600


def test_a_folder_is_read_by_job_and_restart(tmp_path: Path) -> None:
    for one in (use(12), use(9, 1), use(9)):
        files.write(tmp_path, one)
    (tmp_path / "use-x.json").write_text("{}")
    (tmp_path / "use-3.json").write_text("{")
    found, problems = files.read_folder(tmp_path, JobUse)
    assert [(one.job, one.restarts) for one in found] == [(9, None), (9, 1), (12, None)]
    assert len(problems) == 1
    assert "use-3.json: is damaged" in problems[0]
    assert files.read_folder(tmp_path, JobUse, jobs=[12])[0] == [use(12)]
    assert files.read_folder(tmp_path / "none", JobUse) == ([], [])


def test_a_newer_version_is_refused_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "use-1.json"
    file.write_text(f'{{"version": {VERSION + 1}, "job": "new"}}')
    with pytest.raises(StateError, match=rf"a newer slurm-share wrote this \(version {VERSION + 1}"):
        files.read(file, JobUse)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"job": -1, "uid": 0, "node": "n"}', '{"version": "x"}', "\xff", "[" * 9999]
)
def test_a_damaged_file_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "use-1.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(StateError, match=r"use-1\.json: is damaged"):
        files.read(tmp_path / "use-1.json", JobUse)


def test_a_file_of_another_user_or_a_fifo_is_none(tmp_path: Path) -> None:
    written = files.write(tmp_path, use(1))
    assert files.read(written, JobUse, uid=os.getuid() + 1) is None
    assert files.read(tmp_path / "use-2.json", JobUse) is None
    os.mkfifo(tmp_path / "use-3.json")
    assert files.read(tmp_path / "use-3.json", JobUse) is None


def test_old_records_and_the_oldest_of_too_many_go(tmp_path):
    now = time.time()
    for number in range(400):
        (tmp_path / f"{number}.json").write_bytes(b"x" * 100)
        os.utime(tmp_path / f"{number}.json", (now - number, now - number))
    os.utime(tmp_path / "0.json", (now - 31 * 86400,) * 2)
    files.prune(tmp_path, days=30, mib=1)
    left = sorted(int(one.stem) for one in tmp_path.iterdir())
    assert left == list(range(1, 257))  # a file takes a block of 4 KiB
    files.prune(tmp_path / "none", days=30, mib=1)

"""Surveys in a file."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path

import pytest

from slurm_share.core import append_file
from slurm_share.core.errors import StateError
from slurm_share.load import recording, snapshot
from slurm_share.load.snapshot import Survey


def survey(taken=1.0):
    return Survey(taken=taken, user="alice", source="srun", nodes=())


def read(path):
    """(times of the surveys, lines that are none)."""
    found = recording.Recording(path)
    try:
        surveys = [found.at(place) for place in found.places()]
        return [one.taken for one in surveys], found.skipped
    finally:
        found.close()


@pytest.fixture(params=["a.jsonl", "a.jsonl.gz"])
def path(request, tmp_path):
    return tmp_path / request.param


def write(path, *taken):
    writer = recording.RecordingWriter(path)
    for one in taken:
        writer.write(survey(one))
    writer.close()


def test_what_was_written_is_read(path):
    write(path, 1.0, 2.0)
    write(path, 3.0)
    assert read(path) == ([1.0, 2.0, 3.0], 0)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_survey_that_broke_off_is_skipped_and_counted(path):
    write(path, 1.0, 2.0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert read(path) == ([1.0], 1)


def test_what_broke_off_does_not_take_later_surveys_with_it(path):
    write(path, 1.0, 2.0)
    path.write_bytes(path.read_bytes()[:-20])
    write(path, 3.0)
    path.write_bytes(path.read_bytes()[:-1])
    write(path, 4.0, 5.0)
    times, skipped = read(path)
    assert times[0] == 1.0
    assert times[-2:] == [4.0, 5.0]
    assert skipped >= 1


def test_members_that_another_program_wrote_are_read(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    data = b"".join(snapshot.render(survey(taken)) + b"\n" for taken in (1.0, 2.0))
    path.write_bytes(gzip.compress(data, mtime=7) + gzip.compress(data, mtime=8))
    write(path, 3.0)
    assert read(path) == ([1.0, 2.0, 1.0, 2.0, 3.0], 0)
    found = recording.Recording(path)
    places = found.places()
    assert [found.at(places[at]).taken for at in (4, 3, 0, 1, 4)] == [3.0, 2.0, 1.0, 2.0, 3.0]
    found.close()


def test_foreign_lines_are_skipped_and_counted(path):
    newer = snapshot.render(Survey(schema=snapshot.SCHEMA + 1, taken=9.0, user="a", source="srun", nodes=()))
    lines = [snapshot.render(survey(1.0)), b"hello", b"", b"\xff\xfe", b"[" * 5000, newer, snapshot.render(survey(2.0))]
    data = b"\n".join(lines) + b"\n"
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    assert read(path) == ([1.0, 2.0], 4)


def test_a_file_that_is_not_there_or_not_to_be_written_is_a_sentence(tmp_path):
    with pytest.raises(StateError, match=r"none.jsonl: cannot be read: No such file"):
        recording.Recording(tmp_path / "none.jsonl")
    os.mkfifo(tmp_path / "pipe")
    for none in (Path("/dev/zero"), tmp_path / "pipe", tmp_path):
        with pytest.raises(StateError, match="is not a regular file, and so no recording"):
            recording.Recording(none)
    with pytest.raises(StateError, match="cannot be written: Is a directory"):
        recording.RecordingWriter(tmp_path)
    garbage = tmp_path / "a.gz"
    garbage.write_bytes(b"this is not gzip")
    assert read(garbage) == ([], 1)


def test_a_device_is_no_recording():
    with pytest.raises(StateError, match=r"/dev/full: cannot be written: it is not a regular file"):
        recording.RecordingWriter(recording.Path("/dev/full"))


def test_a_full_disk_takes_nobody_elses_survey_back(path, monkeypatch):
    """Two writers: what one takes back is what it has written, and not what the other one added meanwhile."""
    one, other = recording.RecordingWriter(path), recording.RecordingWriter(path)
    one.write(survey(1.0))
    real, step_argv = os.write, threading.Thread(target=other.write, args=(survey(2.0),))

    def full(fd, data):
        if threading.current_thread() is step_argv:
            return real(fd, data)
        real(fd, data[:5])
        step_argv.start()
        step_argv.join(0.2)  # time enough to write, were it let
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(append_file.os, "write", full)
    with pytest.raises(StateError, match="No space left on device"):
        one.write(survey(3.0))
    step_argv.join()
    one.close()
    other.close()
    assert read(path) == ([1.0, 2.0], 0)

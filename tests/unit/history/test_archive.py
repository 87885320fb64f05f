"""The archive's files: appended once, whole or not at all, and read whatever happened to them."""

from __future__ import annotations

import errno
import gzip
import multiprocessing
import os

import pytest
from msgspec.structs import replace

from slurm_share.core.errors import StateError
from slurm_share.core.process import Deadline
from slurm_share.history import archive, records
from slurm_share.history.archive import Archive
from slurm_share.history.records import Sample

T = 1795195800
DAY = "2026-11-20.tsv"


def sample(user="alice", node="n1", time=T):
    return Sample(time=time, node=node, user=user, jobs=1, cpus=40, cpu_load=1.0)


def append(folder, *samples):
    return archive.append(folder, samples, "", Deadline.after(300))


def read(folder):
    reader = Archive(folder)
    found = list(reader.read(0, 4 * 10**9))
    return found, reader.skipped


def test_twice_in_the_same_quarter_of_an_hour_adds_nothing_twice(tmp_path):
    first = append(tmp_path, sample(), sample("bob"))
    assert (first.added, first.there) == (2, 0)
    again = append(tmp_path, sample(), sample("bob"), sample("carol"))
    assert (again.added, again.there) == (1, 2)
    assert append(tmp_path, sample(time=T + 900)).added == 1
    assert [(one.time, one.user) for one in read(tmp_path)[0]] == [
        (T, "alice"), (T, "bob"), (T, "carol"), (T + 900, "alice"),
    ]  # fmt: skip
    assert (tmp_path / DAY).read_text().count(records.MAGIC) == 1
    assert (tmp_path / DAY).stat().st_mode & 0o777 == 0o640


def test_half_a_line_is_skipped_and_counted_and_cut_off_by_the_next_writer(tmp_path):
    append(tmp_path, sample(), sample("bob"))
    file = tmp_path / DAY
    file.write_bytes(file.read_bytes()[:-20])
    assert [one.user for one in read(tmp_path)[0]] == ["alice"]
    assert read(tmp_path)[1] == 1
    done = append(tmp_path, sample(), sample("bob"))
    assert (done.added, done.there, done.torn_bytes > 0) == (1, 1, True)
    assert ([one.user for one in read(tmp_path)[0]], read(tmp_path)[1]) == (["alice", "bob"], 0)


def test_a_file_of_which_not_even_the_first_line_is_whole_begins_anew(tmp_path):
    (tmp_path / DAY).write_text("# slurm-sh")
    append(tmp_path, sample())
    assert (tmp_path / DAY).read_text() == records.HEAD + records.render(sample())


def test_lines_that_somebody_else_wrote_are_skipped_and_counted(tmp_path):
    append(tmp_path, sample())
    with open(tmp_path / DAY, "ab") as file:
        file.write(b"\0" * 4096 + b"\n" + b"\xff\xfe\n" + b"hello\n")
    append(tmp_path, sample("bob"))
    found, skipped = read(tmp_path)
    assert ([one.user for one in found], skipped) == (["alice", "bob"], 3)


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    append(tmp_path, sample())
    before = (tmp_path / DAY).read_bytes()
    real, calls = os.write, []

    def write(fd, data):
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, bytes(data)[:30])

    monkeypatch.setattr(archive.os, "write", write)
    with pytest.raises(StateError, match=r"No space left on device; nothing was added"):
        append(tmp_path, sample("bob"))
    assert (tmp_path / DAY).read_bytes() == before


def _add(folder, node):
    archive.append(folder, [sample(node=node), sample(node="all")], "", Deadline.after(300))


def test_archivers_at_the_same_time_lose_nothing_and_write_nothing_twice(tmp_path):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_add, args=(tmp_path, f"n{number}")) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found, skipped = read(tmp_path)
    assert sorted(one.node for one in found) == ["all", *(f"n{number}" for number in range(8))]
    assert skipped == 0


def test_a_folder_or_a_file_that_cannot_be_used_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot be made"):
        archive.prepare(tmp_path / "file", "")
    (tmp_path / DAY).symlink_to("/dev/null")
    with pytest.raises(StateError, match="cannot be written"):
        append(tmp_path, sample())


def test_the_folders_mode_is_the_same_under_every_umask(tmp_path):
    before = os.umask(0o077)
    try:
        archive.prepare(folder := tmp_path / "a" / "archive", "")
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o750
    folder.chmod(0o700)
    archive.prepare(folder, "")
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_file_of_a_newer_release_is_neither_read_nor_added_to(tmp_path):
    text = records.HEAD.replace(records.MAGIC, "# slurm-share archive 2") + records.render(sample())
    (tmp_path / DAY).write_text(text)
    with pytest.raises(StateError, match=r"newer slurm-share \(form 2; this one knows 1\); nothing was added"):
        append(tmp_path, sample("bob"))
    with pytest.raises(StateError, match="written by a newer slurm-share"):
        read(tmp_path)
    assert (tmp_path / DAY).read_text() == text


def test_a_pipe_in_the_place_of_a_day_is_said_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / DAY)
    with pytest.raises(StateError, match="not a file"):
        read(tmp_path)
    with pytest.raises(StateError, match="not a regular file"):
        append(tmp_path, sample())


def test_days_that_were_compressed_are_read_as_well(tmp_path):
    append(tmp_path, sample(), *(sample(f"user{number}") for number in range(2000)))
    data = (tmp_path / DAY).read_bytes()
    (tmp_path / DAY).unlink()
    with gzip.open(tmp_path / f"{DAY}.gz", "wb") as file:
        file.write(data)
    assert len(read(tmp_path)[0]) == 2001
    whole = (tmp_path / f"{DAY}.gz").read_bytes()
    (tmp_path / f"{DAY}.gz").write_bytes(whole[: len(whole) // 2])
    found, skipped = read(tmp_path)
    assert 0 < len(found) < 2001
    assert skipped >= 1


def test_only_the_days_that_are_asked_for_are_opened(tmp_path):
    for time in (T - 86400, T, T + 86400):
        append(tmp_path, sample(time=time))
    append(tmp_path, sample(time=T + 900))
    append(tmp_path, sample("bob"))
    (tmp_path / "2026-11-19.tsv").chmod(0)
    (tmp_path / "notes.txt").write_text("not ours")
    reader = Archive(tmp_path)
    assert reader.days() == ("2026-11-19", "2026-11-20", "2026-11-21")
    assert [one.time for one in reader.read(T, T + 86400)] == [T, T, T + 900]


def test_no_archive_is_a_sentence(tmp_path):
    with pytest.raises(StateError, match="slurm-share archive makes it"):
        Archive(tmp_path / "none").days()


def test_drafts_are_written_whole_and_only_for_names_of_files(tmp_path):
    folder = tmp_path / "messages"
    texts = {"alice": "Dear alice\n", "../bob": "x", ".hidden": "x", "n" * 300: "x"}
    assert archive.write_drafts(folder, texts, "2026-W47") == ("../bob", ".hidden", "n" * 300)
    assert archive.write_drafts(folder, {"alice": "Dear alice\n"}, "2026-W47") == ()
    assert [(file.name, file.read_text()) for file in folder.iterdir()] == [("alice-2026-W47.txt", "Dear alice\n")]
    assert (folder / "alice-2026-W47.txt").stat().st_mode & 0o777 == 0o600


def test_a_sample_that_is_there_is_known_by_its_own_words(tmp_path):
    odd = replace(sample(), user="a\tb")
    assert append(tmp_path, odd).added == 1
    assert append(tmp_path, odd).added == 0

"""The queue of a dynamic run: every chunk is claimed once, also after lost answers of the file system."""

import errno
import os
import threading

import pytest

from slurm_share.core.errors import StateError
from slurm_share.triples.launcher.claims import Claims

CHUNKS = tuple(range(n * 10, n * 10 + 10) for n in range(40))


def taken(claims):
    found = []
    while (chunk := claims.take()) is not None:
        found.append(chunk)
    return found


def test_every_chunk_is_taken_once_by_launchers_that_ask_at_the_same_time(tmp_path):
    found = [[] for _ in range(6)]
    barrier = threading.Barrier(6)

    def work(number):
        claims = Claims(tmp_path / "queue", f"n{number}", CHUNKS)
        barrier.wait()
        while (chunk := claims.take()) is not None:
            found[number].append(chunk)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = sorted(chunk.start for one in found for chunk in one)
    assert everything == [chunk.start for chunk in CHUNKS]


def test_a_lost_answer_does_not_lose_the_chunk(tmp_path, monkeypatch):
    """NFS: the server made the link, but its answer was lost, so the repeated request finds it."""
    link = os.link

    def link_twice(source, target):
        link(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    claims = Claims(tmp_path / "queue", "n1", CHUNKS)
    monkeypatch.setattr(os, "link", link_twice)
    assert taken(claims) == list(CHUNKS)


def test_another_launchers_chunk_is_not_taken_for_ours(tmp_path):
    first = Claims(tmp_path / "queue", "n1", CHUNKS)
    assert first.take() == CHUNKS[0]
    second = Claims(tmp_path / "queue", "n2", CHUNKS)
    assert second.take() == CHUNKS[1]


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links_gets_folders(tmp_path, monkeypatch, code):
    with_links = Claims(tmp_path / "queue", "n1", CHUNKS)
    assert with_links.take() == CHUNKS[0]

    def no_links(source, target):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", no_links)
    assert taken(Claims(tmp_path / "queue", "n2", CHUNKS)) == list(CHUNKS[1:])


def test_a_file_that_has_all_the_links_it_can_have_is_followed_by_another(tmp_path, monkeypatch):
    """ext4 allows 65,000 links."""
    link, made = os.link, []

    def few_links(source, target):
        if made.count(source) == 3:
            raise OSError(errno.EMLINK, "Too many links")
        link(source, target)
        made.append(source)

    monkeypatch.setattr(os, "link", few_links)
    assert taken(Claims(tmp_path / "queue", "n1", CHUNKS)) == list(CHUNKS)
    assert len(set(made)) > 10


def test_nodes_whose_names_differ_behind_a_dot_are_two(tmp_path):
    first, second = (Claims(tmp_path / "queue", f"gpu.rack{n}-77", CHUNKS) for n in (1, 2))
    assert (first.take(), second.take()) == CHUNKS[:2]


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="queue of tasks cannot be used"):
        Claims(tmp_path / "file" / "queue", "n1", CHUNKS)

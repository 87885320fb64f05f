"""All files or none, whenever the one who writes them is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from slurm_share.actuators import site_files
from slurm_share.conf_text import Edit
from slurm_share.errors import StateError
from slurm_share.site_journal import NAME, Change

OLD = {"slurm.conf": b"old\n", "gres.conf": b"gres\n", "plugstack.conf": None}
NEW = {"slurm.conf": b"new\n", "gres.conf": b"gres\nmore\n", "plugstack.conf": b"plug\n"}


@pytest.fixture
def folder(tmp_path):
    """A folder with the old files, one of them a link to elsewhere."""
    site = tmp_path / "etc"
    site.mkdir()
    (site / "slurm.conf").write_bytes(OLD["slurm.conf"])
    (site / "slurm.conf").chmod(0o640)
    (tmp_path / "elsewhere").write_bytes(OLD["gres.conf"])
    (site / "gres.conf").symlink_to(tmp_path / "elsewhere")
    return site


def changes(folder, old=OLD, new=NEW, date="d"):
    """From the old files to the new ones."""
    return tuple(
        Change(
            str(folder / name),
            old[name],
            new[name],
            f"{folder / name}.slurm-share-{date}" if old[name] is not None else None,
            (Edit(str(folder / name), "new"),),
        )
        for name in old
    )


def back(folder):
    """The other way round."""
    return tuple(Change(str(folder / name), NEW[name], OLD[name]) for name in OLD)


def content(folder):
    """Every file in it."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def state(folder):
    """The site's files alone."""
    return {name: (folder / name).read_bytes() if (folder / name).exists() else None for name in OLD}


def killed_at(step, work):
    """Do the work in a process that is killed before its `step`-th call that changes a disk; whether it was."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] != 0
    left = [step]
    for name in ("open", "replace", "unlink", "fsync", "fchmod"):
        real = getattr(os, name)

        def counted(*args, real=real, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        setattr(os, name, counted)
    try:
        work()
        os._exit(0)
    finally:
        os._exit(3)


def test_every_file_is_new_and_every_old_one_has_a_copy(folder):
    """Mode and links are kept; the journal knows."""
    site_files.apply(folder, changes(folder), "d")
    assert state(folder) == NEW
    assert (folder / "gres.conf").is_symlink()
    assert (folder / "slurm.conf").stat().st_mode & 0o777 == 0o640
    assert (folder / "slurm.conf.slurm-share-d").read_bytes() == b"old\n"
    assert (folder / NAME).stat().st_mode & 0o777 == 0o600
    assert site_files.read_journal(folder).state == "applied"
    assert not list(folder.glob(".*"))


def test_an_undo_leaves_nothing(folder):
    """Neither copies nor a journal."""
    before = content(folder)
    site_files.apply(folder, changes(folder), "d")
    site_files.undo(folder, site_files.read_journal(folder), back(folder))
    assert content(folder) == before
    assert (folder / "gres.conf").is_symlink()


def test_whoever_is_killed_while_he_applies_has_done_all_or_nothing(folder):
    """At every step: what comes next finds the old files or the new ones, and nothing beside them."""
    before = content(folder)
    step = 0
    while True:
        step += 1
        if not killed_at(step, lambda: site_files.apply(folder, changes(folder), "d")):
            break
        site_files.settle(folder)
        journal = site_files.read_journal(folder)
        if journal is None:
            assert content(folder) == before, step
        else:
            assert state(folder) == NEW
            site_files.undo(folder, journal, back(folder))
    assert step > 20
    assert state(folder) == NEW


def test_whoever_is_killed_while_he_undoes_has_done_all_or_nothing(folder):
    """The same the other way."""
    before = content(folder)
    step = 0
    while True:
        step += 1
        site_files.apply(folder, changes(folder), "d")
        journal = site_files.read_journal(folder)
        if not killed_at(step, lambda: site_files.undo(folder, site_files.read_journal(folder), back(folder))):
            break
        site_files.settle(folder)
        if site_files.read_journal(folder) is not None:
            assert state(folder) == NEW
            site_files.undo(folder, journal, back(folder))
        assert content(folder) == before, step
    assert step > 10
    assert content(folder) == before


def test_an_interrupted_settling_is_settled(folder):
    """Killed while it takes back what was killed."""
    before = content(folder)
    killed = 0
    for step in range(8, 60, 9):
        for second in range(1, 12, 2):
            if killed_at(step, lambda: site_files.apply(folder, changes(folder), "d")):
                killed += killed_at(second, lambda: site_files.settle(folder))
                site_files.settle(folder)
            if (journal := site_files.read_journal(folder)) is not None:
                site_files.undo(folder, journal, back(folder))
            assert content(folder) == before, (step, second)
    assert killed > 5


def test_a_further_apply_keeps_the_first_copy_and_all_lines(folder):
    """One --undo takes both back; where the second is cut short the first one stands."""
    site_files.apply(folder, changes(folder), "d")
    first = content(folder)
    more = (Change(str(folder / "slurm.conf"), b"new\n", b"newer\n", "no", (Edit("x", "newer"),)),)
    for step in range(1, 100):
        if not killed_at(step, lambda: site_files.apply(folder, more, "e")):
            break
        site_files.settle(folder)
        if (folder / "slurm.conf").read_bytes() == b"newer\n":
            whole = (Change(str(folder / "slurm.conf"), b"newer\n", b"old\n"), *back(folder)[1:])
            site_files.undo(folder, site_files.read_journal(folder), whole)
            site_files.apply(folder, changes(folder), "d")
        assert content(folder) == first, step
    journal = site_files.read_journal(folder)
    slurm = next(change for change in journal.changes if change.file.endswith("slurm.conf"))
    assert [edit.add for edit in slurm.edits] == ["new", "newer"]
    assert slurm.first == b"old\n"
    assert slurm.backup.endswith("slurm.conf.slurm-share-d")
    assert len(journal.changes) == 3


def test_a_file_that_changed_meanwhile_is_not_written(folder):
    """Neither it nor any other."""
    (folder / "slurm.conf").write_bytes(b"by hand\n")
    before = content(folder)
    with pytest.raises(StateError, match="changed by somebody else"):
        site_files.apply(folder, changes(folder), "d")
    assert content(folder) == before


def test_a_file_changed_between_a_kill_and_the_next_run_is_not_overwritten(folder):
    """It is named, with what to do."""
    step = 1
    while killed_at(step, lambda: site_files.apply(folder, changes(folder), "d")):
        if site_files.read_journal(folder) is not None:
            break
        step += 1
    (folder / "slurm.conf").write_bytes(b"by hand\n")
    with pytest.raises(StateError, match=f"remove .*{NAME}"):
        site_files.settle(folder)
    assert (folder / "slurm.conf").read_bytes() == b"by hand\n"


def test_a_file_that_cannot_be_written_takes_the_others_back(folder, monkeypatch):
    """A full disk at the last file."""
    before = content(folder)
    real = os.replace

    def full(source, target):
        if Path(target).name == "plugstack.conf":
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StateError, match="No space left"):
        site_files.apply(folder, changes(folder), "d")
    assert content(folder) == before


def test_two_at_once_are_one_too_many(folder):
    """The second is told."""
    with site_files.alone(folder), pytest.raises(StateError, match="at work"), site_files.alone(folder):
        pass


def test_a_journal_that_is_none_is_named(folder):
    """Torn, or by a newer release."""
    (folder / NAME).write_text("{")
    with pytest.raises(StateError, match="is no journal"):
        site_files.read_journal(folder)
    (folder / NAME).write_text('{"state":"applied","date":"d","changes":[],"version":2}')
    with pytest.raises(StateError, match="newer"):
        site_files.read_journal(folder)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"[" * 100_000, b"{}"])
def test_a_journal_of_any_bytes_is_a_sentence(folder, data):
    """With the way out."""
    (folder / NAME).write_bytes(data)
    with pytest.raises(StateError, match="remove it"):
        site_files.read_journal(folder)


def test_a_journal_that_others_may_have_written_is_not_believed(folder):
    """It names files that root would write."""
    site_files.apply(folder, changes(folder), "d")
    (folder / NAME).chmod(0o666)
    with pytest.raises(StateError, match="is not ours"):
        site_files.settle(folder)
    (folder / NAME).chmod(0o600)
    (folder / NAME).rename(folder / "moved")
    (folder / NAME).symlink_to("moved")
    with pytest.raises(StateError, match="cannot be read"):
        site_files.read_journal(folder)


def test_links_that_lead_in_a_circle_are_a_sentence(folder):
    """No traceback."""
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    change = Change(str(folder / "a"), None, b"x", None, ())
    with pytest.raises(StateError):
        site_files.apply(folder, (change,), "d")


def test_a_journal_that_cannot_be_finished_takes_all_back(folder, monkeypatch):
    """The last write fails when every file is new already."""
    real = site_files._write_journal

    def write(where, journal):
        if journal.state == "applied":
            raise StateError("j", "cannot be written (full)")
        real(where, journal)

    monkeypatch.setattr(site_files, "_write_journal", write)
    with pytest.raises(StateError, match="every file is as it was before"):
        site_files.apply(folder, changes(folder), "d")
    assert state(folder) == OLD

"""All files or none, whenever the one who writes them is killed."""

from __future__ import annotations

import fcntl
import os
import signal
from itertools import count
from pathlib import Path

import pytest

from slurm_share.core.errors import StateError
from slurm_share.install import files
from slurm_share.install.journal import NAME, FileChange, InstallJournal, encode
from slurm_share.slurm.conf_text import Edit

OLD = {"slurm.conf": b"old\n", "gres.conf": b"gres\n", "plugstack.conf": None}
NEW = {"slurm.conf": b"new\n", "gres.conf": b"gres\nmore\n", "plugstack.conf": b"plug\n"}


@pytest.fixture(autouse=True)
def no_disk(monkeypatch):
    """Skip the wait for a disk: a process that is killed loses nothing that it has written."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def folder(tmp_path):
    """Return a folder with the old files, one of them a link to elsewhere."""
    site = tmp_path / "etc"
    site.mkdir()
    (site / "slurm.conf").write_bytes(OLD["slurm.conf"])
    (site / "slurm.conf").chmod(0o640)
    (tmp_path / "elsewhere").write_bytes(OLD["gres.conf"])
    (site / "gres.conf").symlink_to(tmp_path / "elsewhere")
    return site


def changes(folder):
    return tuple(
        FileChange(
            str(folder / name),
            OLD[name],
            NEW[name],
            (f"{folder / name}.slurm-share-1",) if OLD[name] is not None else (),
            (Edit(str(folder / name), "new"),),
        )
        for name in OLD
    )


def known(folder):
    return {str(folder / name) for name in (*OLD, "a", "hook.sh")}


def apply(folder, *more):
    """Apply the changes, those in `more` first."""
    files.apply(folder, (*more, *changes(folder)), "d", known(folder))


def settle(folder):
    files.settle(folder, known(folder))


def journal_of(folder):
    return files.read_journal(folder, known(folder))


def undo(folder, *more):
    """Take the changes back, and those in `more`."""
    files.undo(folder, journal_of(folder), (*back(folder), *more), known(folder))


def back(folder):
    return tuple(FileChange(str(folder / name), NEW[name], OLD[name]) for name in OLD)


def content(folder):
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def state(folder):
    return {name: (folder / name).read_bytes() if (folder / name).exists() else None for name in OLD}


def killed_at(step, work):
    """Do the work in a process that is killed before its `step`-th call that changes a disk; whether it was."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] != 0
    left = [step]
    for name in ("open", "replace", "unlink", "fchmod"):
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
    apply(folder)
    assert state(folder) == NEW
    assert (folder / "gres.conf").is_symlink()
    assert (folder / "slurm.conf").stat().st_mode & 0o777 == 0o640
    assert (folder / "slurm.conf.slurm-share-1").read_bytes() == b"old\n"
    assert (folder / NAME).stat().st_mode & 0o777 == 0o600
    assert journal_of(folder).state == "applied"
    assert not list(folder.glob(".*"))


def test_a_file_is_on_disk_before_it_has_its_name_and_its_folder_afterwards(folder, monkeypatch):
    """A power cut leaves the old or the new content, and does not revert some of several renames."""
    calls, real = [], os.replace

    def replace(source, target, **folders):
        calls.append((str(source), str(target)))
        real(source, target, **folders)

    monkeypatch.setattr(os, "fsync", lambda fd: calls.append(str(Path(f"/proc/self/fd/{fd}").readlink())))
    monkeypatch.setattr(os, "replace", replace)
    apply(folder)
    renames = [at for at, call in enumerate(calls) if isinstance(call, tuple)]
    assert {Path(calls[at][1]) for at in renames} >= {(folder / name).resolve() for name in (*OLD, NAME)}
    for at in renames:
        source, target = calls[at]
        assert (calls[at - 1], calls[at + 1]) == (source, str(Path(target).parent))


def test_an_undo_leaves_nothing(folder):
    before = content(folder)
    apply(folder)
    undo(folder)
    assert content(folder) == before
    assert (folder / "gres.conf").is_symlink()


def test_whoever_is_killed_while_he_applies_has_done_all_or_nothing(folder):
    """At every step: what comes next finds the old files or the new ones, and nothing beside them."""
    before = content(folder)
    for step in count(1):
        if not killed_at(step, lambda: apply(folder)):
            break
        settle(folder)
        if journal_of(folder) is None:
            assert content(folder) == before, step
        else:
            assert state(folder) == NEW
            undo(folder)
    assert step > 20
    assert state(folder) == NEW


def test_a_program_is_whole_and_can_be_run_as_soon_as_a_file_names_it(folder):
    """Killed at every step, of setting it right too: where slurm.conf is new, so is the program, with its mode."""
    before, wrapper, seen = content(folder), folder / "hook.sh", []
    for step in count(1):
        was_killed = killed_at(step, lambda: apply(folder, FileChange(str(wrapper), None, b"#!/bin/sh\n", mode=0o755)))
        if (folder / "slurm.conf").read_bytes() == NEW["slurm.conf"]:
            assert wrapper.read_bytes() == b"#!/bin/sh\n", step
            assert wrapper.stat().st_mode & 0o777 == 0o755, step
        if not was_killed:
            break
        again, left = 0, [content(folder), *(file.stat().st_mode for file in sorted(folder.iterdir()))]
        while left not in seen and killed_at(again := again + 1, lambda: settle(folder)):
            if (folder / "slurm.conf").read_bytes() == NEW["slurm.conf"]:
                assert wrapper.exists(), (step, again)
        seen.append(left)
        settle(folder)
        if journal_of(folder) is None:
            assert content(folder) == before, step
        else:
            assert state(folder) == NEW
            undo(folder, FileChange(str(wrapper), b"#!/bin/sh\n", None))
    assert step > 20


def test_whoever_is_killed_while_he_undoes_has_done_all_or_nothing(folder):
    before = content(folder)
    for step in count(1):
        apply(folder)
        if not killed_at(step, lambda: undo(folder)):
            break
        settle(folder)
        if journal_of(folder) is not None:
            assert state(folder) == NEW
            undo(folder)
        assert content(folder) == before, step
    assert step > 10
    assert content(folder) == before


def test_an_interrupted_settling_is_settled(folder):
    before = content(folder)
    killed = 0
    for step in range(8, 60, 9):
        for second in range(1, 12, 2):
            if killed_at(step, lambda: apply(folder)):
                killed += killed_at(second, lambda: settle(folder))
                settle(folder)
            if journal_of(folder) is not None:
                undo(folder)
            assert content(folder) == before, (step, second)
    assert killed > 5


def test_a_further_apply_has_a_copy_of_its_own_and_keeps_all_lines(folder):
    """One --undo takes both back, with both copies; where the second is cut short the first one stands."""
    apply(folder)
    slurm = str(folder / "slurm.conf")
    (folder / "slurm.conf").write_bytes(b"new\nby hand\n")
    first = content(folder)
    more = (FileChange(slurm, b"new\nby hand\n", b"newer\n", (f"{slurm}.slurm-share-2",), (Edit(slurm, "newer"),)),)
    for step in range(1, 100):
        if not killed_at(step, lambda: files.apply(folder, more, "e", known(folder))):
            break
        settle(folder)
        if (folder / "slurm.conf").read_bytes() == b"newer\n":
            whole = (FileChange(slurm, b"newer\n", b"old\n"), *back(folder)[1:])
            files.undo(folder, journal_of(folder), whole, known(folder))
            assert not list(folder.glob("*.slurm-share-*"))
            apply(folder)
            (folder / "slurm.conf").write_bytes(b"new\nby hand\n")
        assert content(folder) == first, step
    journal = journal_of(folder)
    kept = next(change for change in journal.changes if change.file == slurm)
    assert [edit.add for edit in kept.edits] == ["new", "newer"]
    assert kept.first == b"old\n"
    assert kept.copies == (f"{slurm}.slurm-share-1", f"{slurm}.slurm-share-2")
    assert [Path(copy).read_bytes() for copy in kept.copies] == [b"old\n", b"new\nby hand\n"]
    assert len(journal.changes) == 3


def test_a_file_that_changed_meanwhile_is_not_written(folder):
    (folder / "slurm.conf").write_bytes(b"by hand\n")
    before = content(folder)
    with pytest.raises(StateError, match="changed by another process"):
        apply(folder)
    assert content(folder) == before


def test_a_file_changed_between_a_kill_and_the_next_run_is_not_overwritten(folder):
    step = 1
    while killed_at(step, lambda: apply(folder)):
        if journal_of(folder) is not None:
            break
        step += 1
    (folder / "slurm.conf").write_bytes(b"by hand\n")
    with pytest.raises(StateError, match=f"remove .*{NAME}"):
        settle(folder)
    assert (folder / "slurm.conf").read_bytes() == b"by hand\n"


def test_a_file_that_cannot_be_written_takes_the_others_back(folder, monkeypatch):
    before = content(folder)
    real = os.replace

    def full(source, target, **folders):
        if Path(target).name == "plugstack.conf":
            raise OSError(28, "No space left on device")
        real(source, target, **folders)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StateError, match="No space left"):
        apply(folder)
    assert content(folder) == before


def test_two_at_once_are_one_too_many(folder):
    with files.locked(folder), pytest.raises(StateError, match="changing files there"), files.locked(folder):
        pass
    assert not (folder / ".slurm-share-lock").exists()


def test_a_stranger_s_lock_on_the_folder_keeps_nobody_away(folder):
    """Every reader of the folder may hold one; one that was left behind is taken over, and gone afterwards."""
    (folder / ".slurm-share-lock").touch()
    fd = os.open(folder, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with files.locked(folder):
        assert (folder / ".slurm-share-lock").exists()
    os.close(fd)
    assert not (folder / ".slurm-share-lock").exists()


def test_a_journal_that_is_none_is_named(folder):
    (folder / NAME).write_text("{")
    with pytest.raises(StateError, match="is not a journal"):
        journal_of(folder)
    (folder / NAME).write_text('{"state":"applied","date":"d","changes":[],"version":99}')
    with pytest.raises(StateError, match=r"another slurm-share.*remove it"):
        journal_of(folder)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"[" * 100_000, b"{}"], ids=["bytes", "deep", "empty"])
def test_a_journal_of_any_bytes_is_a_sentence(folder, data):
    (folder / NAME).write_bytes(data)
    with pytest.raises(StateError, match="remove it"):
        journal_of(folder)


def test_a_journal_that_others_may_have_written_is_not_believed(folder):
    apply(folder)
    (folder / NAME).chmod(0o666)
    with pytest.raises(StateError, match=r"can be written by one.*remove it"):
        settle(folder)
    (folder / NAME).chmod(0o600)
    (folder / NAME).rename(folder / "moved")
    (folder / NAME).symlink_to("moved")
    with pytest.raises(StateError, match="cannot be read"):
        journal_of(folder)


def test_a_journal_that_is_roots_is_for_root(folder, monkeypatch):
    def denied(*words, **more):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("slurm_share.core.files.os.open", denied)
    with pytest.raises(StateError, match=r"Permission denied\); run this as root$"):
        journal_of(folder)


def tampered(name, folder):
    """Return a change as somebody might forge it in the journal."""
    file, copy = str(folder / "slurm.conf"), str(folder / "slurm.conf.slurm-share-1")
    return {
        "file": FileChange("/etc/passwd", b"", b"root::0:0", (), ()),
        "copy": FileChange(file, None, None, ("/etc/passwd",)),
        "copy of another": FileChange(file, None, None, (f"{file}.slurm-share-1/../passwd",)),
        "line": FileChange(file, None, None, (copy,), (Edit("/etc/passwd", "x"),)),
    }[name]


@pytest.mark.parametrize("what", ["file", "copy", "copy of another", "line"])
@pytest.mark.parametrize("is_earlier", [False, True])
def test_a_journal_names_slurms_files_and_no_others(folder, what, is_earlier):
    """Any other file that it names is neither written nor removed; the sentence has the way out."""
    journal = InstallJournal("undoing", "d", (tampered(what, folder),))
    if is_earlier:
        journal = InstallJournal("applying", "d", (), earlier=journal)
    (folder / NAME).write_bytes(encode(journal))
    before = content(folder)
    with pytest.raises(StateError, match=r"is not believed.* put back the copies .* then remove it"):
        settle(folder)
    assert content(folder) == before


@pytest.mark.parametrize(
    ("number", "says"), [(30, "Read-only.*mount it writable"), (13, "run this as root"), (28, "make room there")]
)
def test_a_folder_that_cannot_be_written_is_a_sentence_with_the_way_out(folder, monkeypatch, number, says):
    before = content(folder)
    real = os.open

    def refuse(path, flags, *more, **named):
        if flags & os.O_WRONLY:
            raise OSError(number, os.strerror(number))
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StateError, match=says):
        apply(folder)
    monkeypatch.setattr(os, "open", real)
    assert content(folder) == before


def test_links_that_lead_in_a_circle_are_a_sentence(folder):
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    change = FileChange(str(folder / "a"), None, b"x", None, ())
    with pytest.raises(StateError):
        files.apply(folder, (change,), "d", known(folder))


def test_a_journal_that_cannot_be_finished_takes_all_back(folder, monkeypatch):
    real = files._write_journal

    def write(where, journal):
        if journal.state == "applied":
            raise StateError("j", "cannot be written (full)")
        real(where, journal)

    monkeypatch.setattr(files, "_write_journal", write)
    with pytest.raises(StateError, match="every file is as it was before"):
        apply(folder)
    assert state(folder) == OLD


def test_a_file_that_two_write_at_once_is_whole(tmp_path, monkeypatch):
    """The one that comes second does nothing, while the first one's new file is half written beside it, too."""
    file = tmp_path / "config.toml"
    file.write_bytes(b"old")
    rename, said = os.replace, []

    def meanwhile(part, place, **folders):
        with pytest.raises(StateError, match="another slurm-share is changing files there") as found:
            files.replace(str(file), b"old", b"another")
        said.append(found.value)
        rename(part, place, **folders)

    monkeypatch.setattr(files.os, "replace", meanwhile)
    files.replace(str(file), b"old", b"new")
    assert len(said) == 1
    assert file.read_bytes() == b"new"
    assert [each.name for each in tmp_path.iterdir()] == ["config.toml"]

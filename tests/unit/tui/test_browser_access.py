"""Links, passwords, cookies, and the files that they are in."""

from __future__ import annotations

import os
import stat

import pytest
from slurm_share_tui.browser import access
from slurm_share_tui.browser.access import Access, LinkFile

from slurm_share.core.errors import UsageError

PASSWORD = b"correct-horse-battery-staple"


def test_a_link_works_once():
    known = Access()
    link = known.link
    assert known.take_link("") == ""
    assert known.take_link(link[:-1]) == ""
    assert known.take_link("\udcff") == ""
    cookie = known.take_link(link)
    assert known.knows([cookie])
    assert known.take_link(link) == ""
    assert known.link != link
    assert not known.knows([link, "", known.link, "\udcff"])


def test_a_password_works_more_than_once_and_is_no_link():
    known = Access(PASSWORD)
    assert known.link == ""
    assert known.take_link("") == ""
    assert known.take_link(PASSWORD.decode()) == ""
    assert known.take_password("") == ""
    first, second = known.take_password(PASSWORD.decode()), known.take_password(PASSWORD.decode())
    assert first != second
    assert known.knows([first])
    assert known.knows(["x", second])
    assert Access().take_password("") == ""


def test_a_login_ends_when_nobody_uses_it_and_when_too_many_are_there():
    now = 0.0
    known = Access(PASSWORD, clock=lambda: now)
    first, second = known.take_password(PASSWORD.decode()), known.take_password(PASSWORD.decode())
    now = access.IDLE_S - 1
    assert known.knows([first])
    now += 2
    assert not known.knows([second])
    assert known.knows([first])
    for _ in range(access.LOGINS_MOST):
        known.take_password(PASSWORD.decode())
    assert not known.knows([first])


def test_cookies_of_other_servers_do_not_hide_ours():
    header = f"a=b; {access.COOKIE}=theirs; {access.COOKIE}=ours;{access.COOKIE}; other={access.COOKIE}=x"
    assert access.cookies_in(header) == ["theirs", "ours", ""]
    known = Access()
    cookie = known.take_link(known.link)
    assert not known.knows(["x"] * access.GIVEN_MOST + [cookie])


def test_a_password_file_is_the_users_own(tmp_path):
    file = tmp_path / "token"
    file.write_bytes(PASSWORD + b"\n")
    file.chmod(0o600)
    assert access.read_password(file) == PASSWORD
    file.chmod(0o640)
    with pytest.raises(UsageError, match="chmod 0600"):
        access.read_password(file)
    file.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(file)
    with pytest.raises(UsageError, match="is a link; name the file itself"):
        access.read_password(link)
    file.write_bytes(b"short")
    with pytest.raises(UsageError, match="at least 16 characters"):
        access.read_password(file)
    with pytest.raises(UsageError, match="cannot be read"):
        access.read_password(tmp_path / "none")
    with pytest.raises(UsageError, match="is not a file"):
        access.read_password(tmp_path)
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(UsageError, match="is not a file"):
        access.read_password(tmp_path / "fifo")
    if os.geteuid() == 0:
        file.write_bytes(PASSWORD)
        os.chown(file, 65534, 65534)
        with pytest.raises(UsageError, match="belongs to another user"):
            access.read_password(file)


def test_the_link_is_in_a_file_of_the_user(tmp_path):
    kept = LinkFile(tmp_path / "state/browser/n1-80")
    kept.write("http://x/?token=1")
    assert stat.S_IMODE(kept.file.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.file.parent.stat().st_mode) == 0o700
    other = tmp_path / "other"
    other.write_text("before")
    kept.file.unlink()
    kept.file.symlink_to(other)
    kept.write("http://x/?token=2")
    assert other.read_text() == "before"
    assert not kept.file.is_symlink()
    kept.remove()
    kept.remove()


def test_a_folder_that_others_can_enter_gets_no_link(tmp_path):
    folder = tmp_path / "browser"
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(UsageError, match="others can enter"):
        LinkFile(folder / "x").write("link")
    folder.rmdir()
    (tmp_path / "there").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "there")
    with pytest.raises(UsageError, match="is a link or a file"):
        LinkFile(folder / "x").write("link")
    assert list((tmp_path / "there").iterdir()) == []

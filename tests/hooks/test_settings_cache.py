"""What a hook keeps of the site's settings for the next one."""

from __future__ import annotations

import os

import pytest
from slurm_share_hooks import settings_cache

from slurm_share import config, names
from slurm_share.settings import Settings

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root keeps settings")
TEXT = 'mode = "on"\nlog_file = "/log"\nclean_up = ["tmp"]\n[partition.big]\nmax_share = 3\n'


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A configuration file that was written long ago."""
    monkeypatch.setattr(names, "CONFIG_FILE", str(tmp_path / "config.toml"))
    monkeypatch.setattr(names, "STATE_ROOT", str(tmp_path / "state"))
    monkeypatch.setattr(settings_cache, "SETTLED_S", 0.0)
    found = tmp_path / "config.toml"
    found.write_text(TEXT)
    return found


def keep(file):
    before = settings_cache.key()
    settings_cache.write(config.load(file), before)


def kept(partition=None):
    found = settings_cache.read(partition)
    return None if found is None else Settings(**found[0])


def test_the_next_hook_has_the_same_settings(file):
    """Of the site and of a partition; the log is the site's, and the file nobody else's to read."""
    assert kept() is None
    keep(file)
    configuration = config.load(file)
    assert kept() == configuration.settings
    assert kept("plain") == configuration.settings
    assert kept("big") == configuration.of("big") != configuration.settings
    assert settings_cache.read("big")[1] == "/log"
    assert [place.name for place in file.parent.iterdir() if place != file] == ["state.settings"]
    assert file.with_name("state.settings").stat().st_mode & 0o777 == 0o600


def test_another_file_is_read_anew(file):
    """Changed in place, replaced by one of the same size and time, or gone."""
    keep(file)
    file.write_text(TEXT.replace('"on"', '"off"'))
    assert kept() is None
    keep(file)
    assert kept().mode == "off"
    about = file.stat()
    aside = file.with_name("new")
    aside.write_text(TEXT.replace('"on"', '"OFF"'))
    os.utime(aside, ns=(about.st_atime_ns, about.st_mtime_ns))
    aside.replace(file)
    assert kept() is None
    file.unlink()
    assert kept() is None


def test_other_code_reads_the_file_anew(file, tmp_path, monkeypatch):
    """After an upgrade a key may mean something else."""
    keep(file)
    code = tmp_path / "code"
    code.mkdir()
    for module in ("names", "share_option", "settings", "config"):
        (code / f"{module}.py").touch()
    monkeypatch.setattr(names, "__file__", str(code / "names.py"))
    assert kept() is None


@pytest.mark.parametrize("spoil", ["mode", "owner", "link", "torn", "empty", "strange", "fifo"])
def test_what_is_not_roots_own_is_not_believed(file, spoil):
    """Nor what is torn; a hook waits for no fifo."""
    keep(file)
    place = file.with_name("state.settings")
    if spoil == "mode":
        place.chmod(0o620)
    elif spoil == "owner":
        os.chown(place, 2001, 2001)
    elif spoil == "link":
        place.rename(file.with_name("elsewhere"))
        place.symlink_to("elsewhere")
    elif spoil == "fifo":
        place.unlink()
        os.mkfifo(place, 0o600)
    else:
        place.write_bytes({"torn": place.read_bytes()[:-5], "empty": b"", "strange": b"i\x01\0\0\0"}[spoil])
    assert kept() is None


def test_what_may_change_again_under_its_time_stamp_is_not_kept(file, monkeypatch):
    """Nor a file that changed while it was read, nor another file than the site's."""
    monkeypatch.setattr(settings_cache, "SETTLED_S", 60.0)
    keep(file)
    assert kept() is None
    monkeypatch.setattr(settings_cache, "SETTLED_S", 0.0)
    before = settings_cache.key()
    file.write_text(TEXT.replace('"on"', '"off"'))
    settings_cache.write(config.load(file), before)
    assert kept() is None
    other = file.with_name("other.toml")
    other.write_text("max_share = 2\n")
    settings_cache.write(config.load(other), settings_cache.key())
    assert kept() is None


def test_a_place_that_cannot_be_written_harms_no_hook(file):
    """Here a folder has its name."""
    file.with_name("state.settings").mkdir()
    keep(file)
    assert kept() is None
    assert sorted(place.name for place in file.parent.iterdir()) == ["config.toml", "state.settings"]

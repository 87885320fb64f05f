"""The site's configuration file: typed values, and errors that name the key."""

from __future__ import annotations

import pytest

from slurm_share.core import config
from slurm_share.core.errors import ConfigError
from slurm_share.core.settings import Settings


def test_no_file_is_all_defaults(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "CONFIG_FILE", tmp_path / "none.toml")
    configuration = config.load()
    assert configuration.settings == Settings()
    assert set(configuration.sources.values()) == {config.DEFAULT}


def test_each_value_says_where_it_came_from(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('max_share = 8\nexclusive_user_partitions = ["gpu", "debug"]\nmemory_reserve_percent = 3\n')
    configuration = config.load(file)
    assert configuration.settings.max_share == 8
    assert configuration.settings.exclusive_user_partitions == ("gpu", "debug")
    assert configuration.settings.memory_reserve_percent == 3.0
    assert configuration.sources["max_share"] == str(file)
    assert configuration.sources["log_file"] == config.DEFAULT


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("max_shares = 8", "max_shares: unknown key; did you mean max_share?"),
        ("zzz = 1", "zzz: unknown key; the keys are mode, switched_off,"),
        ('max_share = "8"', "max_share: Expected `int`, got `str`; it says '8'"),
        ("max_share = true", "max_share: Expected `int`, got `bool`"),
        ("max_share = 0", "max_share: must be from 1 to 60; it says 0"),
        ("memory_reserve_percent = 99.5", "memory_reserve_percent: must be from 0 to 50"),
        ("exclusive_user_partitions = [1]", "exclusive_user_partitions: Expected `str`, got `int`"),
        ("max_share = ", "is not TOML"),
        ("x = " + "[" * 3000, "is not TOML"),
        ("max_share = " + "9" * 5000, "is not TOML"),
        ("node_feature = 'a&b'", "node_feature: must be one feature"),
        ('log_file = "/var/log/x\\u0000y"', "log_file: must be an absolute path, or empty"),
        ('mps_control = "nvidia-cuda-mps-control"', "mps_control: must be an absolute path, or empty"),
        ('sm = "most"', "sm: must be a percentage from 1 to 100, even, free or static"),
        ('sharing = "exclusive"', "sharing: Invalid enum value 'exclusive'"),
        ('[partition.a]\nsharing = "mig"', "partition.a.sharing: Invalid enum value 'mig'"),
        ('remote_command = ["ssh", "-x"]', "remote_command: needs a program and the word NODE"),
        ('remote_command = ["NODE", "ssh"]', "remote_command: needs a program and the word NODE"),
        ("remote_command = []", "remote_command: needs a program and the word NODE"),
        ('mode_file = "shared/mode"', "mode_file: must be an absolute path"),
    ],
)
def test_what_is_wrong_is_refused_by_file_key_and_reason(text, sentence):
    with pytest.raises(ConfigError) as caught:
        config.parse(text, "/etc/x.toml")
    assert str(caught.value).startswith("/etc/x.toml: ")
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        f"{'9' * 8000} = 1",
        f"mode = '{'x' * 8000}'",
        f"sm = '{'x' * 8000}'",
        f"log_file = '{'x' * 8000}'",
        f"[partition.{'x' * 8000}]\nmode = 1",
        f"exclusive_user_nodes = {['x' * 99] * 99}\nmax_share = 'x'",
        f"a.{'x' * 8000} = 1\na.{'x' * 8000} = 1",
    ],
    ids=lambda text: text[:12],
)
def test_what_is_wrong_is_quoted_in_part_if_it_is_long(text):
    with pytest.raises(ConfigError) as caught:
        config.parse(text, "config.toml")
    assert len(str(caught.value)) < 2000


def test_a_file_that_cannot_be_read_is_said(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        config.load(tmp_path)
    (tmp_path / "c.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        config.load(tmp_path / "c.toml")


def test_a_partition_has_the_sites_settings_but_for_its_own():
    read = config.parse(
        'mode = "on"\nmax_share = 8\n[partition.debug]\nmode = "observe"\n[partition."a b"]\nmax_share = 2\n', "x"
    )
    assert (read.of("debug").mode, read.of("debug").max_share) == ("observe", 8)
    assert (read.of("a b").mode, read.of("a b").max_share) == ("on", 2)
    assert read.of("other") == read.of(None) == read.settings
    assert (read.settings.mode, read.settings.max_share) == ("on", 8)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[partition.a]\nmax_shar = 1", "partition.a.max_shar: unknown key; did you mean max_share?"),
        ("[partition.a]\nlog_file = '/x'", "partition.a.log_file: is for the whole site; a partition may have mode,"),
        ("[partition.a]\nmax_share = 0", "partition.a.max_share: must be from 1 to 60; it says 0"),
        ("[partition.a]\nmode = 'in'", "partition.a.mode: "),
        ("partition = 1", "partition: wants a table for each partition: [partition.NAME]"),
        ("[partition]\nmode = 'on'", "partition: wants a table for each partition: [partition.NAME]"),
        ("mode = 'On'", "mode: "),
    ],
)
def test_what_is_wrong_in_a_partitions_table_is_named_with_the_table(text, sentence):
    with pytest.raises(ConfigError) as caught:
        config.parse(text, "x")
    assert str(caught.value).startswith(f"x: {sentence}")


def test_switched_off_is_off_in_every_partition_and_forgets_no_mode():
    text = 'mode = "on"\n[partition.gpu]\nmode = "on"\n[partition.debug]\nmode = "observe"\n'
    off, again = config.parse("switched_off = true\n" + text, "/etc/x.toml"), config.parse(text, "/etc/x.toml")
    assert off.modes() == {"": "off", "gpu": "off", "debug": "off"}
    assert again.modes() == {"": "on", "gpu": "on", "debug": "observe"}


def test_a_byte_order_mark_at_the_beginning_is_no_part_of_the_first_key(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('\ufeffmode = "on"\r\n', encoding="utf-8")
    assert config.load(file).settings.mode == "on"

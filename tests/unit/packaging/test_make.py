"""The build of the packages: what is fetched, unpacked and reported."""

from __future__ import annotations

import argparse
import re
import tomllib
import zipfile
from pathlib import Path

import pytest
from make import debian, fetch, pages, unpack

from localcluster import tools
from localcluster.errors import ClusterError, CommandFailed
from slurm_share.core import config, names
from slurm_share.core.settings import Settings

SHARE = Path(__file__).resolve().parents[3] / "packaging/share"


def wheel(folder: Path, name: str, files: dict[str, str]) -> Path:
    file = folder / name
    with zipfile.ZipFile(file, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return file


def test_compiled_modules_of_every_python_lie_side_by_side(tmp_path: Path) -> None:
    """The rest of the package once; no record for pip, no script, nothing for compilers."""
    made = [
        wheel(
            tmp_path,
            f"thing-1.0-{tag}-{tag}-linux.whl",
            {
                "thing/__init__.py": "x",
                f"thing/_core.{module}.so": tag,
                "thing/_core.c": "",
                "thing-1.0.dist-info/METADATA": "",
                "thing-1.0.dist-info/licenses/LICENSE": "free",
                "thing-1.0.dist-info/RECORD": tag,
                "thing-1.0.data/scripts/thing": "#!python",
            },
        )
        for tag, module in (("cp311", "cpython-311-x86_64"), ("cp314", "cpython-314-x86_64"))
    ]
    unpack.unpack(made, tmp_path / "out")
    found = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert found == [
        "thing-1.0.dist-info/METADATA",
        "thing-1.0.dist-info/licenses/LICENSE",
        "thing/__init__.py",
        "thing/_core.cpython-311-x86_64.so",
        "thing/_core.cpython-314-x86_64.so",
    ]


def test_two_packages_with_one_file_are_refused(tmp_path: Path) -> None:
    made = [wheel(tmp_path, f"{name}-1-py3-none-any.whl", {"same.py": name}) for name in ("a", "b")]
    with pytest.raises(ValueError, match=r"b-1-.* different same\.py"):
        unpack.unpack(made, tmp_path / "out")


@pytest.mark.parametrize(("number", "release"), [("0x160508", "22.05"), ("0x180b05", "24.11"), ("0x1a0500", "26.05")])
def test_the_release_of_headers(tmp_path: Path, number: str, release: str) -> None:
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm/slurm_version.h").write_text(f"#define SLURM_VERSION_NUMBER {number}\n")
    assert fetch.release_of(tmp_path) == release


def test_headers_without_a_version_are_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="has no Slurm headers"):
        fetch.release_of(tmp_path)
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm/slurm_version.h").write_text("/* */")
    with pytest.raises(ClusterError, match="names no version"):
        fetch.release_of(tmp_path)


def test_the_shipped_settings_are_all_comments_and_all_right() -> None:
    """Every example is a valid setting once its comment sign is removed. The Prolog parses the file for an ordinary job
    only if it contains LISTING_SETTING."""
    text = (SHARE / "config.toml").read_text()
    assert names.LISTING_SETTING not in text
    assert config.parse(text, "config.toml").settings == Settings()
    assert all(line.startswith("#") or not line for line in text.splitlines())
    examples = "\n".join(line[1:] for line in text.splitlines() if line.startswith("#") and not line.startswith("# "))
    parsed = config.parse(examples.replace("#\n", "\n"), "config.toml")
    assert parsed.partitions["debug"].mode == "on"
    assert parsed.settings == Settings()
    assert len(tomllib.loads(examples)) >= 5


@pytest.mark.parametrize("said", ["E: Unable to locate package libslurm-dev", ""])
def test_a_suite_that_cannot_be_had_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    def fail(*_: object) -> None:
        raise CommandFailed(["apt-get"], 100, f"W: first\n{said}\n" if said else "")

    monkeypatch.setattr(debian, "unpacked", fail)
    monkeypatch.setattr(tools, "debian_mirror", lambda: "http://mirror.example/debian")
    with pytest.raises(ClusterError) as caught:
        fetch.debian_headers(["forky"], tmp_path)
    words = str(caught.value)
    assert "no headers of Slurm 26.05 from Debian forky at http://mirror.example/debian" in words
    assert (said or "code 100") in words
    assert "--leave-out forky" in words


def test_a_suite_that_is_left_out_is_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "debian_mirror", lambda: pytest.fail("asked"))
    assert fetch.debian_headers([], tmp_path) == {}
    with pytest.raises(ClusterError, match="no Slurm to build the plugin for"):
        fetch.fetch(tmp_path, [], [], tmp_path)


def sample_parser() -> argparse.ArgumentParser:
    """Return a command with sub-commands of two levels."""
    top = argparse.ArgumentParser(prog="thing", description="What it does: well. More.", epilog=".dots\n  kept")
    commands = top.add_subparsers()
    show = commands.add_parser("show", help="it's shown")
    show.add_argument("-j", "--json", action="store_true", help="100%% for programs")
    show.add_argument("--view", choices=("a", "b"))
    show.add_argument("--secret", help=argparse.SUPPRESS)
    config = commands.add_parser("config", help="settings").add_subparsers()
    config.add_parser("print", help="all of them").add_argument("--file", metavar="F")
    commands.add_parser("inner").add_argument("--deep")
    pages.forget_hidden(top)
    return top


def test_fish_knows_options_words_and_sub_commands() -> None:
    text = pages.fish_completion(sample_parser(), "thing")
    for line in (
        "'not __fish_seen_subcommand_from show config' -f -a show -d 'it\\'s shown'",
        "'__fish_seen_subcommand_from show' -s j -l json -d '100% for programs'",
        "'__fish_seen_subcommand_from show' -l view -x -a 'a b'",
        "'__fish_seen_subcommand_from config; and __fish_seen_subcommand_from print' -l file -r",
    ):
        assert f"-n {line}\n" in text
    assert not re.search("secret|inner|deep", text)

"""The folders of a map: made, filled, and removed except for files of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_share.core.errors import UsageError
from slurm_share.triples import mapreduce_folder


def test_output_folders_are_made_as_deep_as_they_are(tmp_path: Path) -> None:
    out = str(tmp_path / "a" / "out")
    for _ in range(2):
        mapreduce_folder.make_output_folders(out, [f"{out}/x/y"])
    assert (tmp_path / "a/out/x/y").is_dir()


def test_only_what_was_made_is_taken_away_again_and_only_if_it_is_empty(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    out = tmp_path / "mine" / "a" / "out"
    made = mapreduce_folder.make_output_folders(str(out), [f"{out}/x/y"])
    assert made == (out.parent, out, out / "x", out / "x/y")
    mapreduce_folder.unmake(made)
    assert list((tmp_path / "mine").iterdir()) == []
    made = mapreduce_folder.make_output_folders(str(out), [f"{out}/x"])
    (out / "paper").touch()
    mapreduce_folder.unmake(made)
    assert [path.name for path in out.iterdir()] == ["paper"]


def test_output_folders_of_which_one_cannot_be_made_leave_none(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(UsageError, match="exists and is not a folder"):
        mapreduce_folder.make_output_folders(f"{tmp_path}/new/out", [f"{tmp_path}/dangling"])
    assert [path.name for path in tmp_path.iterdir()] == ["dangling"]


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="exists and is not a folder"):
        mapreduce_folder.make_output_folders(str(tmp_path / "file"), [])
    with pytest.raises(UsageError, match="cannot make the output folder"):
        mapreduce_folder.make_output_folders(str(tmp_path / "file" / "x"), [])
    with pytest.raises(UsageError, match="cannot be used as a folder"):
        mapreduce_folder.take(str(tmp_path / "file"))
    with pytest.raises(UsageError, match="write another folder with --tempdir"):
        mapreduce_folder.take(str(tmp_path / "file" / "x"))


def test_a_folder_is_new_or_says_what_is_in_it(tmp_path: Path) -> None:
    assert mapreduce_folder.take(str(tmp_path / "new")) == (True, ())
    (tmp_path / "new" / "paper").touch()
    assert mapreduce_folder.take(str(tmp_path / "new")) == (False, ("paper",))


def test_scripts_can_be_executed_and_all_of_it_goes_but_for_others_files(tmp_path: Path) -> None:
    mapreduce_folder.fill(tmp_path, {"map.sh": "#!/bin/bash\n", "input_1": "a b\n"}, "logs")
    assert ((tmp_path / "map.sh").stat().st_mode & 0o111, (tmp_path / "input_1").stat().st_mode & 0o111) == (0o111, 0)
    (tmp_path / "logs" / "x").touch()
    (tmp_path / "paper").touch()
    mapreduce_folder.clear(tmp_path, ["map.sh", "input_1", "logs", "never"], True)
    assert [one.name for one in tmp_path.iterdir()] == ["paper"]
    (tmp_path / "paper").unlink()
    mapreduce_folder.clear(tmp_path, [], True)
    assert not tmp_path.exists()


def test_a_link_in_the_place_of_our_logs_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "paper").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "logs").symlink_to(tmp_path / "precious")
    mapreduce_folder.clear(tmp_path / "run", ["logs"], True)
    assert (tmp_path / "precious" / "paper").exists()
    assert not (tmp_path / "run").exists()


def test_a_folder_that_takes_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    with pytest.raises(UsageError, match="cannot write to"):
        mapreduce_folder.fill(tmp_path, {}, "logs")

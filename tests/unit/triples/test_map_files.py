"""The files of a map: inputs, output folders, and the temporary folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_share.core.errors import UsageError
from slurm_share.triples import map_files, run_files


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.txt", "a.dat", ".hidden", "x/c.txt", "x/y/d.txt", ".git/e.txt", "out/f.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "link.txt").symlink_to("b.txt")
    return tmp_path


@pytest.mark.parametrize(
    ("recursive", "extension", "found"),
    [
        (False, None, "a.dat b.txt link.txt"),
        (True, None, "a.dat b.txt link.txt x/c.txt x/y/d.txt"),
        (True, "txt", "b.txt link.txt x/c.txt x/y/d.txt"),
        (True, ".txt", "b.txt link.txt x/c.txt x/y/d.txt"),
    ],
)
def test_files_of_a_folder_but_for_outputs_hidden_ones_and_links(
    tree: Path, recursive: bool, extension: str | None, found: str
) -> None:
    assert map_files.files_below(str(tree), recursive, extension, f"{tree}/out").files == tuple(found.split())


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the input folder .*gone"):
        map_files.files_below(f"{tmp_path}/gone", False, None, "/nowhere")


def test_links_that_lead_nowhere_are_named(tree: Path) -> None:
    (tree / ".veiled").symlink_to("nowhere")
    (tree / "x" / "gone.dat").symlink_to("nowhere")
    assert map_files.files_below(str(tree), False, None, "/nowhere").outside == ("gone",)
    assert map_files.files_below(str(tree), True, None, "/nowhere").outside == ("gone", "x/gone.dat")
    assert map_files.files_below(str(tree), True, "dat", "/nowhere").outside == ("x/gone.dat",)


def test_the_outputs_folder_is_left_out_under_every_name(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other") / "name"
    other.symlink_to(tree)
    assert "out/f.txt" in map_files.files_below(str(tree), True, None, "/nowhere").files
    assert "out/f.txt" not in map_files.files_below(str(tree), True, None, f"{other}/out").files
    assert "out/f.txt" not in map_files.files_below(str(other), True, None, f"{tree}/out").files


def test_lines_of_a_list(tmp_path: Path) -> None:
    file = tmp_path / "list"
    file.write_bytes(b"a b\r\n\nc\x0bd\n")
    assert map_files.lines_of(str(file)) == ("a b", "", "c\x0bd")
    file.write_bytes("\ufeffa\u2028b\r\nc\n".encode())
    assert map_files.lines_of(str(file)) == ("a\u2028b", "c")


def test_what_is_no_list_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "list"
    file.write_bytes(b"\x7fELF\0\0")
    with pytest.raises(UsageError, match="is not text"):
        map_files.lines_of(str(file))
    file.write_bytes(b"a\nb\rc\n")
    with pytest.raises(UsageError, match=r"line 2 of .*list contains a carriage return"):
        map_files.lines_of(str(file))
    file.write_bytes("a\n".encode("utf-16"))
    with pytest.raises(UsageError, match=r"list is UTF-16, as PowerShell writes it"):
        map_files.lines_of(str(file))
    file.write_bytes(b"\x7fELF\0\0")
    with pytest.raises(UsageError, match="is not text"):
        map_files.lines_of(str(file))
    monkeypatch.setattr(map_files, "LIST_MAX_BYTES", 3)
    with pytest.raises(UsageError, match="but a list has at most"):
        map_files.lines_of(str(file))
    with pytest.raises(UsageError, match="cannot read the list"):
        map_files.lines_of(str(tmp_path / "gone"))


# ---- Folders ----


def test_output_folders_are_made_as_deep_as_they_are(tmp_path: Path) -> None:
    out = str(tmp_path / "a" / "out")
    for _ in range(2):
        map_files.make_output_folders(out, [f"{out}/x/y"])
    assert (tmp_path / "a/out/x/y").is_dir()


def test_only_what_was_made_is_taken_away_again_and_only_if_it_is_empty(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    out = tmp_path / "mine" / "a" / "out"
    made = map_files.make_output_folders(str(out), [f"{out}/x/y"])
    assert made == (out.parent, out, out / "x", out / "x/y")
    map_files.unmake(made)
    assert list((tmp_path / "mine").iterdir()) == []
    made = map_files.make_output_folders(str(out), [f"{out}/x"])
    (out / "paper").touch()
    map_files.unmake(made)
    assert [path.name for path in out.iterdir()] == ["paper"]


def test_output_folders_of_which_one_cannot_be_made_leave_none(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(UsageError, match="exists and is not a folder"):
        map_files.make_output_folders(f"{tmp_path}/new/out", [f"{tmp_path}/dangling"])
    assert [path.name for path in tmp_path.iterdir()] == ["dangling"]


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="exists and is not a folder"):
        map_files.make_output_folders(str(tmp_path / "file"), [])
    with pytest.raises(UsageError, match="cannot make the output folder"):
        map_files.make_output_folders(str(tmp_path / "file" / "x"), [])
    with pytest.raises(UsageError, match="cannot be used as a folder"):
        map_files.take(str(tmp_path / "file"))
    with pytest.raises(UsageError, match="write another folder with --tempdir"):
        map_files.take(str(tmp_path / "file" / "x"))


def test_a_folder_is_new_or_says_what_is_in_it(tmp_path: Path) -> None:
    assert map_files.take(str(tmp_path / "new")) == (True, ())
    (tmp_path / "new" / "paper").touch()
    assert map_files.take(str(tmp_path / "new")) == (False, ("paper",))


def test_scripts_can_be_executed_and_all_of_it_goes_but_for_others_files(tmp_path: Path) -> None:
    map_files.fill(tmp_path, {"map.sh": "#!/bin/bash\n", "input_1": "a b\n"}, "logs")
    assert ((tmp_path / "map.sh").stat().st_mode & 0o111, (tmp_path / "input_1").stat().st_mode & 0o111) == (0o111, 0)
    (tmp_path / "logs" / "x").touch()
    (tmp_path / "paper").touch()
    run_files.remove(tmp_path, ["x" * 256, "map.sh", "input_1", "logs", "never"])  # no file can have the first name
    assert [one.name for one in tmp_path.iterdir()] == ["paper"]
    (tmp_path / "paper").unlink()
    run_files.remove(tmp_path, [])
    assert not tmp_path.exists()


def test_a_link_in_the_place_of_our_logs_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "paper").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "logs").symlink_to(tmp_path / "precious")
    run_files.remove(tmp_path / "run", ["logs"])
    assert (tmp_path / "precious" / "paper").exists()
    assert not (tmp_path / "run").exists()


def test_a_folder_that_takes_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    with pytest.raises(UsageError, match="cannot write to"):
        map_files.fill(tmp_path, {}, "logs")

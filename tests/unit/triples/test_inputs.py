"""The files of a folder, and the lines of a list, as inputs of a map."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_share.core.errors import UsageError
from slurm_share.triples import inputs


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.txt", "a.dat", ".hidden", "x/c.txt", "x/y/d.txt", ".git/e.txt", "out/f.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "link.txt").symlink_to("b.txt")
    return tmp_path


def test_the_files_of_a_folder_by_name(tree: Path) -> None:
    assert inputs.files_below(str(tree), False, None, "/nowhere").files == ("a.dat", "b.txt", "link.txt")


def test_sub_folders_but_for_the_outputs_hidden_ones_and_links(tree: Path) -> None:
    found = inputs.files_below(str(tree), True, None, f"{tree}/out").files
    assert found == ("a.dat", "b.txt", "link.txt", "x/c.txt", "x/y/d.txt")


@pytest.mark.parametrize("extension", ["txt", ".txt"])
def test_only_those_with_an_extension(tree: Path, extension: str) -> None:
    found = inputs.files_below(str(tree), True, extension, f"{tree}/out").files
    assert found == ("b.txt", "link.txt", "x/c.txt", "x/y/d.txt")


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the input folder .*gone"):
        inputs.files_below(f"{tmp_path}/gone", False, None, "/nowhere")


def test_links_that_lead_nowhere_are_named(tree: Path) -> None:
    (tree / ".veiled").symlink_to("nowhere")
    (tree / "x" / "gone.dat").symlink_to("nowhere")
    assert inputs.files_below(str(tree), False, None, "/nowhere").outside == ("gone",)
    assert inputs.files_below(str(tree), True, None, "/nowhere").outside == ("gone", "x/gone.dat")
    assert inputs.files_below(str(tree), True, "dat", "/nowhere").outside == ("x/gone.dat",)


def test_the_outputs_folder_is_left_out_under_every_name(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other") / "name"
    other.symlink_to(tree)
    assert "out/f.txt" in inputs.files_below(str(tree), True, None, "/nowhere").files
    assert "out/f.txt" not in inputs.files_below(str(tree), True, None, f"{other}/out").files
    assert "out/f.txt" not in inputs.files_below(str(other), True, None, f"{tree}/out").files


def test_an_output_that_is_a_source_is_found_through_links(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).touch()
    (tmp_path / "soft").symlink_to("b")
    (tmp_path / "hard").hardlink_to(tmp_path / "b")
    sources = [f"{tmp_path}/a", f"{tmp_path}/b", "3", "no\0file"]
    assert inputs.overwritten([f"{tmp_path}/new", f"{tmp_path}/other"], sources) is None
    for name in ("b", "soft", "hard", "./b"):
        assert inputs.overwritten([f"{tmp_path}/new", f"{tmp_path}/{name}"], sources) == f"{tmp_path}/{name}"
    assert inputs.is_same(f"{tmp_path}/soft", f"{tmp_path}/hard")
    assert not inputs.is_same(f"{tmp_path}/a", f"{tmp_path}/b")
    assert not inputs.is_same(f"{tmp_path}/new", f"{tmp_path}/new")


def test_lines_of_a_list(tmp_path: Path) -> None:
    file = tmp_path / "list"
    file.write_bytes(b"a b\r\n\nc\x0bd\n")
    assert inputs.lines_of(str(file)) == ("a b", "", "c\x0bd", "")


def test_what_is_no_list_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "list"
    file.write_bytes(b"\x7fELF\0\0")
    with pytest.raises(UsageError, match="is not text"):
        inputs.lines_of(str(file))
    monkeypatch.setattr(inputs, "LIST_MAX_BYTES", 3)
    with pytest.raises(UsageError, match="but a list has at most"):
        inputs.lines_of(str(file))
    with pytest.raises(UsageError, match="cannot read the list"):
        inputs.lines_of(str(tmp_path / "gone"))

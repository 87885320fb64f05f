"""A user's script and task file, as they lie on a disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_share.core.errors import UsageError
from slurm_share.slurm import script


def write(folder: Path, text: str, mode: int = 0o755) -> Path:
    file = folder / "a.sh"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_sbatch_lines_are_read_up_to_the_first_command(tmp_path: Path) -> None:
    file = write(tmp_path, "#!/bin/bash\n# hello\n\n#SBATCH -n 4\n  # x\n#SBATCH --time=1 # y\nset -e\n#SBATCH -p no\n")
    found = script.read_script(str(file), to_execute=True)
    assert found == script.Script(str(file), "a.sh", ("-n 4", "--time=1 # y"))


def test_llsubs_own_lines_are_read_in_the_same_way_with_their_numbers(tmp_path: Path) -> None:
    text = "#!/bin/bash\n#SBATCH -n 4\n\n#LLSUB --pack # all\n # x\n#LLSUB\ntrue\n#LLSUB --no\n"
    found = script.read_script(str(write(tmp_path, text)), to_execute=True)
    assert found.own_lines == ((4, "--pack # all"), (6, ""))
    assert found.directives == ("-n 4",)


def test_a_program_has_none() -> None:
    assert script.read_script("/bin/sh", to_execute=True).directives == ()
    assert script.parse_directives(b"#SBATCH -n 4\n") == ()


def test_the_path_is_absolute_and_links_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "#!/bin/sh\n")
    (tmp_path / "link").symlink_to("a.sh")
    monkeypatch.chdir(tmp_path)
    assert script.read_script("./link", to_execute=True).path == str(tmp_path / "link")


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("gone.sh", "No such file"),
        (".", "it is a folder"),
        ("fifo", "it is no file"),
        ("a.sh", r"chmod \+x a\.sh"),
        ("[1,8]", "after the script"),
    ],
)
def test_what_cannot_be_run_is_refused(word: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "#!/bin/sh\n", 0o644)
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=why):
        script.read_script(word, to_execute=True)


@pytest.mark.parametrize("to_execute", [True, False])
def test_dos_line_ends_are_refused_with_the_way_to_mend_them(tmp_path: Path, to_execute: bool) -> None:
    file = write(tmp_path, "#!/bin/bash\r\necho\r\n")
    with pytest.raises(UsageError) as caught:
        script.read_script(str(file), to_execute=to_execute)
    assert r"its first line names '/bin/bash\r': DOS line ends; write: sed -i 's/\r$//' " + str(file) in str(
        caught.value
    )
    os.system(str(caught.value).partition("write: ")[2])
    assert script.read_script(str(file), to_execute=to_execute).name == "a.sh"


@pytest.mark.parametrize("to_execute", [True, False])
def test_a_byte_order_mark_is_refused_with_the_way_to_mend_it(tmp_path: Path, to_execute: bool) -> None:
    """The kernel would see no #! and run a Python script with /bin/sh."""
    file = write(tmp_path, "\ufeff#!/bin/bash\necho\n")
    with pytest.raises(UsageError, match="it begins with a byte order mark, and so not with #!") as caught:
        script.read_script(str(file), to_execute=to_execute)
    os.system(str(caught.value).partition("write: ")[2])
    assert script.read_script(str(file), to_execute=to_execute).name == "a.sh"


@pytest.mark.parametrize("to_execute", [True, False])
def test_other_line_ends_and_utf16_are_refused(tmp_path: Path, to_execute: bool) -> None:
    for data, why in ((b"#!/bin/sh\recho\r", "contains a CR"), ("#!/bin/sh\n".encode("utf-16"), "UTF-16")):
        file = write(tmp_path, "")
        file.write_bytes(data)
        with pytest.raises(UsageError, match=why):
            script.read_script(str(file), to_execute=to_execute)


def test_lines_of_a_script_end_only_at_a_newline() -> None:
    head = "#!/bin/sh\n# a\u2028#SBATCH -n 9\n#SBATCH -n 4\x0c\n".encode()
    assert script.parse_directives(head) == ("-n 4",)


def test_an_interpreter_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Where the kernel is to start the script here; a batch script is started on the node."""
    for line in ("#!/nowhere/python -u", "#!", "#!  "):
        file = write(tmp_path, f"{line}\n")
        with pytest.raises(UsageError, match="there is no such program here"):
            script.read_script(str(file), to_execute=True)
        assert script.read_script(str(file), to_execute=False).name == "a.sh"
    assert script.read_script(str(write(tmp_path, "#! /bin/sh -e\n")), to_execute=True).name == "a.sh"


def test_an_empty_name_is_no_folder() -> None:
    with pytest.raises(UsageError, match="the script's name is empty"):
        script.read_script("", to_execute=True)


def test_sbatch_itself_needs_no_executable_script(tmp_path: Path) -> None:
    assert script.read_script(str(write(tmp_path, "#!/bin/sh\n", 0o644)), to_execute=False).name == "a.sh"


def test_a_task_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tasks").write_bytes(b"a\n")
    assert script.read_task_bytes(str(tmp_path / "tasks")) == b"a\n"
    for word in (tmp_path / "gone", tmp_path):
        with pytest.raises(UsageError, match="--tasks"):
            script.read_task_bytes(str(word))


def test_tasks_come_from_files_and_pipes_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "TASKS_BYTES_MAX", 3)
    with pytest.raises(UsageError, match="--tasks /dev/zero: it is neither a file nor a pipe"):
        script.read_task_bytes("/dev/zero")
    (tmp_path / "tasks").write_bytes(b"abc")
    assert script.read_task_bytes(str(tmp_path / "tasks")) == b"abc"
    (tmp_path / "tasks").write_bytes(b"abcd")
    with pytest.raises(UsageError, match="it is larger than"):
        script.read_task_bytes(str(tmp_path / "tasks"))
    read, write_ = os.pipe()
    os.write(write_, b"a\n")
    os.close(write_)
    try:
        assert script.read_task_bytes(f"/dev/fd/{read}") == b"a\n"
    finally:
        os.close(read)


def test_a_closed_standard_input_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match="standard input is closed"):
        script.read_task_bytes("-")

"""The programs in packaging/docs/spmd.md give the results that the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_share import spmd
from slurm_share.spmd import MPI

PAGE = Path(__file__).parents[3] / "packaging/docs/spmd.md"
TEXT = PAGE.read_text()
PROGRAMS = dict(re.findall(r"`(\w+\.py)`:\n\n```python\n(.*?)```", TEXT, re.DOTALL))
SAYS = {
    "serial.py": "3.1415926536\n",
    "pi.py": "{size} ranks on 1 nodes: 3.1415926536\n",
    "spectrum.py": "True\n",
    "heat.py": "43.152426 degrees\n",
    "bar.py": "mean 26.136697 degrees\n",
    "wave.py": "its middle is at 524.5\n",
    "restart.py": "60 steps, 60 of them in this run\n",
}


def test_every_program_of_the_page_is_known_here() -> None:
    assert PROGRAMS.keys() == SAYS.keys()


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", [name for name in SAYS if name != "serial.py"])
@pytest.mark.weekly
def test_a_program_of_the_page_works_alone_and_as_ranks(tmp_path: Path, name: str, size: int) -> None:
    (tmp_path / name).write_text(PROGRAMS[name])
    clean = {word: value for word, value in os.environ.items() if not word.startswith(("LLSUB", "PMI"))}
    argv = [sys.executable, *([] if size == 1 else ["-m", "slurm_share.spmd", "-n", str(size)]), name]
    done = subprocess.run(argv, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, SAYS[name].format(size=size), "")


def test_a_run_goes_on_from_the_saved_state_with_another_number_of_ranks(tmp_path: Path) -> None:
    clean = {word: value for word, value in os.environ.items() if not word.startswith(("LLSUB", "PMI"))}
    program = PROGRAMS["restart.py"]
    ended = program.replace("X += 1", "if step == 47: comm.abort(3, 'the time limit')\n    X += 1")
    said = []
    for size, text in ((3, ended), (2, program)):
        (tmp_path / "restart.py").write_text(text)
        argv = [sys.executable, "-m", "slurm_share.spmd", "-n", str(size), "restart.py"]
        done = subprocess.run(argv, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=120)
        said.append((done.returncode, done.stdout))
    assert said == [(3, ""), (0, "60 steps, 20 of them in this run\n")]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["restart.py", "state.npy"]


def test_the_serial_program_of_the_page_says_the_same(tmp_path: Path) -> None:
    assert "slurm_share" not in PROGRAMS["serial.py"]
    argv = [sys.executable, "-c", PROGRAMS["serial.py"]]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, SAYS["serial.py"])


def test_every_call_in_the_table_of_messages_is_there() -> None:
    """Words in backticks of the column of calls; arguments in parentheses are left out."""
    text = PAGE.with_name("spmd-reference.md").read_text()
    table = text[text.index("## Messages") : text.index("A buffer is an array")]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")]
    names = {re.sub(r"\(.*", "", words).split(".")[-1] for row in rows for words in re.findall(r"`([^`]+)`", row)}
    holders = (MPI, MPI.Cartcomm, MPI.Request, MPI.Prequest, MPI.Message, MPI.Status, MPI.Group, MPI.Op, MPI.Datatype)
    status = vars(MPI.Status())
    assert len(names) > 100
    assert [
        name for name in sorted(names) if name not in status and not any(hasattr(one, name) for one in holders)
    ] == []


def test_every_public_name_is_on_the_two_pages() -> None:
    text = TEXT + PAGE.with_name("spmd-reference.md").read_text()
    assert [name for name in spmd.__all__ if not re.search(rf"\b{name}\b", text)] == []

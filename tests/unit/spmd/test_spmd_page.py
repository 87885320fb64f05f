"""The programs in packaging/docs/spmd.md give the results that the page shows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
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
    "restart.py": "60 steps, 60 of them in this job\n",
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


def test_a_run_that_was_told_to_save_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    """The command of the page on this machine; the steps take a moment, so that the signal comes between them."""
    program = PROGRAMS["restart.py"]
    slow = program.replace("X += 1", "open(f'step.{step}', 'w'); time.sleep(0.2); X += 1").replace(
        ", sys", ", sys, time", 1
    )
    first = start_llsub(tmp_path, slow, "[1,3,1]", "--checkpoint-signal", "USR1")
    until = time.monotonic() + 60
    while not (tmp_path / "step.1").exists() and time.monotonic() < until:
        time.sleep(0.05)
    first.send_signal(signal.SIGUSR1)
    said = first.communicate(timeout=60)[0]
    assert first.returncode == 75, said
    assert "saved, not finished: 0-2" in said
    steps = len(list(tmp_path.glob("step.*")))
    assert 1 < steps < 60
    again = start_llsub(tmp_path, program, "[1,2,1]")
    said = again.communicate(timeout=60)[0]
    assert again.returncode == 0, said
    logs = "".join(file.read_text() for file in tmp_path.glob("LLSUB.2/p*/restart.py.log.0"))
    assert f"60 steps, {60 - steps} of them in this job\n" in logs


def start_llsub(folder: Path, program: str, *words: str) -> subprocess.Popen[str]:
    """Run a program as ranks on this machine, as a user does."""
    (folder / "restart.py").write_text(program)
    clean = {word: value for word, value in os.environ.items() if not word.startswith(("LLSUB", "PMI", "SLURM"))}
    clean |= {"LLSUB_PYTHON": sys.executable, "PYTHONPATH": str(PAGE.parents[2])}
    argv = [str(Path(sys.executable).with_name("llsub")), "--local", "--spmd", "restart.py", *words]
    return subprocess.Popen(argv, cwd=folder, env=clean, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_ranks_without_a_launcher_that_have_saved_end_with_75(tmp_path: Path) -> None:
    (tmp_path / "saved.py").write_text(
        "import sys\nfrom slurm_share.spmd import COMM_WORLD as comm\ncomm.barrier()\nsys.exit(75)\n"
    )
    argv = [sys.executable, "-m", "slurm_share.spmd", "-n", "2", "saved.py"]
    clean = {word: value for word, value in os.environ.items() if not word.startswith(("LLSUB", "PMI"))}
    done = subprocess.run(argv, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (75, "", "")


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

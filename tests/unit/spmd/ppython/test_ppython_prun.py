"""pRUN starts programs as ranks, on this machine and through Slurm."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ppython_ranks import run_program

from slurm_share.spmd.errors import UsageError
from slurm_share.spmd.ppython import prun

PROGRAM = """\
import sys
import numpy as np
import pPython as GPC
from pPython.map import Dmap, zeros
from pPython.dmat import local, put_local, agg
from SendMsg import *
from RecvMsg import *
Np, Pid = GPC.Np, GPC.Pid
def neighbour():
    return (Pid + 1) % Np
SendMsg(neighbour(), 7, np.full(1 << 17, Pid), 'x')
[received, text] = RecvMsg((Pid - 1) % Np, 7)
X = zeros(2 * Np, 3, map=Dmap([Np, 1], {}, range(Np)))
X = put_local(X, local(X) + Pid)
whole = agg(X)
if __name__ == '__main__':
    print('rank', Pid, 'of', Np, 'received', int(received[-1]), text, os.environ.get('OMP_NUM_THREADS'))
    if Pid == 0:
        print('sum', whole.sum())
        print('SUCCESS')
if len(sys.argv) > 1 and Pid == 1:
    sys.exit(3)
"""


def drive(folder: Path, lines: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a driver as users of pPython have one, beside a program."""
    (folder / "prog.py").write_text(PROGRAM)
    (folder / "RUN.py").write_text(f"import pPython\nfrom pRUN import pRUN\n{lines}\n")
    return run_program(folder, "RUN.py", **environment)


@pytest.mark.parametrize(("n_proc", "ranks", "threads"), [("3", 3, None), ("[1, 2]", 2, None), ("[2, 2, 5]", 4, "5")])
def test_ranks_here_print_as_pPythons_do(tmp_path: Path, n_proc: str, ranks: int, threads: str | None) -> None:
    done = drive(tmp_path, f"print('code', pRUN('prog.py', {n_proc}, {{}}))")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"rank 0 of {ranks} received {ranks - 1} x")
    assert lines[1:] == [f"sum {6 * sum(range(ranks)):.1f}", "SUCCESS", "code 0"]
    for rank in range(1, ranks):
        said = (tmp_path / f"PythonMPI/prog.{rank}.out").read_text()
        assert said.startswith(f"rank {rank} of {ranks} received {rank - 1} x")
        assert threads is None or said.split()[-1] == threads


def test_a_rank_that_fails_makes_pRUN_raise(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("import pPython as GPC\nif GPC.Pid == 1:\n    raise ValueError('no')\n")
    done = drive(
        tmp_path,
        "from slurm_share.spmd.ppython.prun import RunFailed\n"
        "try:\n    pRUN('fails.py', 2, [])\nexcept RunFailed as error:\n    print('said', error)",
    )
    assert done.returncode == 0, done.stderr
    assert "said pRUN: fails.py: rank 1 on" in done.stdout
    assert "ValueError: no" in (tmp_path / "PythonMPI/fails.1.out").read_text()


def test_a_program_started_without_ranks_is_a_single_one(tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(PROGRAM)
    done = run_program(tmp_path, "alone.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("rank 0 of 1 received 0 x")


LLSUB = """\
#!/bin/sh
echo "$@" >said
mkdir -p LLSUB.7/p0-p1_n1
echo "of rank 0" >LLSUB.7/p0-p1_n1/prog.py.log.0
echo "of rank 1" >LLSUB.7/p0-p1_n1/prog.py.log.1
exit $LLSUB_CODE
"""


@pytest.mark.parametrize("code", [0, 1])
def test_through_slurm_the_logs_get_pPythons_names(tmp_path: Path, code: int) -> None:
    (tmp_path / "bin").mkdir()
    llsub = tmp_path / "bin/llsub"
    llsub.write_text(LLSUB)
    llsub.chmod(0o755)
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    done = drive(tmp_path, "print(pRUN('prog.py', [1, 2], 'gpu', '-T 5'))", PATH=path, LLSUB_CODE=str(code))
    assert (tmp_path / "said").read_text() == "--spmd prog.py [1,2] --partition gpu --wait -T 5\n"
    assert (tmp_path / "PythonMPI/prog.1.out").read_text() == "of rank 1\n"
    assert done.stdout.startswith("of rank 0\n")
    assert ("RunFailed" in done.stderr) is bool(code)
    assert done.returncode == code


@pytest.mark.parametrize(
    ("counts", "machines", "options", "command"),
    [
        ((4,), "grid", None, ["[1,4]", "--wait"]),
        ((4,), "grid&", None, ["[1,4]"]),
        ((2, 8, 5), "xeon&", ["--qos", "high"], ["[2,8,5]", "--partition", "xeon", "--qos", "high"]),
        ((2, 8), "xeon", "", ["[2,8]", "--partition", "xeon", "--wait"]),
    ],
)
def test_the_command_that_submits(counts: tuple[int, ...], machines: str, options: Any, command: list[str]) -> None:
    assert prun.llsub_command("p.py", counts, machines, options) == ["llsub", "--spmd", "p.py", *command]


@pytest.mark.parametrize(
    ("n_proc", "machines", "sentence"),
    [
        (0, {}, "0 is not a number of ranks"),
        ([1, 2, 3, 4], {}, "is not a number of ranks"),
        (["a"], {}, "is not a number of ranks"),
        ("24", {}, "'24' is not a number of ranks"),
        (2.5, {}, "2.5 is not a number of ranks"),
        ([2.5, 4], {}, "is not a number of ranks"),
        (2, ["host1", "host2"], "not started on a list of machines"),
    ],
)
def test_what_cannot_be_started_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_proc: Any, machines: Any, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.py").write_text("")
    with pytest.raises(UsageError, match=sentence):
        prun.pRUN("p.py", n_proc, machines)
    with pytest.raises(UsageError, match=r"there is no program q\.py"):
        prun.pRUN("q.py", 2, {})


@pytest.mark.parametrize("n_proc", [np.int64(4), 4.0, np.array([4])])
def test_a_number_that_a_program_has_computed_is_taken(n_proc: Any) -> None:
    assert prun._counts(n_proc) == (4,)


def test_options_with_an_open_quote_are_refused() -> None:
    with pytest.raises(UsageError, match=r"sched_options .* cannot be read: No closing quotation"):
        prun.llsub_command("p.py", (4,), "grid", "--comment='a b")


def test_a_missing_llsub_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.py").write_text("")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"no command llsub|cannot be started"):
        prun.pRUN("p.py", 2, "grid")


def test_a_rank_of_a_run_starts_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.py").write_text("")
    monkeypatch.setenv("LLSUB_SIZE", "2")
    monkeypatch.setenv("LLSUB_RENDEZVOUS", "x")
    with pytest.raises(UsageError, match="is a rank of a run"):
        prun.pRUN("p.py", 2, {})
